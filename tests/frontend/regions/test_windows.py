"""Tensors in regions: what is read, what is written and by whom, whatever their user does to the file meanwhile."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.domain.errors import InvalidRequest, QueueFull
from appliance.frontend.regions import window as module
from appliance.frontend.regions.registry import INPUT_BYTES_MAX, Regions
from appliance.frontend.regions.writer import PIECE_BYTES, Scratch
from tests.frontend.regions.rig import (
    ME,
    SIZE,
    Answering,
    copied,
    locked,
    mine,
    output,
    part,
)
from tests.steps import finished


async def test_what_is_in_a_region_is_read_and_written(regions: Regions, folder: Path) -> None:
    regions.register(ME, mine(offset=8, nbytes=16))
    assert copied(regions, 4, 2) == bytes(range(10, 14))
    window = regions.window(ME, "output", "y", part(16))
    outputs, written = await Answering([output(b"abcd"), output(b"z", "other")]).put({"y": window})
    assert [each.data for each in outputs] == [b"", b"z"]
    assert written == {"y": ("r", 0, 4)}
    assert (folder / "mine").read_bytes()[6:14] == b"\x06\x07abcd\x0c\x0d"


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 4097, 12_345])
async def test_wherever_a_region_begins(folder: Path, offset: int) -> None:
    """Mappings begin at pages, and what is large is copied in pieces."""
    nbytes = 2 * PIECE_BYTES + 7
    (folder / "mine").write_bytes(bytes(offset + nbytes + 9))
    regions = Regions(None, frozenset({ME}), folder=str(folder))
    regions.register(ME, mine(offset=offset, nbytes=nbytes + 9))
    data = os.urandom(nbytes)
    window = regions.window(ME, "output", "y", part(nbytes, 2))
    for _ in range(2):
        await Answering([output(data)]).put({"y": window})
    assert copied(regions, nbytes, 2) == data
    whole = (folder / "mine").read_bytes()
    assert whole == bytes(offset + 2) + data + bytes(7)


async def test_outputs_that_lie_in_one_another_are_put_in_their_order(regions: Regions, folder: Path) -> None:
    regions.register(ME, mine())
    windows = {name: regions.window(ME, "output", name, part(4, at)) for name, at in (("a", 0), ("b", 2))}
    await Answering([output(b"1234", "a"), output(b"5678", "b")]).put(windows)
    assert (folder / "mine").read_bytes()[:7] == b"125678\x06"


async def test_a_file_that_shrank_or_went_is_an_error_of_its_request(regions: Regions, folder: Path) -> None:
    regions.register(ME, mine())
    source, target = (regions.window(ME, kind, "x", part(SIZE)) for kind in ("input", "output"))
    os.truncate(folder / "mine", 10)
    error = source.read_into(memoryview(bytearray(SIZE)))
    assert error is not None
    assert "'r' is smaller than when it was registered" in str(error)
    failing = Answering([output(bytes(SIZE), "x")])
    with pytest.raises(InvalidRequest, match="is smaller"):
        await failing.put({"x": target})
    assert failing.released == 1
    with pytest.raises(InvalidRequest, match="is smaller"):
        finished(source.read())
    assert (folder / "mine").stat().st_size == 10, "nothing grew"
    os.unlink(folder / "mine")
    assert copied(regions, 10) == bytes(range(10)), "what was opened is still there"


async def test_a_file_that_shrinks_after_it_was_looked_at_is_an_error_too(
    regions: Regions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where touching what is mapped would end the process."""
    os.truncate(folder / "mine", 2 * mmap.PAGESIZE)
    regions.register(ME, mine(nbytes=2 * mmap.PAGESIZE))
    window = regions.window(ME, "output", "y", part(2 * mmap.PAGESIZE))
    await Answering([output(bytes(8))]).put({"y": window})
    found = os.stat(folder / "mine")
    for left in (mmap.PAGESIZE, 0):
        os.truncate(folder / "mine", left)
        monkeypatch.setattr(os, "fstat", lambda _: found)
        with pytest.raises(InvalidRequest, match="'r' cannot be written: Bad address; it has shrunk, or"):
            await Answering([output(bytes(2 * mmap.PAGESIZE))]).put({"y": window})
        monkeypatch.undo()


async def test_an_output_without_room_writes_nothing(regions: Regions, folder: Path) -> None:
    regions.register(ME, mine())
    windows = {name: regions.window(ME, "output", name, part(4)) for name in ("a", "b")}
    failing = Answering([output(b"1234", "a"), output(b"12345", "b")])
    with pytest.raises(InvalidRequest, match=r"output 'b' \(4 bytes\) should be at least 5 bytes"):
        await failing.put(windows)
    assert failing.released == 1
    assert (folder / "mine").read_bytes() == bytes(range(SIZE))


async def test_a_file_that_is_locked_for_ever_holds_up_nothing(regions: Regions, folder: Path) -> None:
    """A client can have the lock that write(2) takes for as long as it likes; what waits for it cannot be killed."""
    regions.register(ME, mine())
    window = regions.window(ME, "output", "y", part(4))
    with locked(folder / "mine"):
        await Answering([output(b"abcd")]).put({"y": window})
        assert copied(regions, 4) == b"abcd"
        regions.unregister(ME, "")
        regions.register(ME, mine())


async def test_who_does_not_wait_any_more_gives_the_memory_back_when_nothing_reads_it(
    regions: Regions, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions.register(ME, mine())
    window = regions.window(ME, "output", "y", part(4))
    reached, go = threading.Event(), threading.Event()
    copy = Scratch.copy

    def slow(self: Scratch, data: memoryview, place: memoryview) -> None:
        reached.set()
        go.wait()
        copy(self, data, place)

    monkeypatch.setattr(Scratch, "copy", slow)
    answer = Answering([output(b"abcd")])
    putting = asyncio.create_task(answer.put({"y": window}))
    await asyncio.to_thread(reached.wait)
    putting.cancel()
    await asyncio.wait([putting])
    assert (putting.cancelled(), answer.released) == (True, 0)
    go.set()
    await answer.gone.wait()
    assert copied(regions, 4) == b"abcd"
    assert answer.released == 1


async def test_a_defect_ends_its_own_request(regions: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
    regions.register(ME, mine())
    window = regions.window(ME, "output", "y", part(4))
    with monkeypatch.context() as broken:
        broken.setattr(Scratch, "copy", None)
        failing = Answering([output(b"abcd")])
        with pytest.raises(TypeError):
            await failing.put({"y": window})
    await failing.gone.wait()
    await Answering([output(b"abcd")]).put({"y": window})


def test_strings_are_copied_once_before_they_are_checked(
    regions: Regions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 7)
    regions.register(ME, mine())
    read = finished(regions.window(ME, "input", "x", part(32)).read())
    (folder / "mine").write_bytes(b"\xff" * SIZE)
    assert bytes(read) == bytes(range(32))


def test_copies_of_strings_have_a_bound_for_each_user_and_count_until_they_go(folder: Path) -> None:
    regions = Regions(None, frozenset({ME}), 32, str(folder))
    regions.register(ME, mine())
    window = regions.window(ME, "input", "x", part(32))
    held = [finished(window.read()) for _ in range(2)]
    with pytest.raises(QueueFull, match="strings copied from shared memory hold 64 of 64 bytes"):
        finished(window.read())
    held.pop()
    assert finished(window.read()) == held[0]


def test_inputs_in_regions_have_the_bound_of_a_message(folder: Path) -> None:
    """They are read at once, in which time nobody else is served."""
    regions = Regions(None, frozenset({ME}), 32, str(folder))
    regions.register(ME, mine())
    halves = [regions.window(ME, "input", name, part(16)) for name in "ab"]
    regions.check_inputs(halves)
    with pytest.raises(InvalidRequest, match=r"have 48 bytes; those of one request may have 32"):
        regions.check_inputs([*halves, halves[0]])


async def test_what_failed_holds_nothing(regions: Regions, folder: Path) -> None:
    """Neither the region nor a copy waits for the collector of cycles."""
    gc.disable()
    try:
        regions.register(ME, mine())
        source, target = (regions.window(ME, kind, "x", part(SIZE)) for kind in ("input", "output"))
        account = source.account
        os.truncate(folder / "mine", 10)
        for failing in (Answering([output(bytes(SIZE), "x")]), Answering([output(bytes(SIZE + 1), "x")])):
            with suppress(InvalidRequest):
                await failing.put({"x": target})
        with suppress(InvalidRequest):
            finished(source.read())
        regions.unregister(ME, "")
        assert account.regions.count == 1
        del source, target
        let_go = threading.Event()
        account.writer.do(lambda _: let_go.set())
        let_go.wait()
        await asyncio.sleep(0)  # the turn in which the thread told holds what it told
        assert account.regions.count == 0
        account.copies.take(2 * INPUT_BYTES_MAX)
    finally:
        gc.enable()
