"""What workers write to standard error: by line, without escape sequences, and never more than the log shall hold."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from appliance.workers.daemon.standard_error import LINE_BYTES_MAX, LINES_A_SECOND, StandardError
from appliance.workers.port import WorkerExited
from tests.workers.bench import FOUR, Bench, fake, listening


def said_of(*writes: bytes) -> list[str]:
    """What is logged of what is written before the pipe is closed."""

    async def hear() -> list[str]:
        said: list[str] = []
        pipe = StandardError(asyncio.get_running_loop(), said.append)
        writer = os.dup(pipe.writable)
        pipe.given()
        for each in writes:
            os.write(writer, each)
        os.close(writer)
        pipe.close()
        pipe.close()
        return said

    return asyncio.run(hear())


def test_lines_are_said_one_by_one() -> None:
    assert said_of(b"one\ntw", b"o\nrest") == ["one", "two", "rest"]


def test_nothing_of_them_commands_a_terminal() -> None:
    assert said_of(b"\x1b[2J\x07\xff\r\n") == ["?[2J?\ufffd?"]


def test_a_flood_costs_a_few_lines() -> None:
    said = said_of(b"x\n" * 5000)
    assert len(said) == LINES_A_SECOND + 1
    assert "4980 more lines" in said[-1]


def test_a_line_without_an_end_is_cut() -> None:
    (said,) = said_of(b"y" * 5000)
    assert len(said) == LINE_BYTES_MAX


def test_nobody_waits_for_room() -> None:
    async def fill() -> None:
        pipe = StandardError(asyncio.get_running_loop(), lambda text: None)
        written = 0
        try:
            while True:
                written += os.write(pipe.writable, bytes(65536))
        except BlockingIOError:
            assert written >= 65536
        pipe.given()
        pipe.close()

    asyncio.run(fill())


def test_no_process_changes_or_takes_what_another_writes_to(shared_bench: Bench) -> None:
    """Flags of an open file hold for all that share it, and a pipe can be opened anew to be read."""
    bench = shared_bench
    loud, other = bench.start(), bench.start()
    pids = [bench.pids[loud], bench.pids[other], bench.pool.statistics().zygote_pid]
    model = bench.load(loud, fake("shout", words="\x1b[2J all is lost"))
    assert bench.load(other, fake())
    assert len({os.readlink(f"/proc/{pid}/fd/2") for pid in pids}) == 3
    placed = bench.place([FOUR], [0])
    with listening(f"worker {loud}: ?[2J all is lost") as said:
        bench.run(loud, model, placed)
        bench.wait(said)
    assert [waits(pid) for pid in pids] == [True, False, False]
    for worker in (loud, other):
        bench.call(bench.pool.stop, worker)
        bench.event(WorkerExited)
    bench.free(placed)


def waits(pid: int) -> bool:
    """Whether what it writes to standard error waits for room."""
    (flags,) = (
        line for line in Path(f"/proc/{pid}/fdinfo/2").read_text().splitlines() if line.startswith("flags")
    )
    return not int(flags.split()[1], 8) & os.O_NONBLOCK
