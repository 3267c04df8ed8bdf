"""Batches that a device runs by itself: what is gathered and begun while it does, and how they end."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator

import pytest

from native.tests.test_worker_ring import LEFT, MAIL, NOTHING, OUT, RAN, ROW, Rig, request
from tests.workers.server_double import EXPIRED, HAND_OVER, OK, Submission

MAX_ROWS = 4
STARTS = [0, 64]
PLACE = 256


class Device:
    """Runs batches one after the other, each when it is let: ``log`` is what it was told, ``meanwhile`` is called each
    time somebody asks whether the first has ended, and ends it by returning true."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.log: list[str] = []
        self.sources = [ctypes.create_string_buffer(PLACE) for _ in range(2)]
        self.outputs = [ctypes.create_string_buffer(64) for _ in range(2)]
        self.meanwhile: Callable[[], bool] = lambda: True
        self.fails = ""

    def keep(self, kind: int, rows: range) -> None:
        """Have it run batches of these rows."""
        first, second = map(ctypes.addressof, self.sources)
        self.rig.ring.keep_turns(kind, MAX_ROWS, STARTS, PLACE, (first, second))
        for each in rows:
            for turn in (0, 1):
                place = ctypes.addressof(self.outputs[turn]), 64
                self.rig.ring.keep_overlapped(kind, each, turn, place, Run(self, turn, each))


class Run:
    """Writes the first four bytes of each row, one up, as its output."""

    def __init__(self, device: Device, turn: int, rows: int) -> None:
        self.device = device
        self.turn = turn
        self.rows = rows

    def begin(self) -> None:
        self._do("begin")

    def ended(self) -> bool:
        return self.device.meanwhile()

    def finish(self) -> None:
        self._do("finish")
        given = self.device.sources[self.turn].raw
        rows = (given[ROW * row : ROW * row + OUT] for row in range(self.rows))
        output = bytes(each + 1 for row in rows for each in row)
        ctypes.memmove(self.device.outputs[self.turn], output, len(output))

    def _do(self, what: str) -> None:
        said = f"{what} {self.rows} at {self.turn}"
        self.device.log.append(said)
        if self.device.fails == said:
            raise OSError("broken")


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    os.close(rig.doorbell)


@pytest.fixture
def device(rig: Rig) -> Iterator[Device]:
    device = Device(rig)
    device.keep(1, range(2, 5))
    yield device
    rig.ring.drop_runs(None)  # they have the ring, of which Python's collector knows nothing


def filled(rig: Rig, *tickets: int) -> list[Submission]:
    """Requests of a row each, whose first input is their ticket over and over, and the second its complement."""
    for ticket in tickets:
        start = ticket * 256
        rig.arena[start : start + ROW] = bytes([ticket]) * ROW
        rig.arena[start + 64 : start + 72] = bytes([255 - ticket]) * 8
    return [request(ticket, 10) for ticket in tickets]


def answers(rig: Rig, *tickets: int) -> list[int]:
    return [rig.arena[ticket * 256 + 128] for ticket in tickets]


def ended(rig: Rig) -> list[tuple[int, int, int]]:
    return [(each.ticket, each.status, each.batch_rows) for each in rig.server.take()]


def test_a_batch_that_can_take_no_more_is_begun_before_the_one_before_has_ended(
    rig: Rig, device: Device
) -> None:
    rig.submit(*filled(rig, *range(1, 13)))
    assert rig.ring.serve(0) == NOTHING
    assert device.log == [
        "begin 4 at 0",
        "begin 4 at 1",
        "finish 4 at 0",
        "begin 4 at 0",
        "finish 4 at 1",
        "finish 4 at 0",
    ]
    assert ended(rig) == [(ticket, OK, 4) for ticket in range(1, 13)]
    assert answers(rig, *range(1, 13)) == list(range(2, 14))


def test_both_inputs_of_each_row_lie_where_those_of_the_largest_batch_would(rig: Rig, device: Device) -> None:
    rig.submit(*filled(rig, 1, 2, 3, 4, 5, 6, 7))
    assert rig.ring.serve(0) == NOTHING
    rows = [bytes([ticket]) * ROW for ticket in (5, 6, 7)]
    assert device.sources[1].raw[: 3 * ROW] == b"".join(rows)
    assert device.sources[1].raw[64 : 64 + 24] == b"".join(bytes([255 - each]) * 8 for each in (5, 6, 7))


def test_a_batch_that_could_grow_is_begun_when_the_one_before_has_ended(rig: Rig, device: Device) -> None:
    def meanwhile() -> bool:
        if not later:
            return True
        assert device.sources[1].raw[0] == 5, "what is there is gathered while another runs"
        rig.server.add(later.pop())
        return False

    later = filled(rig, 7)
    device.meanwhile = meanwhile
    rig.submit(*filled(rig, 1, 2, 3, 4, 5, 6))
    assert rig.ring.serve(0) == NOTHING
    assert device.log == ["begin 4 at 0", "finish 4 at 0", "begin 3 at 1", "finish 3 at 1"]
    assert ended(rig) == [(ticket, OK, 4 if ticket < 5 else 3) for ticket in range(1, 8)]
    assert answers(rig, 5, 6, 7) == [6, 7, 8]


def test_a_batch_that_fills_up_while_another_runs_is_begun_at_once(rig: Rig, device: Device) -> None:
    def meanwhile() -> bool:
        if later:
            rig.server.add(*later)
            later.clear()
            return False
        return len(device.log) > 1

    later = filled(rig, 6, 7, 8)
    device.meanwhile = meanwhile
    rig.submit(*filled(rig, 1, 2, 3, 4, 5))
    assert rig.ring.serve(0) == NOTHING
    assert device.log == ["begin 4 at 0", "begin 4 at 1", "finish 4 at 0", "finish 4 at 1"]


def test_mail_goes_first_once_what_was_taken_has_run(rig: Rig, device: Device) -> None:
    def meanwhile() -> bool:
        if not mailed:
            mailed.append(True)
            rig.memory.mail()
        rig.server.add(*(filled(rig, 20 + len(rounds))))
        rounds.append(len(rounds))
        return len(rounds) > 3

    mailed: list[bool] = []
    rounds: list[int] = []
    device.meanwhile = meanwhile
    rig.submit(*filled(rig, 1, 2, 3, 4, 5, 6))
    assert rig.ring.serve(0) == MAIL
    assert device.log == ["begin 4 at 0", "finish 4 at 0", "begin 2 at 1", "finish 2 at 1"]
    assert [ticket for ticket, _, _ in ended(rig)] == [1, 2, 3, 4, 5, 6]


def test_one_batch_runs_alone_where_one_was_asked_for(rig: Rig, device: Device) -> None:
    rig.submit(*filled(rig, *range(1, 9)))
    assert rig.ring.serve_one() == RAN
    assert device.log == ["begin 4 at 0", "finish 4 at 0"]
    assert [ticket for ticket, _, _ in ended(rig)] == [1, 2, 3, 4]
    assert rig.ring.serve_one() == RAN


def test_a_batch_for_which_no_run_is_kept_is_left_once_the_one_before_has_ended(rig: Rig) -> None:
    device = Device(rig)
    device.keep(1, range(4, 5))
    rig.submit(*filled(rig, 1, 2, 3, 4, 5, 6))
    assert rig.ring.serve(0) == LEFT
    assert device.log == ["begin 4 at 0", "finish 4 at 0"]
    assert rig.ring.take() == (1, 10, 2, 2, 5 * 256, 5 * 256 + 128)
    rig.ring.complete(OK, 1, 2, 3)
    assert [ticket for ticket, _, _ in ended(rig)] == [1, 2, 3, 4, 5, 6]


def test_another_kind_waits_until_the_device_is_free(rig: Rig, device: Device) -> None:
    device.keep(2, range(0))
    calls: list[str] = []
    rig.ring.keep_alone(1, 10, (9 * 256, 9 * 256 + 128), lambda: calls.append("alone"))
    rig.ring.keep_merged(2, 2, (ctypes.addressof(device.sources[0]), 128), (0, 64), lambda: 1 / 0)
    rig.submit(*filled(rig, 1, 2, 3), request(4, 20), request(5, 20), *filled(rig, 9))
    assert rig.ring.serve(0) == NOTHING
    assert device.log == ["begin 3 at 0", "finish 3 at 0"]
    assert calls == ["alone"]
    assert [(ticket, status) for ticket, status, _ in ended(rig)] == [
        *((ticket, OK) for ticket in (1, 2, 3)),
        (4, HAND_OVER),
        (5, HAND_OVER),
        (9, OK),
    ]


@pytest.mark.parametrize(
    ("fails", "over"),
    [
        ("begin 4 at 0", range(1, 5)),
        ("finish 4 at 0", range(1, 5)),
        ("begin 4 at 1", range(5, 9)),
        ("finish 4 at 1", range(5, 9)),
    ],
)
def test_a_run_that_raises_is_handed_over_and_no_other(
    rig: Rig, device: Device, fails: str, over: range
) -> None:
    device.fails = fails
    rig.submit(*filled(rig, *range(1, 9)))
    assert rig.ring.serve(0) == NOTHING
    done = {ticket: status for ticket, status, _ in ended(rig)}
    assert done == {ticket: HAND_OVER if ticket in over else OK for ticket in range(1, 9)}
    rig.submit(*filled(rig, 1, 2, 3, 4))
    assert rig.ring.serve(0) == LEFT, "what was kept for the kind is not called again"


def test_places_that_are_too_small_have_the_batch_handed_over(rig: Rig, device: Device) -> None:
    first, second = map(ctypes.addressof, device.sources)
    rig.ring.keep_turns(1, MAX_ROWS, STARTS, 70, (first, second))
    rig.submit(*filled(rig, 1, 2))
    assert rig.ring.serve(0) == NOTHING
    assert ended(rig) == [(1, HAND_OVER, 2), (2, HAND_OVER, 2)]
    assert device.log == []


def test_the_time_behind_another_batch_is_no_time_of_its_run(rig: Rig, device: Device) -> None:
    def meanwhile() -> bool:
        return len(device.log) > 2 or (len(device.log) == 2 and time.monotonic_ns() > start + 50_000_000)

    start = time.monotonic_ns()
    device.meanwhile = meanwhile
    rig.submit(*filled(rig, *range(1, 9)))
    assert rig.ring.serve(0) == NOTHING
    first, *_, last = rig.server.take()
    assert first.run_ns + last.run_ns <= time.monotonic_ns() - start
    assert last.started_ns >= first.started_ns + first.run_ns


def test_what_would_be_late_is_not_taken_while_another_batch_runs(rig: Rig, device: Device) -> None:
    """It is judged when the device is free: run, if that came sooner than the last time, else told to be late."""

    def run_for(duration_ns: int) -> None:
        since = time.monotonic_ns()
        device.meanwhile = lambda: time.monotonic_ns() > since + duration_ns or len(device.log) != 1
        late = since + duration_ns // 2
        rig.submit(*filled(rig, 1, 2, 3, 4), request(5, 10, deadline_ns=late), *filled(rig, 6, 7))
        assert rig.ring.serve(0) == NOTHING

    run_for(60_000_000)
    assert [status for _, status, _ in ended(rig)] == [OK] * 7, "nothing was known of how long it would take"
    device.log.clear()
    run_for(60_000_000)
    assert {ticket: status for ticket, status, _ in ended(rig)} == {
        **dict.fromkeys((1, 2, 3, 4, 6, 7), OK), 5: EXPIRED,
    }  # fmt: skip
    assert device.log == ["begin 4 at 0", "finish 4 at 0", "begin 2 at 1", "finish 2 at 1"]


def test_runs_are_dropped_with_their_kind(rig: Rig, device: Device) -> None:
    rig.ring.drop_template(10)
    rig.submit(request(1, 11), request(2, 11))
    assert rig.ring.serve(0) == LEFT
