"""Files of a state directory: whatever bytes are in any of them, each reader begins anew, or says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from appliance.cli.model.install import _install
from appliance.cli.store.check import served_last
from appliance.config.repository import RepositoryConfig
from appliance.config.store import StoreConfig
from appliance.core.rollout.records import Change, Ending, Proof
from appliance.domain.assessment import Assessment, Deviation
from appliance.domain.digest import digest_of
from appliance.domain.errors import ApplianceError
from appliance.engine.versions.history import read_history
from appliance.engine.versions.record_files import FileRecords
from appliance.engine.versions.records import Cost
from appliance.package.trust import judge as judge_trust
from appliance.sources.store import StoreSource
from appliance.store import catalog_codec, scrub
from appliance.store.catalog_file import read_catalog, rebuilt
from appliance.store.census import census_of
from appliance.store.layout import CATALOG, FORMS, SERVE
from appliance.store.rebuild import rebuild_catalog
from appliance.store.running import RunningRecord, RunningVersion, read_holder, read_incumbents, read_running
from appliance.store.writer import open_store
from appliance.workers.forms import FormDocument, encode_document, find_form
from tests.fuzz.boundary import Boundary, Judge, check_text
from tests.fuzz.model_configurations import judge_scan
from tests.fuzz.mutations import as_json, changed, changed_bytes
from tests.fuzz.packages import PACKAGE, POLICY, asked, memory

NO_FLOOR = StoreConfig(free_floor_bytes=0)
CHANGE = Change(at_ms=1, name="small", version=1, identity="i", ending=Ending.LIVE, after=1)


def _make(state: Path) -> str:
    """A store as a box has it, with all records that there are; gives the digest of what is installed."""
    package = state.parent / "small.model"
    package.write_bytes(PACKAGE)
    with open_store(state, NO_FLOOR) as store:
        _install(store, package, POLICY, asked(state))
        (digest,) = [version.digest for _, version in store.catalog.installed()]
    package.unlink()
    running = RunningRecord(state)
    running.publish([RunningVersion(name="small", version=1, digest=digest)])
    running.close()
    identity = f"small/1@{digest}"
    records = FileRecords(state / SERVE, lambda call: call(), lambda *_, **__: None)
    records.count([identity], 5, lambda _: None)
    records.prove(
        identity, "box", Proof(Assessment(3, (Deviation("y", 0.5, 0.1),), 6, 2, 10, 20, 0), proven=True)
    )
    records.weigh(identity, "box", Cost(1, 2, 3, 4))
    records.rows_tried(identity, "box", mix=True)
    records.seat("small", identity)
    records.heed({"small/1": 7})
    records.happened(CHANGE)
    records.close()
    pass_over = scrub.ScrubRecord(
        started_ms=1, finished_ms=2, damaged=(scrub.Damage(digest=digest, text="t", found_ms=1),)
    )
    (state / "scrub.json").write_bytes(scrub.encode(pass_over))
    form = state / FORMS / f"{digest}-{'1' * 16}"
    form.mkdir(parents=True)
    (form / "graph.onnx").write_bytes(b"g")
    (form / "weights.bin").write_bytes(b"")
    document = FormDocument(
        format=1,
        graph_bytes=1,
        graph_digest=digest_of(b"g"),
        weights_bytes=0,
        weights_digest=digest_of(b""),
        pieces=(),
    )
    (form / "form.json").write_bytes(encode_document(document))
    return digest


def _seeds() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory()) as name:
        state = Path(name) / "state"
        digest = _make(state)
        return {
            path.relative_to(state).as_posix().replace(digest, "DIGEST"): path.read_bytes()
            for path in sorted(state.rglob("*"))
            if path.is_file() and path.suffix in (".json", ".jsonl")
        }


SEEDS = _seeds()
TREES = {name: json.loads(data) for name, data in SEEDS.items()}


def _believed(tree: Any) -> bytes:
    """A catalog whose checksum is right, where it can be."""
    data = as_json(tree)
    try:
        tree = json.loads(data)
        tree["checksum"] = digest_of(catalog_codec._canonical(tree["catalog"]))
        return catalog_codec._canonical(tree)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return data


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """The name of a file and its bytes, which take the place of what was there."""
    name = draw(st.sampled_from(sorted(SEEDS)))
    if draw(st.integers(0, 2)) == 0:
        data = draw(changed_bytes([SEEDS[name]]))
    else:
        data = draw(changed([TREES[name]]).map(_believed if name == CATALOG else as_json))
    return name.encode() + b"\n" + data


def _copied(template: Path, state: Path) -> None:
    """A copy whose small files may be written to."""
    shutil.copytree(template, state, copy_function=os.link)
    for path in state.rglob("*.json*"):
        path.chmod(0o600)
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)


def _reported(text: str, **fields: object) -> None:
    """As a log line."""
    json.dumps([text, fields])


class _State:
    """One state directory, and all that read it."""

    def __init__(self, state: Path, digest: str) -> None:
        self._state = state
        self._digest = digest

    def ask_readers(self, file: str) -> None:
        """Ask all that read this file."""
        name = file.rpartition("/")[2]
        readers = {"scrub.json": [self._scrub], "form.json": [self._form], "running.json": [self._serve]}
        if file.startswith(f"{SERVE}/"):
            readers.setdefault(name, [self._record])
        for ask in readers.get(name, [self._read, self._serve, self._write, self._census, self._rebuild]):
            try:
                ask()
            except ApplianceError as error:
                check_text(error)

    def _read(self) -> None:
        read_catalog(self._state)

    def _serve(self) -> None:
        source = StoreSource(self._state, RepositoryConfig(), tuple)
        try:
            judge_scan(source.read())
            for found in source.standing_in({"small": f"small/1@{self._digest}"}).values():
                judge_scan(found)
            read_running(self._state)
            read_holder(self._state)
        finally:
            source.close()

    def _record(self) -> None:
        records = FileRecords(self._state / SERVE, lambda call: call(), _reported)
        identity = f"small/1@{self._digest}"
        try:
            records.standing(identity)
            records.proof(identity, "box")
            records.cost(identity, "box")
            records.count([identity], 9, lambda _: None)
            records.prove(identity, "other", Proof(None, proven=True))
            records.weigh(identity, "other", Cost(1, 2, 3))
            records.rows_mix(identity, "box")
            records.rows_tried(identity, "other", mix=False)
            records.seat("small", identity)
            records.heed(dict(records.asked() or {}))
            records.happened(CHANGE)
            for change in records.history("small"):
                json.dumps(change.reason)
        finally:
            records.close()
        again: list[str] = []
        FileRecords(self._state / SERVE, lambda call: call(), lambda text, **_: again.append(text)).close()
        assert not again, f"what was begun anew is not read: {again}"
        read_history(self._state / SERVE)
        served_last(self._state)
        list(read_incumbents(self._state))

    def _scrub(self) -> None:
        record = scrub.read_record(self._state)
        scrub.due_s(record, 86400.0, 1)
        scrub.encode(scrub.noted(record, self._digest, 5, "t", 7))

    def _form(self) -> None:
        find_form(str(self._state / FORMS), f"{self._digest}-{'1' * 16}")

    def _write(self) -> None:
        with open_store(self._state, NO_FLOOR) as store:
            store.garbage()
            store.pin("small", 1, pinned=True)

    def _census(self) -> None:
        catalog = read_catalog(self._state)
        with census_of(self._state, NO_FLOOR) as census:
            if catalog is not None:
                census.usage(catalog)

    def _rebuild(self) -> None:
        (self._state / CATALOG).unlink(missing_ok=True)
        rebuild_catalog(
            self._state,
            lambda folder: rebuilt(
                folder,
                trust_of=lambda manifest, signatures: judge_trust(manifest, signatures, POLICY.keys).word,
                served=served_last(self._state),
                now_ms=1,
            ),
        )


@contextmanager
def opened() -> Iterator[Judge]:
    """A judge of such files, each in a copy of the same state directory."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory()) as name:
        template, state = Path(name) / "template", Path(name) / "state"
        digest = _make(template)

        def judge(case: bytes) -> None:
            place, _, data = case.partition(b"\n")
            _copied(template, state)
            try:
                (state / place.decode().replace("DIGEST", digest)).write_bytes(data)
                _State(state, digest).ask_readers(place.decode())
            finally:
                shutil.rmtree(state)

        yield judge


BOUNDARY = Boundary(kept="store_files", cases=files(), opened=opened, examples=120)
