"""What every FleetStore and every BlobStore does: a second implementation is added to the fixtures here."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from appliance.controller import tables
from appliance.controller.audit import first_wrong
from appliance.controller.blobs import BlobStore, DirectoryBlobs, Reclaimed, write_blob
from appliance.controller.fleet_store import DatabaseTrouble, FleetStore
from appliance.domain.digest import digest_of


def test_a_transaction_is_done_whole_or_not_at_all(store: FleetStore) -> None:
    def fail() -> None:
        with store.transaction() as rows:
            rows.count_up("revision")
            rows.note(1, "a", "did")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with store.transaction() as rows:
        assert (rows.number("revision"), rows.audit_lines(0, 9)) == (0, [])


def test_changes_at_once_take_turns(store: FleetStore) -> None:
    def change(number: int) -> None:
        with store.transaction() as rows:
            rows.count_up("revision")
            rows.note(number, "a", "did", number=number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(64)))
    with store.transaction() as rows:
        lines = rows.audit_lines(0, 100)
        assert (rows.number("revision"), len(lines), first_wrong(lines)) == (64, 64, 0)


def test_what_ended_is_there_for_the_next_who_opens(store: FleetStore, tmp_path: Path) -> None:
    with store.transaction() as rows:
        rows.put(tables.roots, version=1, data=b"x")
    other = FleetStore(f"sqlite:///{tmp_path / 'fleet.db'}")
    with other.transaction() as rows:
        assert [row.data for row in rows.all(tables.roots)] == [b"x"]
    other.close()


def test_the_embedded_one_has_each_change_on_the_disk(store: FleetStore) -> None:
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "fleet.db").write_bytes(b"no database" * 500)
    with pytest.raises(DatabaseTrouble):
        FleetStore(f"sqlite:///{tmp_path / 'fleet.db'}")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit SET who = 'b' WHERE number = 3",
        "UPDATE audit SET at_ms = 9 WHERE number = 3",
        "UPDATE audit SET detail = '{}' WHERE number = 3",
        "DELETE FROM audit WHERE number = 3",
        "UPDATE audit SET number = -3 WHERE number = 3",
    ],
)
def test_a_line_of_the_audit_log_that_was_touched_is_found(
    store: FleetStore, tmp_path: Path, change: str
) -> None:
    with store.transaction() as rows:
        for number in range(1, 6):
            rows.note(1, "a", "did", number=number)
        assert first_wrong(rows.audit_lines(0, 9)) == 0
    with create_engine(f"sqlite:///{tmp_path / 'fleet.db'}").begin() as connection:
        connection.execute(text(change))
    with store.transaction() as rows:
        assert first_wrong(rows.audit_lines(0, 9)) == 3


def test_bytes_are_had_by_their_digest(blobs: BlobStore) -> None:
    data = bytes(range(256)) * 5000
    digest = write_blob(blobs, lambda path: path.write_bytes(data))
    assert digest == digest_of(data)
    assert (blobs.size(digest), b"".join(map(bytes, blobs.chunks(digest)))) == (len(data), data)
    assert write_blob(blobs, lambda path: path.write_bytes(data)) == digest


def test_what_was_never_had_is_not_there(blobs: BlobStore) -> None:
    assert blobs.size("0" * 64) is None
    for name in ("../../etc/passwd", "", "0" * 63, "G" * 64):
        with pytest.raises(FileNotFoundError):
            blobs.path(name)


def test_a_draft_that_failed_leaves_nothing(blobs: BlobStore, tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        write_blob(blobs, fail)
    blobs.draft().write_bytes(b"killed here")
    DirectoryBlobs(tmp_path / "blobs").forget_drafts()
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


def test_what_is_reclaimed_is_gone_and_the_rest_is_there(blobs: BlobStore) -> None:
    one, two = (write_blob(blobs, lambda path, data=data: path.write_bytes(data)) for data in (b"1", b"22"))  # type: ignore[misc]
    asked: list[frozenset[str]] = []
    assert blobs.reclaim(lambda here: asked.append(here) or [two]) == Reclaimed(blobs=1, bytes=2)  # type: ignore[func-returns-value]
    assert asked == [{one, two}]
    assert (blobs.size(one), blobs.size(two)) == (1, None)
    assert write_blob(blobs, lambda path: path.write_bytes(b"22")) == two
    assert b"".join(map(bytes, blobs.chunks(two))) == b"22"


def test_nothing_is_reclaimed_while_blobs_are_kept(blobs: BlobStore) -> None:
    digest = write_blob(blobs, lambda path: path.write_bytes(b"1"))
    with blobs.kept():
        with blobs.kept():
            assert blobs.reclaim(lambda here: here) is None
        assert blobs.reclaim(lambda here: here) is None, "one still keeps them"
    assert blobs.size(digest) == 1
    assert blobs.reclaim(lambda here: here) == Reclaimed(blobs=1, bytes=1)


def is_waited_for(folder: Path) -> bool:
    """Whether somebody waits for the lock on a directory, as the kernel tells."""
    waiting = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line)
    return any(words[-3].rpartition(":")[2] == str(folder.stat().st_ino) for words in waiting)


def test_who_would_keep_blobs_waits_until_a_removal_ended(blobs: BlobStore, tmp_path: Path) -> None:
    digest = write_blob(blobs, lambda path: path.write_bytes(b"1"))
    with ThreadPoolExecutor(1) as pool:

        def size() -> int | None:
            with blobs.kept():
                return blobs.size(digest)

        waiting: list[Future[int | None]] = []

        def choose(here: frozenset[str]) -> frozenset[str]:
            waiting.append(pool.submit(size))
            while not is_waited_for(tmp_path / "blobs"):
                assert not waiting[0].done()
                time.sleep(0.01)
            return here

        assert blobs.reclaim(choose) == Reclaimed(blobs=1, bytes=1)
        assert waiting[0].result(30) is None


def test_who_reads_a_blob_that_is_reclaimed_gets_the_rest_of_it(blobs: BlobStore) -> None:
    data = bytes(range(256)) * 9000
    digest = write_blob(blobs, lambda path: path.write_bytes(data))
    chunks = iter(blobs.chunks(digest))
    begin = bytes(next(chunks))
    assert blobs.reclaim(lambda here: here) == Reclaimed(blobs=1, bytes=len(data))
    assert begin + b"".join(map(bytes, chunks)) == data
