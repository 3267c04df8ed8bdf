"""The sink: lines in order, and nothing that happens to the target reaches whoever logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.telemetry.sink import DescriptorTarget, FileTarget, Sink, Target
from tests.descriptors import open_below

CLOSE_S = 20.0


def written(target: Target, lines: list[bytes], queue_lines: int = 10_000) -> Sink:
    sink = Sink(target, queue_lines)
    for line in lines:
        sink.write(line)
    sink.close(CLOSE_S)
    return sink


def test_lines_come_in_order(tmp_path: Path) -> None:
    lines = [b"%d\n" % number for number in range(5_000)]
    sink = written(FileTarget(tmp_path / "log", 1 << 20), lines)
    assert (tmp_path / "log").read_bytes() == b"".join(lines)
    assert (sink.statistics().written, sink.statistics().lost) == (5_000, 0)
    assert not open_below(tmp_path), "one that is closed holds no file"


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        sink = written(DescriptorTarget(full), [b"line\n"] * 300)
    finally:
        os.close(full)
    assert (sink.statistics().written, sink.statistics().lost) == (0, 300)


def test_a_closed_descriptor_costs_lines_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        sink = written(DescriptorTarget(writer), [b"line\n"] * 3)
    finally:
        os.close(writer)
    assert sink.statistics().lost == 3


def test_a_reader_that_does_not_read_costs_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.telemetry.sink.STALL_S", 0.01)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    line = b"x" * 65_535 + b"\n"
    try:
        sink = written(DescriptorTarget(writer), [line] * 4)
    finally:
        os.close(writer)
        os.close(reader)
    assert sink.statistics().lost == 4


def test_a_full_queue_refuses_lines() -> None:
    """The writer thread is held up by a pipe that nobody reads until all lines were offered."""
    reader, writer = os.pipe()
    big = b"x" * (1 << 20)
    sink = Sink(DescriptorTarget(writer), 3)
    sink.write(big)
    os.read(reader, 1)  # the thread is writing now, and the pipe holds less than the line
    for _ in range(10):
        sink.write(b"line\n")
    assert sink.lost == 7
    left = len(big) - 1 + 3 * len(b"line\n")
    while left:
        left -= len(os.read(reader, left))
    sink.close(CLOSE_S)
    os.close(writer)
    os.close(reader)
    assert sink.statistics().written == 4


def test_a_file_that_was_moved_away_is_opened_again(tmp_path: Path) -> None:
    target = FileTarget(tmp_path / "log", 1 << 20)
    written(target, [b"one\n"])
    (tmp_path / "log").rename(tmp_path / "old")
    written(target, [b"two\n"])
    assert (tmp_path / "old").read_bytes() == b"one\n"
    assert (tmp_path / "log").read_bytes() == b"two\n"


def test_a_file_never_grows_far_beyond_its_bound(tmp_path: Path) -> None:
    target = FileTarget(tmp_path / "log", 4096)
    for _ in range(20):
        written(target, [b"x" * 1023 + b"\n"])
    sizes = sorted(path.stat().st_size for path in tmp_path.iterdir())
    assert {path.name for path in tmp_path.iterdir()} <= {"log", "log.1"}
    assert all(size <= 4096 for size in sizes)


def test_a_file_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        FileTarget(tmp_path / "none" / "log", 4096)
