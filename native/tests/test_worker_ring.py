"""The worker's end of a lane: how batches are formed, where their tensors go, what ends on the way."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Iterator

import pytest
from edge_appliance_native import LaneMemory, WorkerRing

from tests.workers.server_double import EXPIRED, HAND_OVER, OK, WITHDRAWN, ServerDouble, Submission

MAIL, SUBMISSIONS = 1, 2
NOTHING, LEFT, RAN = 0, 2, 4
ARENA_BYTES = 64 << 10
ROW, OUT = 12, 4  # bytes of a row of the input and of the output of kind 1


class Rig:
    """Both ends of a lane, and an arena."""

    def __init__(self) -> None:
        self.memory = LaneMemory()
        self.doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.arena = mmap.mmap(-1, ARENA_BYTES)
        self.ring = WorkerRing(self.memory.fileno(), self.doorbell, memoryview(self.arena))
        self.server = ServerDouble(self.memory, self.doorbell)
        for plan, rows in ((10, 1), (11, 1), (12, 3)):
            self.ring.add_template(plan, 1, rows, 4, [rows * ROW, rows * 8], [rows * OUT])
        self.ring.add_template(20, 2, 1, 4, [ROW], [OUT])

    def submit(self, *submissions: Submission) -> None:
        """And have the mail that the double wakes by out of the way."""
        self.server.submit(*submissions)
        assert self.ring.wait(1000) == MAIL | SUBMISSIONS

    def take(self) -> tuple[int, ...] | None:
        taken = self.ring.take()
        if taken is not None:
            self.ring.complete(OK, 1, 2, 3)
        return taken


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    os.close(rig.doorbell)


def request(ticket: int, plan: int, rows: int = 1, **more: int) -> Submission:
    return Submission(ticket, ticket * 256, ticket * 256 + 128, plan, rows, **more)


def test_idle_waiting_ends(rig: Rig) -> None:
    assert rig.ring.wait(0) == 0
    begin = time.monotonic()
    assert rig.ring.wait(20) == 0
    assert time.monotonic() - begin > 0.015
    assert rig.ring.take() is None


def test_mail_is_told_once_and_goes_first(rig: Rig) -> None:
    rig.server.submit(request(1, 10))
    assert rig.ring.take() is None
    assert rig.ring.wait(1000) == MAIL | SUBMISSIONS
    assert rig.ring.wait(1000) == SUBMISSIONS
    assert rig.take() == (1, 10, 1, 1, 256, 384)
    assert rig.ring.wait(0) == 0


def test_a_batch_is_the_longest_run_of_one_kind_within_its_rows(rig: Rig) -> None:
    plans = [10, 11, 20, 20, 12, 10, 11, 10, 12, 12]
    rows = {12: 3}
    rig.submit(*(request(ticket, plan, rows.get(plan, 1)) for ticket, plan in enumerate(plans)))
    batches = []
    while (taken := rig.take()) is not None:
        batches.append(taken[:4])
    assert batches == [
        (1, 10, 2, 2),
        (2, 20, 2, 2),
        (1, 12, 4, 2),
        (1, 11, 2, 2),
        (1, 12, 3, 1),
        (1, 12, 3, 1),
    ]
    ended = rig.server.take()
    assert [each.ticket for each in ended] == list(range(10))
    assert [each.first for each in ended] == [1, 0, 1, 0, 1, 0, 1, 0, 1, 1]
    assert [each.batch_rows for each in ended] == [2, 2, 2, 2, 4, 4, 2, 2, 3, 3]
    assert {each[1:2] + each[5:] for each in ended} == {(OK, 1, 2, 3)}
    now = time.monotonic_ns()
    assert all(now - 20_000_000_000 < each.started_ns <= now for each in ended)


def test_more_rows_than_a_batch_may_have_still_run_alone(rig: Rig) -> None:
    rig.ring.add_template(30, 3, 9, 4, [9], [9])
    rig.submit(request(1, 30, 9), request(2, 30, 9))
    assert rig.take() == (3, 30, 9, 1, 256, 384)
    assert rig.take() == (3, 30, 9, 1, 512, 640)


def test_tensors_are_gathered_column_by_column_and_scattered_back(rig: Rig) -> None:
    for ticket, rows, letter in ((1, 1, b"a"), (2, 3, b"b")):
        size = rows * ROW
        start = ticket * 256
        rig.arena[start : start + size] = letter * size
        start += (size + 63) // 64 * 64
        rig.arena[start : start + rows * 8] = letter.upper() * (rows * 8)
    rig.submit(request(1, 10), request(2, 12, 3))
    assert rig.ring.take() == (1, 10, 4, 2, 256, 384)
    gathered = ctypes.create_string_buffer(b"." * 128, 128)
    rig.ring.gather(ctypes.addressof(gathered), 128)
    assert gathered.raw == b"a" * 12 + b"b" * 36 + b"." * 16 + b"A" * 8 + b"B" * 24 + b"." * 32
    outputs = ctypes.create_string_buffer(b"1234" + b"567890abcdef", 64)
    rig.ring.scatter(ctypes.addressof(outputs), 64)
    assert rig.arena[384:400] == b"1234" + bytes(12)
    assert rig.arena[640:656] == b"567890abcdef" + bytes(4)
    for call in (rig.ring.gather, rig.ring.scatter):
        with pytest.raises(ValueError, match="does not fit"):
            call(ctypes.addressof(gathered), 15)
    with pytest.raises(RuntimeError, match="has not been completed"):
        rig.ring.take()


def test_what_cannot_run_ends_on_the_way(rig: Rig) -> None:
    now = time.monotonic_ns()
    rig.submit(
        request(1, 10, deadline_ns=now - 1),
        request(2, 10),
        request(3, 99),
        request(4, 10, deadline_ns=now + 60_000_000_000),
        request(5, 10, rows=2),
        Submission(6, ARENA_BYTES, 0, 10),
        Submission(7, 0, ARENA_BYTES - 60, 10),
        Submission(8, 8, 64, 10),
        Submission(9, (1 << 64) - 64, 64, 10),
    )
    assert rig.take() == (1, 10, 2, 2, 512, 640)
    ended = {each.ticket: each.status for each in rig.server.take()}
    assert ended == {1: EXPIRED, 2: OK, 4: OK} | dict.fromkeys((3, 5, 6, 7, 8, 9), HAND_OVER)
    assert rig.take() is None


def test_what_was_withdrawn_does_not_run_unless_it_has_begun(rig: Rig) -> None:
    rig.submit(*(request(ticket, 10) for ticket in range(7)))
    for number in (1, 2):
        rig.server.withdraw(number)
    assert rig.ring.take() == (1, 10, 4, 4, 0, 128)
    assert [(each.ticket, each.status) for each in rig.server.take()] == [(1, WITHDRAWN), (2, WITHDRAWN)]
    for number in (3, 6):
        rig.server.withdraw(number)
    rig.ring.complete(OK, 1, 2, 3)
    assert [(each.ticket, each.status) for each in rig.server.take()] == [(0, OK), (3, OK), (4, OK), (5, OK)]
    calls: list[str] = []
    rig.ring.keep_alone(1, 10, (6 * 256, 6 * 256 + 128), lambda: calls.append("run"))
    assert rig.ring.serve(0) == NOTHING
    assert [(each.ticket, each.status) for each in rig.server.take()] == [(6, WITHDRAWN)]
    assert not calls
    rig.submit(request(6, 10))
    assert rig.ring.serve(0) == NOTHING
    assert calls == ["run"], "the next in the same place"


def test_plans_are_forgotten(rig: Rig) -> None:
    rig.ring.drop_template(10)
    rig.ring.drop_template(10)
    rig.submit(request(1, 10), request(2, 11))
    assert rig.take() == (1, 11, 1, 1, 512, 640)
    assert rig.server.take()[0][:2] == (1, HAND_OVER)


def test_plans_that_cannot_be_are_refused(rig: Rig) -> None:
    for plan, kind, rows, sizes, text in (
        (10, 1, 1, [ROW, 8], "known already"),
        (13, 1, 1, [ROW, 9], "are not those of its kind"),
        (13, 9, 0, [ROW], "0 rows"),
        (13, 9, 5, [ROW], "no multiple"),
    ):
        with pytest.raises(ValueError, match=text):
            rig.ring.add_template(plan, kind, rows, 4, sizes, [OUT * rows])


def test_kept_runs_are_called_until_one_is_missing(rig: Rig) -> None:
    calls: list[str] = []
    rig.ring.keep_alone(1, 10, (256, 384), lambda: calls.append("alone"))
    rig.submit(request(1, 10), request(2, 20), request(3, 20))
    assert rig.ring.serve(0) == LEFT
    assert calls == ["alone"]
    with pytest.raises(RuntimeError, match="has not been completed"):
        rig.ring.serve(0)
    assert rig.ring.take() == (2, 20, 2, 2, 512, 640)
    with pytest.raises(RuntimeError, match="has not been completed"):
        rig.ring.take()
    rig.ring.complete(OK, 1, 2, 3)
    assert rig.ring.serve(0) == NOTHING
    assert [(each.ticket, each.status) for each in rig.server.take()] == [(1, OK), (2, OK), (3, OK)]
    rig.submit(request(1, 10), request(4, 20))
    assert (rig.ring.serve_one(), rig.ring.serve_one()) == (RAN, LEFT)
    assert rig.take() == (2, 20, 1, 1, 1024, 1152)
    assert rig.ring.serve_one() == NOTHING
    rig.server.take()
    rig.server.submit(request(1, 10))
    assert rig.ring.serve_one() == NOTHING, "mail goes first"
    assert (rig.ring.serve(1000), rig.ring.serve(0), len(calls)) == (MAIL, NOTHING, 3)


def test_a_kept_batch_is_gathered_run_and_scattered(rig: Rig) -> None:
    gathered, outputs = ctypes.create_string_buffer(128), ctypes.create_string_buffer(64)
    inside: list[int] = []

    def run() -> None:
        begin = time.monotonic_ns()
        outputs.raw = bytes(each + 1 for each in gathered.raw[:64])
        inside.append(time.monotonic_ns() - begin)

    rig.ring.keep_merged(1, 2, (ctypes.addressof(gathered), 128), (ctypes.addressof(outputs), 64), run)
    rig.arena[256:268], rig.arena[512:524] = b"a" * 12, b"c" * 12
    rig.submit(request(1, 10), request(2, 11))
    begin = time.monotonic_ns()
    assert rig.ring.serve(0) == NOTHING
    around = time.monotonic_ns() - begin
    assert (rig.arena[384:388], rig.arena[640:644]) == (b"bbbb", b"bbbb")
    assert gathered.raw[:24] == b"a" * 12 + b"c" * 12
    first, second = rig.server.take()
    assert (first.ticket, second.ticket, first.batch_rows, first.first, second.first) == (1, 2, 2, 1, 0)
    assert first[1:3] + first[4:] == second[1:3] + second[4:]
    assert first.run_ns >= inside[0]
    assert first.gather_ns + first.run_ns + first.scatter_ns <= around
    rig.ring.keep_merged(1, 2, (ctypes.addressof(gathered), 15), (ctypes.addressof(outputs), 64), run)
    rig.submit(request(1, 10), request(2, 11))
    assert rig.ring.serve(0) == NOTHING
    assert [each.status for each in rig.server.take()] == [HAND_OVER] * 2


def test_a_run_that_raises_is_handed_over_and_its_kind_dropped(rig: Rig) -> None:
    def fail() -> None:
        with pytest.raises(RuntimeError, match="in use"):
            rig.ring.serve(0)
        raise OSError("broken")

    rig.ring.keep_alone(1, 10, (256, 384), fail)
    rig.ring.keep_alone(1, 10, (512, 640), lambda: None)
    rig.ring.keep_merged(1, 2, (0, 0), (0, 0), lambda: None)
    rig.ring.keep_alone(2, 20, (768, 896), lambda: None)
    rig.submit(request(1, 10))
    assert rig.ring.serve(0) == NOTHING
    rig.submit(request(3, 20), request(2, 10))
    assert rig.ring.serve(0) == LEFT
    rig.take()
    rig.submit(request(1, 10), request(2, 10))
    assert rig.ring.serve(0) == LEFT
    rig.take()
    statuses = [(each.ticket, each.status) for each in rig.server.take()]
    assert statuses == [(1, HAND_OVER), (3, OK), (2, OK), (1, OK), (2, OK)]


def test_runs_are_dropped_while_another_thread_serves(rig: Rig) -> None:
    rig.ring.keep_alone(1, 10, (256, 384), lambda: None)
    rig.ring.keep_alone(2, 20, (512, 640), lambda: None)
    told: list[int] = []
    serving = threading.Thread(target=lambda: told.append(rig.ring.serve(10_000)))
    serving.start()
    rig.ring.drop_runs(1)
    rig.server.submit(request(2, 20))
    serving.join()
    assert told == [MAIL]
    assert rig.ring.serve(0) == NOTHING
    rig.ring.drop_runs()
    rig.submit(request(2, 20))
    assert rig.ring.serve(0) == LEFT


def test_what_is_kept_is_told(rig: Rig) -> None:
    keep_alone, keep_merged = rig.ring.keep_alone, rig.ring.keep_merged
    assert keep_alone(1, 10, (256, 384), lambda: None) == 1
    assert keep_alone(1, 10, (256, 384), lambda: None) == 1, "in the place of the one before"
    assert keep_merged(1, 2, (0, 0), (0, 0), lambda: None) == 2
    assert keep_alone(2, 20, (256, 384), lambda: None) == 3
    rig.ring.drop_runs(1)
    assert keep_merged(2, 2, (0, 0), (0, 0), lambda: None) == 2


def test_a_forgotten_plan_takes_its_runs_along_and_those_of_batches_of_its_kind(rig: Rig) -> None:
    def keep() -> int:
        rig.ring.keep_alone(2, 20, (512, 640), lambda: None)
        rig.ring.keep_merged(2, 2, (0, 0), (0, 0), lambda: None)
        return rig.ring.keep_alone(1, 11, (256, 384), lambda: None)

    rig.ring.keep_alone(1, 10, (256, 384), lambda: None)
    rig.ring.keep_alone(1, 10, (512, 640), lambda: None)
    rig.ring.keep_merged(1, 2, (0, 0), (0, 0), lambda: None)
    assert keep() == 6
    rig.ring.drop_template(99)
    assert keep() == 6
    rig.ring.drop_template(10)
    assert keep() == 3
    rig.submit(request(1, 11), request(2, 20))
    assert rig.ring.serve(0) == NOTHING, "both runs are still called"


def test_the_ring_goes_round(rig: Rig) -> None:
    for start in range(0, 5000, 700):
        rig.submit(*(Submission(ticket, 0, 64, 10) for ticket in range(start, start + 700)))
        while rig.take() is not None:
            pass
        assert [each.ticket for each in rig.server.take()] == list(range(start, start + 700))


def test_the_doorbell_rings_only_when_it_was_asked_to(rig: Rig) -> None:
    rig.submit(request(1, 10))
    rig.take()
    with pytest.raises(BlockingIOError):
        os.read(rig.doorbell, 8)
    rig.server.take()
    rig.submit(request(2, 10))
    ended = rig.server.take()
    assert ended == []
    rig.server.arm()
    rig.take()
    assert os.read(rig.doorbell, 8) == (1).to_bytes(8, "little")


def test_other_things_than_a_lane_are_refused(rig: Rig) -> None:
    arena = memoryview(rig.arena)
    with pytest.raises(OSError, match="not the memory of a lane"):
        WorkerRing(rig.doorbell, rig.doorbell, arena)
    with pytest.raises(OSError, match=r"(?i)bad file descriptor"):
        WorkerRing(-1, rig.doorbell, arena)
    with pytest.raises(OSError, match="invalid input"):
        WorkerRing(rig.memory.fileno(), -1, arena)
    with pytest.raises(ValueError, match="writable"):
        WorkerRing(rig.memory.fileno(), rig.doorbell, arena.toreadonly())
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(rig.memory.fileno(), 0)
