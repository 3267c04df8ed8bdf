"""A change of records costs what it changes, on the loop as in the writer's thread, and nothing is lost by that."""

from __future__ import annotations

import errno
import json
import os
import queue
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance import durable
from appliance.core.rollout.records import Proof
from appliance.domain.assessment import Assessment, Deviation
from appliance.engine.versions import records as records_module
from appliance.engine.versions.record_files import (
    COSTS,
    PROOFS,
    REQUESTS,
    ROWS,
    SEATS,
    TRIES,
    FileRecords,
)
from appliance.engine.versions.record_table import RecordTable, as_json
from appliance.engine.versions.records import Cost, MemoryRecords, Records, model_of

AT_MS: Final = 1_800_000_000_000
FEW, MANY = 10, 1_000
CHANGE_BYTES: Final = 4_000
"""What one change takes for itself at most: a copy of MANY references takes twice as much."""

Change = Callable[[Records, str, int], None]


def proof_of(number: int) -> Proof:
    return Proof(Assessment(number, (Deviation("y", 1e-5, 1e-4),), 1, 200, 1_000, 2_000, 0), proven=True)


def ignore(*_: object, **__: object) -> None:
    """Of no interest."""


CHANGES: Final[dict[str, Change]] = {
    "count": lambda records, identity, number: records.count([identity], AT_MS + number, ignore),
    "given up": lambda records, identity, number: records.given_up(identity, AT_MS + number),
    "reject": lambda records, identity, number: records.reject(identity, f"why {number}"),
    "forgive": lambda records, identity, _: records.forgive(identity),
    "prove": lambda records, identity, number: records.prove(identity, "box", proof_of(number)),
    "weigh": lambda records, identity, number: records.weigh(identity, "box", Cost(number, 2, 3)),
    "rows": lambda records, identity, number: records.rows_tried(identity, "box", mix=number % 2 == 0),
    "seat": lambda records, identity, number: records.seat(model_of(identity), f"{identity}{number}"),
}


@dataclass(slots=True)
class Writes:
    """The documents that were written, by file, but for the first ``fail`` of them."""

    of: dict[str, list[bytes]]
    fail: int = 0

    def replace(self, folder: durable.Folder, path: str, temporary: str, data: bytes) -> None:
        if self.fail:
            self.fail -= 1
            raise OSError(errno.EIO, "Input/output error")
        self.of.setdefault(path, []).append(data)
        durable.replace_file(folder, path, temporary, data)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    seen = Writes({})
    monkeypatch.setattr("appliance.engine.versions.record_files.replace_file", seen.replace)
    return seen


@dataclass(slots=True)
class Held:
    """Records of some models in a folder, whose writer's thread stands still until ``gate`` is opened, and what it has
    posted."""

    records: FileRecords
    gate: threading.Event
    posted: list[Callable[[], None]]

    def end(self) -> None:
        self.gate.set()
        self.records.close()
        for tell in self.posted:
            tell()


def held(folder: Path, models: int) -> Held:
    gate, stands = threading.Event(), threading.Event()
    posted: list[Callable[[], None]] = []

    def post(tell: Callable[[], None]) -> None:
        posted.append(tell)
        stands.set()
        gate.wait(30)

    records = FileRecords(folder, post, ignore)
    for number in range(models):
        for change in ("count", "prove", "weigh", "seat"):
            CHANGES[change](records, f"m{number}/1@a", 0)
    assert stands.wait(30)
    return Held(records, gate, posted)


def content(records: MemoryRecords) -> list[list[Any]]:
    held = (records.standings, records.proofs, records.costs, records.rows, records.seats)
    return [list(each.items()) for each in held]


def steps(work: Callable[[], None]) -> int:
    """How many functions ``work`` calls in this thread."""
    count = 0

    def note(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def peak_bytes(work: Callable[[], None]) -> int:
    """What ``work`` takes for a while or for good."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_costs_the_loop_as_much_among_many_models_as_among_few(tmp_path: Path, kind: str) -> None:
    called: list[int] = []
    for models in (FEW, MANY):
        disk = held(tmp_path / str(models), models)
        change = partial(CHANGES[kind], disk.records)
        try:
            called.append(steps(partial(change, "m5/1@a", 1)))
            taken = [peak_bytes(partial(change, f"m{number}/1@a", 2)) for number in range(5)]
        finally:
            disk.end()
        assert min(taken) < CHANGE_BYTES, "but for the one among many with which a dictionary grows"
    assert called[0] == called[1]


def test_the_writer_encodes_what_changed_and_no_more() -> None:
    encoded: list[str] = []

    def row(key: str, value: int) -> bytes:
        encoded.append(key)
        return as_json([key, value])

    table = RecordTable("rows.json", "rows", "[]", model_of, row)
    table.change((f"m{number}/1", number) for number in range(MANY))
    assert table.due()
    table.written()
    encoded.clear()
    table.change([("m5/1", 7), ("m6/1", None)])
    assert table.due()
    assert encoded == ["m5/1"]
    rows = json.loads(table.document())["rows"]
    assert len(rows) == MANY - 1
    assert rows[-1] == ["m5/1", 7]
    assert table.due(), "it was not written yet"
    table.written()
    assert not table.due()


def test_what_one_call_changes_is_taken_up_whole() -> None:
    table: RecordTable[str, int] = RecordTable(
        "rows.json", "rows", "[]", model_of, lambda _, value: as_json(value)
    )

    def rows() -> Iterator[tuple[str, int]]:
        yield "a", 1
        assert not table.due(), "the other row is not there yet"
        yield "b", 2

    table.change(rows(), {"a": 3})
    assert table.due()
    assert json.loads(table.document()) == {"format": 1, "rows": [1, 2], "asked": {"a": 3}}
    table.change((), {"a": 4})
    assert table.due()
    assert json.loads(table.document())["asked"] == {"a": 4}


def test_changes_that_wait_are_written_at_once(tmp_path: Path, writes: Writes) -> None:
    disk = held(tmp_path / "serve", 1)
    writes.of.clear()
    for number in range(20):
        disk.records.count([f"n/{number}@a"], AT_MS, ignore)
    disk.end()
    (written,) = writes.of[TRIES]
    assert len(json.loads(written)["versions"]) == 21


def test_what_waited_with_a_write_that_failed_is_written_before_it_is_told(
    tmp_path: Path, writes: Writes
) -> None:
    disk = held(tmp_path / "serve", 1)
    writes.of.clear()
    told: list[str | None] = []
    for name in ("n", "o"):
        disk.records.count([f"{name}/1@a"], AT_MS, told.append)
    for change in ("prove", "weigh", "seat"):
        CHANGES[change](disk.records, "n/1@a", 0)
    writes.fail = 4  # the first model's proof, cost and seat wait, too
    disk.end()
    assert told == ["Input/output error", None]
    (written,) = writes.of[TRIES]
    assert json.loads(written)["versions"].keys() == {"m0/1@a", "n/1@a", "o/1@a"}
    again = FileRecords(tmp_path / "serve", ignore, pytest.fail)
    again.close()
    assert content(again._known) == content(disk.records._known)


WRITTEN: Final = {
    TRIES: b'{"format":1,"versions":{"m/1@a":[1,"",5,0],"n/2@b":[2,"\\u00e9",6,1]},"asked":{"m/1":7}}\n',
    PROOFS: b'{"format":1,"proofs":[["m/1@a","box",true,[3,[["y",1e-05,0.0]],1,200,10,20,""]],'
    b'["n/2@b","box",false,null]]}\n',
    COSTS: b'{"format":1,"costs":[["m/1@a","box",true,1,2,3,4],["n/2@b","box",false,5,6,7,0]]}\n',
    ROWS: b'{"format":1,"rows":[["m/1@a","box",true],["n/2@b","box",false]]}\n',
    SEATS: b'{"format":1,"models":{"m":"m/1@a","n":"n/2@b"}}\n',
    REQUESTS: b'{"format":1,"versions":{"m/1":5}}\n',
}
"""As the releases before this one wrote them."""


def test_the_files_are_those_of_the_releases_before(tmp_path: Path) -> None:
    folder = tmp_path / "serve"
    folder.mkdir()
    for file, data in WRITTEN.items():
        (folder / file).write_bytes(data)
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    records = FileRecords(folder, posted.put, pytest.fail)
    for before in ("first", "second"):
        os.rename(folder, tmp_path / before)
        folder.mkdir()
        records.count([], AT_MS, ignore)
        posted.get(timeout=30)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == WRITTEN, (
            "all of them, each time"
        )
    records.close()


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(sorted(CHANGES)), st.sampled_from("lmnop"), st.integers(1, 4)), max_size=40
)


@given(OPERATIONS)
@settings(max_examples=40)
def test_what_is_read_is_what_was_known_within_the_bounds(operations: list[tuple[str, str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(records_module, "VERSIONS_KEPT_OF_MODEL", 2)
        patch.setattr(records_module, "VERSIONS_KEPT", 4)
        memory = MemoryRecords()
        disk = FileRecords(Path(folder), ignore, pytest.fail)
        for number, (kind, name, version) in enumerate(operations):
            for records in (memory, disk):
                CHANGES[kind](records, f"{name}/{version}@a", number)
        disk.close()
        again = FileRecords(Path(folder), ignore, pytest.fail)
        again.close()
        assert content(again._known) == content(memory)
