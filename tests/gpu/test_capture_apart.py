"""Graphs that are captured on a real GPU while another thread makes sessions and closes them, which waits for the whole
device. Skipped where there is no GPU."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.gpu.test_staging import given, is_right, load

SESSIONS = 10


def test_captures_and_sessions_that_come_and_go_leave_each_other_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    sessions, problems, over = [load(tmp_path, graphs=True)], list[Exception](), threading.Event()

    def come_and_go() -> None:
        try:
            while not over.is_set():
                load(other, graphs=True).close()
        except Exception as problem:  # noqa: BLE001 - told below
            problems.append(problem)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(SESSIONS):
            for rows in range(1, 7):
                memory = given(rows, rows)
                assert all(is_right(sessions[-1], memory, rows, rows) for _ in range(8))
            sessions.append(load(tmp_path, graphs=True))
    finally:
        over.set()
        thread.join()
    for each in sessions:
        each.close()
    assert not problems
    assert "without CUDA graphs" not in capfd.readouterr().err
