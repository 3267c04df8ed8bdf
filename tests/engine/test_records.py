"""Records on a disk: what is counted is there before it is told, a torn line costs that line, files have bounds."""

from __future__ import annotations

import errno
import json
import os
import queue
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.core.rollout.records import Change, Ending, Proof, Standing, have_served
from appliance.core.rollout.version import Artifact
from appliance.domain.assessment import Assessment, Deviation
from appliance.domain.errors import OperatorError
from appliance.engine.versions import history
from appliance.engine.versions import records as records_module
from appliance.engine.versions.environment_fingerprint import EnvironmentFingerprint, cpu_identity
from appliance.engine.versions.history import FILE, FILE_BEFORE, encoded, read_history, unfit
from appliance.engine.versions.record_files import (
    COSTS,
    PROOFS,
    REQUESTS,
    ROWS,
    SEATS,
    TRIES,
    FileRecords,
    last_requests,
)
from appliance.engine.versions.records import Cost, MemoryRecords
from appliance.store.full_disk import WAY_OUT
from tests.domain.sample import make_version

PROOF = Proof(Assessment(3, (Deviation("y", 1e-5, 1e-4),), 1, 200, 1_000, 2_000, 0), proven=True)


AT_MS = 1_800_000_000_000


def change(number: int, name: str = "m") -> Change:
    return Change(
        at_ms=number, name=name, version=number, identity=f"{name}/{number}@x", ending=Ending.LIVE, reason="é"
    )


class Disk:
    """Records in a folder; ``wait`` runs what the writer has posted."""

    def __init__(self, folder: Path) -> None:
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.records = FileRecords(folder, self.posted.put, self._report)

    def _report(self, what: str, **fields: Any) -> None:
        self.said.append((what, fields))

    def count(self, *identities: str, again: bool = False) -> str | None:
        """Count, wait for it, and give the problem there was."""
        told: list[str | None] = []
        self.records.count(identities, AT_MS, told.append, again=again)
        assert not told, "told before anything was written"
        self.posted.get(timeout=30)()
        return told[0]


def test_a_try_is_on_the_disk_before_it_begins(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "serve")
    assert disk.count("m/1@a", "m/2@b") is None
    written = json.loads((tmp_path / "serve" / TRIES).read_bytes())
    assert written["versions"] == {"m/1@a": [1, "", AT_MS, 0], "m/2@b": [1, "", AT_MS, 0]}
    disk.count("m/1@a", again=True)
    disk.records.given_up("m/2@b", AT_MS + 1)
    disk.records.reject("m/2@b", "rolled back")
    disk.records.close()
    after = Disk(tmp_path / "serve")
    assert after.records.standing("m/1@a") == Standing(2, None, AT_MS, 1)
    assert after.records.standing("m/2@b") == Standing(1, "rolled back", AT_MS + 1)
    after.records.forgive("m/2@b")
    after.records.give_back("m/1@a", again=True)
    after.records.close()
    last = Disk(tmp_path / "serve")
    assert last.records.standing("m/2@b") == Standing()
    assert last.records.standing("m/1@a") == Standing(1, None, AT_MS, 0)


def test_tries_that_an_older_release_wrote_are_understood(tmp_path: Path) -> None:
    (tmp_path / TRIES).write_text(
        '{"format": 1, "versions": {"m/1@a": [2, ""], "m/2@b": [1, "rolled back"]}}'
    )
    disk = Disk(tmp_path)
    assert disk.records.standing("m/1@a") == Standing(2)
    assert disk.records.standing("m/2@b") == Standing(1, "rolled back")
    assert not disk.said
    disk.records.close()


def test_what_was_asked_for_is_heeded_with_the_try_that_follows_or_not_at_all(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert disk.records.asked() is None, "nothing is known of what came before"
    disk.count("m/1@a")
    disk.records.heed({"m/1": 7})
    assert Disk(tmp_path).records.asked() is None, "no try was counted since: it may be news again"
    disk.count("m/1@a")
    assert Disk(tmp_path).records.asked() == {"m/1": 7}
    disk.records.close()


def test_a_try_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path / "serve")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("appliance.engine.versions.record_files.replace_file", full)
        assert disk.count("m/1@a") == f"No space left on device; {WAY_OUT}"
    assert disk.count("m/2@b") is None
    assert json.loads((tmp_path / "serve" / TRIES).read_bytes())["versions"]["m/1@a"] == [1, "", AT_MS, 0]
    disk.records.close()


def test_proofs_come_back_and_hold_for_their_box_alone(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "serve")
    disk.records.prove("m/1@a", "this box", PROOF)
    disk.records.close()
    after = Disk(tmp_path / "serve").records
    assert after.proof("m/1@a", "this box") == PROOF
    assert after.proof("m/1@a", "another box") is None


def test_proofs_that_an_older_release_wrote_are_read(tmp_path: Path) -> None:
    measured = [3, [["y", 1e-5, 1e-4]], 1, 200, 1_000, 2_000]
    rows = [["m/1@a", "box", True, [*measured, ""]], ["m/2@b", "box", False, [*measured, "is slow"]]]
    (tmp_path / PROOFS).write_text(json.dumps({"format": 1, "proofs": rows}))
    disk = Disk(tmp_path)
    assert disk.records.proof("m/1@a", "box") == PROOF
    assert disk.records.proof("m/2@b", "box") == Proof(None, proven=False), "it is assessed anew"
    assert not disk.said
    disk.records.close()


def test_costs_come_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.records.weigh("m/1@a", "this box", Cost(1, 2, 3, 4, packed=True))
    disk.records.close()
    after = Disk(tmp_path).records
    assert after.cost("m/1@a", "this box") == Cost(1, 2, 3, 4, packed=True)
    assert after.cost("m/1@a", "another box") is None


@pytest.mark.parametrize("mix", [False, True])
def test_whether_rows_mix_comes_back(tmp_path: Path, mix: bool) -> None:
    disk = Disk(tmp_path)
    disk.records.rows_tried("m/1@a", "this box", mix=mix)
    disk.records.close()
    after = Disk(tmp_path).records
    assert after.rows_mix("m/1@a", "this box") is mix
    assert after.rows_mix("m/1@a", "another box") is None
    assert after.rows_mix("m/1@b", "this box") is None


@pytest.mark.parametrize("mix", [None, 0, "no"])
def test_what_does_not_say_whether_rows_mix_is_not_taken_for_no(tmp_path: Path, mix: object) -> None:
    (tmp_path / ROWS).write_text(json.dumps({"format": 1, "rows": [["m/1@a", "box", mix]]}))
    disk = Disk(tmp_path)
    disk.records.close()
    assert disk.records.rows_mix("m/1@a", "box") is None
    assert [(what, fields["file"]) for what, fields in disk.said] == [
        ("records cannot be read; they begin anew", ROWS)
    ]


def test_when_versions_were_asked_last_comes_back_once_it_was_to_be_written(tmp_path: Path) -> None:
    records = FileRecords(tmp_path, lambda run: None, pytest.fail)
    records.requested({"m/1": 5_000}, write=False)
    records.requested({"m/1": 4_000, "m/2": 7_000}, write=True)
    assert (records.last_request("m/1"), records.last_request("m/3")) == (5_000, 0)
    records.close()
    again = FileRecords(tmp_path, lambda run: None, pytest.fail)
    assert (again.last_request("m/1"), again.last_request("m/2")) == (5_000, 7_000)
    again.close()
    assert last_requests(tmp_path) == {"m/1": 5_000, "m/2": 7_000}
    (tmp_path / "requests.json").write_text("{")
    assert last_requests(tmp_path) == {}


def test_incumbents_come_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "serve")
    for identity in ("m/1@a", "m/2@b"):
        disk.records.seat("m", identity)
    disk.records.seat("n", "n/1@c")
    disk.records.close()
    assert Disk(tmp_path / "serve").records.incumbents() == {"m": "m/2@b", "n": "n/1@c"}


@pytest.mark.parametrize(
    ("endings", "failed"),
    [
        ([Ending.LIVE], set()),
        ([Ending.REFUSED], {1}),
        ([Ending.LIVE, Ending.ROLLED_BACK], {1}),
        ([Ending.REFUSED, Ending.LIVE, Ending.ABANDONED], set()),
        ([Ending.REFUSED, Ending.LIVE, Ending.RECALLED], set()),
        ([Ending.LIVE, Ending.WITHDRAWN], set()),
        ([Ending.LIVE, Ending.RECALLED, Ending.GIVEN_UP], {1}),
    ],
)
def test_what_failed_when_it_was_tried_last_is_unfit(endings: list[Ending], failed: set[int]) -> None:
    changes = [replace(change(1), ending=ending) for ending in endings]
    packed = replace(change(1), identity="m/1@x", artifact=Artifact.PACKED, ending=Ending.REFUSED)
    assert unfit([*changes, packed]) == failed, "a form that fails is not its version's fault"
    served = set() if failed else {"m/1@x"}
    assert have_served([*changes, packed]) == served


def test_what_served_is_told_apart_by_its_package() -> None:
    changes = [change(1), replace(change(1), identity="m/1@y", ending=Ending.REFUSED)]
    assert have_served(changes) == {"m/1@x"}
    assert have_served([replace(change(1), ending=Ending.ABANDONED)]) == frozenset()


def test_lines_of_packed_forms_lie_on_the_disk_as_older_releases_wrote_them() -> None:
    packed = replace(change(1), identity="m/1@x", artifact=Artifact.PACKED)
    line = history.encoded(packed)
    assert b'"identity":"m/1@x#packed"' in line
    assert b"artifact" not in line
    assert history.decoded(line) == packed


@pytest.mark.parametrize(
    "broken", [b"", b"{", b'{"format": 9}', b"[]", b'{"format": 1, "versions": {"a": 1}}', b"\xff"]
)
def test_a_file_that_cannot_be_read_begins_anew_and_is_reported(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / TRIES).write_bytes(broken)
    (tmp_path / PROOFS).write_bytes(broken)
    disk = Disk(tmp_path)
    assert {fields["file"] for _, fields in disk.said} >= {TRIES}
    assert disk.count("m/1@a") is None
    disk.records.close()


def test_a_folder_that_cannot_be_used_is_the_operators(tmp_path: Path) -> None:
    (tmp_path / "serve").write_text("a file")
    with pytest.raises(OperatorError, match="cannot be used"):
        Disk(tmp_path / "serve")


def test_a_torn_last_line_costs_that_line_only(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for number in (1, 2):
        disk.records.happened(change(number))
    disk.records.close()
    whole = (tmp_path / FILE).read_bytes()
    for cut in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:cut])
        lines = whole[:cut].count(b"\n")
        assert len(read_history(tmp_path)) in (lines, lines + 1)
    (tmp_path / FILE).write_bytes(whole[:-9])
    after = Disk(tmp_path)
    after.records.happened(change(3, "other"))
    after.records.close()
    assert [each.version for each in read_history(tmp_path)] == [1, 3]
    assert read_history(tmp_path, "other") == (replace(change(3, "other"), sequence=2),)


def test_lines_are_numbered_on_across_restarts_and_a_reader_goes_on_where_it_ended(tmp_path: Path) -> None:
    for start in range(3):
        disk = Disk(tmp_path / "serve")
        disk.records.happened(change(1))
        disk.records.happened(change(2, "n"))
        assert [each.sequence for each in disk.records.history("")] == list(range(1, 2 * start + 3))
        disk.records.close()
    seen = read_history(tmp_path / "serve", after=4)
    assert [(each.sequence, each.name) for each in seen] == [(5, "m"), (6, "n")]
    assert [each.sequence for each in read_history(tmp_path / "serve", "n", after=4)] == [6]


def test_lines_of_older_releases_are_numbered_by_their_place(tmp_path: Path) -> None:
    folder = tmp_path / "serve"
    folder.mkdir()
    old = [encoded(change(number)).replace(b',"sequence":0', b"") for number in (7, 8)]
    assert all(b"sequence" not in line for line in old)
    (folder / "history.jsonl").write_bytes(b"".join(old))
    disk = Disk(folder)
    disk.records.happened(change(9))
    disk.records.close()
    assert [(each.sequence, each.version) for each in read_history(folder)] == [(1, 7), (2, 8), (3, 9)]


def test_a_line_that_a_full_disk_cuts_short_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    write = os.write

    def nearly_full(descriptor: int, data: bytes) -> int:
        if len(data) < 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:-49])

    with monkeypatch.context() as patch:
        patch.setattr("appliance.engine.versions.record_files.os.write", nearly_full)
        disk.records.happened(change(1))
        disk.posted.get(timeout=30)()
    assert disk.said == [("records cannot be written", {"error": f"No space left on device; {WAY_OUT}"})]
    disk.records.happened(change(2))
    disk.records.close()
    assert [each.version for each in read_history(tmp_path)] == [2]


def test_the_history_is_bounded_in_files_and_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.engine.versions.record_files.FILE_BYTES_MAX", 1_000)
    disk = Disk(tmp_path)
    for number in range(30):
        disk.records.happened(change(number))
    disk.records.close()
    assert (tmp_path / FILE_BEFORE).stat().st_size < 2_000
    assert not (tmp_path / FILE).exists() or (tmp_path / FILE).stat().st_size <= 1_000
    kept = [each.version for each in read_history(tmp_path)]
    assert kept == list(range(30 - len(kept), 30))
    monkeypatch.setattr(history, "CHANGES_KEPT", 2)
    assert [each.version for each in read_history(tmp_path)] == [28, 29]


def test_memory_counts_as_the_disk_does() -> None:
    records = MemoryRecords()
    told: list[str | None] = []
    records.count(("a", "a"), AT_MS, told.append)
    assert told == [None]
    assert records.standing("a").tries == 2
    records.reject("a", "why")
    records.forgive("a")
    assert records.standing("a") == Standing()


def test_what_is_kept_of_versions_is_bounded_of_a_model_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "VERSIONS_KEPT_OF_MODEL", 2)
    monkeypatch.setattr(records_module, "VERSIONS_KEPT", 3)
    records = MemoryRecords()
    for identity in ("m/1@a", "m/2@a", "m/1@a", "m/3@a"):
        records.reject(identity, "why")
        records.prove(identity, "box", PROOF)
    assert list(records.standings) == ["m/1@a", "m/3@a"], (
        "what was put in last, also where it was there before"
    )
    assert [identity for identity, _ in records.proofs] == ["m/1@a", "m/3@a"]
    for identity in ("n/1@a", "o/1@a"):
        records.reject(identity, "why")
    assert list(records.standings) == ["m/3@a", "n/1@a", "o/1@a"]
    for identity in list(records.standings):
        records.forgive(identity)
    assert len(records.standings) == 0


def test_the_fingerprint_changes_with_the_processor_and_the_runtime() -> None:
    one = cpu_identity("model name: A\nflags: sse avx\n\nmodel name: B")
    assert one == cpu_identity("flags: avx sse\nmodel name: A\nbogomips: 7\n")
    assert one != cpu_identity("model name: A\nflags: sse avx avx512\n")
    onnx = make_version("m")
    said = EnvironmentFingerprint(one)(onnx)
    assert said.startswith("fake of fake-runtime 1, ")
    assert said.endswith(one)
    assert EnvironmentFingerprint(one)(replace(onnx, runtime="onnx")).startswith("onnx 1")
    assert EnvironmentFingerprint(one)(replace(onnx, runtime="nosuch")).startswith("nosuch, ")


def test_a_history_without_end_is_read_from_where_its_last_lines_can_be(tmp_path: Path) -> None:
    """As long as a file may be: holes, and one line behind them."""
    line = encoded(Change(at_ms=1, name="m", version=1, identity="m/1@d", ending=Ending.LIVE))
    with (tmp_path / FILE).open("wb") as file:
        file.truncate(1 << 42)
        file.seek(0, 2)
        file.write(b"\n" + line)
    assert [change.name for change in read_history(tmp_path)] == ["m"]


@pytest.mark.parametrize("file", [TRIES, PROOFS, COSTS, ROWS, REQUESTS, SEATS])
def test_records_of_a_newer_release_begin_anew_and_that_is_told(tmp_path: Path, file: str) -> None:
    disk = Disk(tmp_path)
    disk.records.prove("m/1@x", "box", PROOF)
    disk.records.weigh("m/1@x", "box", Cost(1, 1, 1, 1, packed=False))
    disk.records.rows_tried("m/1@x", "box", mix=False)
    disk.records.seat("m", "m/1@x")
    disk.records.requested({"m/1@x": AT_MS}, write=True)
    disk.count("m/1@x")
    disk.records.close()
    document = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**document, "format": document["format"] + 1}))
    disk = Disk(tmp_path)
    disk.records.close()
    (told,) = disk.said
    assert told[0] == "records cannot be read; they begin anew"
    assert (told[1]["file"], told[1]["error"]) == (file, "format 2 is not 1")
