"""What the daemon runs, told from one process to another through a crash, a stale file and a wrong one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.config.store import StoreConfig
from appliance.domain.digest import digest_of
from appliance.domain.errors import StoreBusy, StoreFull, StoreUnavailable
from appliance.engine.versions.record_files import FileRecords
from appliance.store.layout import INCUMBENTS, RUNNING
from appliance.store.running import RunningRecord, RunningVersion, read_incumbents, read_running
from appliance.store.writer import open_store
from tests.store.arrivals import arrival, contents_of
from tests.store.stores import install

DIGITS = RunningVersion(name="digits", version=3, digest=digest_of(b"digits"))
PROGRAM = """
import sys
from pathlib import Path
from appliance.store.running import RunningRecord, RunningVersion
record = RunningRecord(Path(sys.argv[1]))
record.publish([RunningVersion(name="digits", version=3, digest=sys.argv[2])])
print("published", flush=True)
sys.stdin.read()
"""


def test_nothing_runs_where_no_daemon_ever_was(tmp_path: Path) -> None:
    assert read_running(tmp_path) == ()


def test_what_was_published_last_is_what_runs(tmp_path: Path) -> None:
    record = RunningRecord(tmp_path)
    record.publish([DIGITS])
    assert read_running(tmp_path) == (DIGITS,)
    record.publish([])
    assert read_running(tmp_path) == ()
    record.publish([DIGITS])
    record.close()
    assert read_running(tmp_path) == ()


def test_a_killed_daemon_runs_nothing_though_its_file_is_still_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), DIGITS.digest]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"published\n"
        assert read_running(tmp_path) == (DIGITS,)
        with pytest.raises(StoreBusy) as caught:
            RunningRecord(tmp_path)
        assert caught.value.pid == daemon.pid
        daemon.kill()
        daemon.wait()
    assert (tmp_path / RUNNING).exists()
    assert read_running(tmp_path) == ()
    RunningRecord(tmp_path).close()


def test_a_daemon_that_cannot_say_what_it_runs_takes_back_what_it_said(tmp_path: Path) -> None:
    record = RunningRecord(tmp_path)
    with pytest.raises(StoreUnavailable, match="it is not there"):
        read_running(tmp_path)
    record.publish([])
    (tmp_path / f"{RUNNING}.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        record.publish([DIGITS])
    with pytest.raises(StoreUnavailable, match="it is not there"):
        read_running(tmp_path)
    (tmp_path / f"{RUNNING}.new").rmdir()
    record.publish([DIGITS])
    assert read_running(tmp_path) == (DIGITS,)
    record.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 1, "pid": 1, "versions": [["../x", 1, "y"]]}',
        '{"format": 1}',
        "[" * 9999,
    ],
)
def test_a_living_daemon_that_cannot_be_understood_is_no_empty_one(tmp_path: Path, text: str) -> None:
    record = RunningRecord(tmp_path)
    (tmp_path / RUNNING).write_text(text)
    with pytest.raises(StoreUnavailable, match="does not tell what the daemon runs"):
        read_running(tmp_path)
    record.close()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"models": 1}', b'{"models": {"m": 1}}', b'{"models": {"m": "m"}}']
)
def test_incumbents_that_cannot_be_read_are_none(tmp_path: Path, data: bytes) -> None:
    assert list(read_incumbents(tmp_path)) == []
    (tmp_path / INCUMBENTS).parent.mkdir()
    (tmp_path / INCUMBENTS).write_bytes(data)
    assert list(read_incumbents(tmp_path)) == []


def test_what_may_have_to_stand_in_is_not_evicted_but_goes_when_it_is_uninstalled(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with open_store(state, StoreConfig(free_floor_bytes=0, quota_bytes=14_000)) as store:
        first = install(store, arrival(version=1, contents=contents_of(1, b"1" * 4000)), want=True, now_ms=1)
        install(store, arrival(version=2, contents=contents_of(2, b"2" * 4000)), want=True, now_ms=2)
        records = FileRecords(state / "serve", lambda job: None, lambda *said, **fields: None)
        records.seat("digits", f"digits/1@{first.digest}")
        records.close()
        with pytest.raises(StoreFull):
            install(store, arrival(version=3, contents=contents_of(3, b"3" * 4000)), want=True, now_ms=3)
        assert store.uninstall("digits", 1).blobs
        install(store, arrival(version=3, contents=contents_of(3, b"3" * 4000)), want=True, now_ms=3)
