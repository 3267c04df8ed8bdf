"""Blobs that nothing names go, and no other: by what is named, by whom they are kept, by what the disk says."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.controller import server, tables
from appliance.controller.blobs import BlobStore, DirectoryBlobs, Reclaimed, write_blob
from appliance.controller.fleet_store import FleetStore
from appliance.controller.leftovers import Leftovers, due
from appliance.fleet.documents import DesiredState, Transfer, WishedModel, WishedVersion, encode

SETS = st.frozensets(st.sampled_from("abcdefgh"))


@given(st.lists(st.tuples(SETS, SETS), max_size=6))
def test_what_goes_was_unnamed_at_two_looks_in_a_row(
    looks: list[tuple[frozenset[str], frozenset[str]]],
) -> None:
    before: frozenset[str] = frozenset()
    loose_before: frozenset[str] = frozenset()
    for here, named in looks:
        now, before = due(here, named, before)
        assert now <= (here - named) & loose_before
        assert now | before == here - named, "each that nothing names goes now, or at the next look"
        loose_before = here - named


def taken(blobs: BlobStore, *texts: str) -> list[str]:
    """The digests of blobs with those texts, which are there now."""
    return [write_blob(blobs, lambda path, text=text: path.write_text(text)) for text in texts]  # type: ignore[misc]


def release_of(store: FleetStore, package: str, version: int = 1) -> None:
    with store.transaction() as rows:
        rows.put(
            tables.releases, model="m", version=version, manifest="0" * 64, package=package, total_bytes=1,
            trust="unsigned", by_whom="me", at_ms=1,
        )  # fmt: skip


def device_with(store: FleetStore, document: bytes, name: str = "box", state: str = "active") -> None:
    with store.transaction() as rows:
        rows.put(tables.devices, name=name, state=state, created_ms=1, inventory="{}", document=document)


def document_of(stream: str, index: str) -> bytes:
    way = Transfer(stream=stream, size=7, index=index, base="")
    wished = WishedVersion(version=1, manifest="0" * 64, total_bytes=1, transfers=(way,))
    models = (WishedModel(name="m", prefetch=(wished,)),)
    return encode(DesiredState(device="box", generation=1, models=models))


def looked(leftovers: Leftovers, times: int = 2) -> Reclaimed:
    """What the last of so many looks gave."""
    return [leftovers.look(5) for _ in range(times)][-1]


def test_what_a_release_a_way_and_a_document_name_stays_and_the_rest_goes(
    store: FleetStore, blobs: DirectoryBlobs
) -> None:
    package, stream, index, told, told_index, *loose = taken(blobs, *"abcdefg")
    release_of(store, package)
    with store.transaction() as rows:
        rows.put(tables.transfers, model="m", version=1, base="", stream=stream, size=1, index_digest=index)
    device_with(store, document_of(told, told_index))
    leftovers = Leftovers(store, blobs)
    assert leftovers.look(5) == Reclaimed(), "the first look only looks"
    assert leftovers.look(6) == Reclaimed(blobs=2, bytes=2)
    assert [blobs.size(each) for each in loose] == [None, None]
    assert None not in [blobs.size(each) for each in (package, stream, index, told, told_index)]
    with store.transaction() as rows:
        (line,) = rows.audit_lines(0, 9)
    assert (line.at_ms, line.who, line.what) == (6, "controller", "reclaimed")
    assert line.detail == '{"blobs":2,"bytes":2}'
    assert looked(leftovers) == Reclaimed()
    with store.transaction() as rows:
        assert len(rows.audit_lines(0, 9)) == 1, "a look that freed nothing is no news"


@pytest.mark.parametrize(("state", "left"), [("active", 7), ("conflict", 7), ("revoked", None)])
def test_what_a_device_was_told_of_stays_until_it_is_told_of_another_or_is_revoked(
    store: FleetStore, blobs: DirectoryBlobs, state: str, left: int | None
) -> None:
    stream, index = taken(blobs, "stream-", "index--")
    device_with(store, document_of(stream, index), state=state)
    looked(Leftovers(store, blobs), 3)
    assert [blobs.size(stream), blobs.size(index)] == [left, left]
    device_with(store, b"", state=state)
    looked(Leftovers(store, blobs))
    assert [blobs.size(stream), blobs.size(index)] == [None, None]


def test_a_blob_that_is_named_between_two_looks_stays(store: FleetStore, blobs: DirectoryBlobs) -> None:
    (package,) = taken(blobs, "package")
    leftovers = Leftovers(store, blobs)
    leftovers.look(5)
    release_of(store, package)
    assert looked(leftovers) == Reclaimed()
    release_of(store, "")
    assert leftovers.look(7) == Reclaimed(), "it begins anew"
    assert leftovers.look(8) == Reclaimed(blobs=1, bytes=7)


def test_a_document_that_cannot_be_read_keeps_everything_there(
    store: FleetStore, blobs: DirectoryBlobs
) -> None:
    (loose,) = taken(blobs, "x")
    device_with(store, b"\xc1", name="newer")
    leftovers = Leftovers(store, blobs)
    assert looked(leftovers, 3).error.startswith("the document of 'newer' cannot be read: ")
    assert blobs.size(loose) == 1
    device_with(store, b"", name="newer")
    assert looked(leftovers) == Reclaimed(blobs=1, bytes=1)


def test_nothing_goes_while_somebody_keeps_blobs_of_whatever_process(
    store: FleetStore, blobs: DirectoryBlobs, tmp_path: Path
) -> None:
    (loose,) = taken(blobs, "x")
    leftovers = Leftovers(store, blobs)
    leftovers.look(5)
    with blobs.kept(), DirectoryBlobs(tmp_path / "blobs").kept():
        assert looked(leftovers, 3) == Reclaimed()
    assert blobs.size(loose) == 1
    assert leftovers.look(5) == Reclaimed(blobs=1, bytes=1)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF, errno.ENOTSUP])
def test_where_there_are_no_locks_nothing_goes_and_it_is_said_of_which_directory(
    store: FleetStore, blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    """As on some file systems of other machines."""
    (loose,) = taken(blobs, "x")

    def flock(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    where = f"{os.strerror(number)} (flock): '{tmp_path / 'blobs'}'"
    assert looked(Leftovers(store, blobs), 3).error.endswith(where)
    with pytest.raises(OSError, match=re.escape(where)), blobs.kept():
        raise AssertionError("it is not kept")
    assert blobs.size(loose) == 1


def test_a_database_that_fails_removes_nothing(store: FleetStore, blobs: DirectoryBlobs) -> None:
    (loose,) = taken(blobs, "x")
    leftovers = Leftovers(store, blobs)
    leftovers.look(5)
    with store.transaction() as rows:
        rows._connection.exec_driver_sql("ALTER TABLE transfers RENAME TO gone")
    assert "the database failed: no such table: transfers" in looked(leftovers).error
    assert blobs.size(loose) == 1


def test_what_was_freed_is_told_also_where_the_audit_log_takes_no_line(
    store: FleetStore, blobs: DirectoryBlobs
) -> None:
    taken(blobs, "x")
    with store.transaction() as rows:
        rows._connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    found = looked(Leftovers(store, blobs))
    assert (found.blobs, found.bytes) == (1, 1)
    assert "the database failed: full" in found.error


def test_one_that_cannot_be_removed_keeps_no_other_there(
    store: FleetStore, blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, *loose = taken(blobs, *"abc")
    real = Path.unlink

    def unlink(path: Path, *words: Any, **more: Any) -> None:
        if path.name == stuck:
            raise OSError(errno.EIO, "Input/output error")
        real(path, *words, **more)

    monkeypatch.setattr(Path, "unlink", unlink)
    leftovers = Leftovers(store, blobs)
    found = looked(leftovers)
    assert (found.blobs, found.error) == (2, f"'{blobs.path(stuck)}': Input/output error")
    assert [blobs.size(each) for each in loose] == [None, None]
    monkeypatch.undo()
    assert looked(leftovers) == Reclaimed(blobs=1, bytes=1), "it is tried again"


def test_what_was_freed_and_what_stands_in_the_way_is_told_once(
    store: FleetStore, blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the controller does it while it serves."""
    found = [
        Reclaimed(),
        Reclaimed(error="no"),
        Reclaimed(error="no"),
        Reclaimed(blobs=2, bytes=9),
        Reclaimed(error="no"),
    ]
    told: list[tuple[str, dict[str, object]]] = []

    def look(self: Leftovers, now_ms: int) -> Reclaimed:
        if not found:
            raise asyncio.CancelledError
        return found.pop(0)

    monkeypatch.setattr(Leftovers, "look", look)
    monkeypatch.setattr(server, "RECLAIM_S", 0)
    home: Any = SimpleNamespace(store=store, blobs=blobs)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(server._reclaim(home, lambda what, **fields: told.append((what, fields))))
    trouble = ("blobs cannot be reclaimed", {"error": "no"})
    assert told == [trouble, ("blobs reclaimed", {"blobs": 2, "bytes": 9}), trouble]


def test_what_is_no_blob_is_left_alone(store: FleetStore, blobs: DirectoryBlobs, tmp_path: Path) -> None:
    (loose,) = taken(blobs, "x")
    folder, digest = tmp_path / "blobs", "ab" + "0" * 62
    (folder / "ab").mkdir()
    others = [folder / "notes", folder / "ab" / "notes", folder / digest, folder / "drafts" / digest]
    others += [folder / "ab" / ("cd" + "0" * 62)]
    for each in others:
        each.write_text("of a person")
    (folder / "ab" / digest).symlink_to(folder / "notes")
    (folder / "cd").symlink_to(folder / loose[:2])
    assert looked(Leftovers(store, blobs)) == Reclaimed(blobs=1, bytes=1)
    assert all(each.read_text() == "of a person" for each in [*others, folder / "ab" / digest])
