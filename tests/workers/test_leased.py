"""What a worker does with the batches of its ring; the ring itself is a double here."""

from __future__ import annotations

import ctypes
import mmap
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import pytest

from appliance.domain.errors import RunFailed
from appliance.domain.tensor import Datatype, aligned
from appliance.runtimes.runtime import Feed, Place, Produced, Region
from appliance.workers.child import leased
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.leased import HAND_OVER, LEFT, MAIL, OK, SUBMISSIONS, LeasedRuns
from appliance.workers.child.tensors import region_of
from appliance.workers.port import Learn
from tests.runtimes.fake import FakeSession
from tests.workers.bench import fake, spec, version_of

MODEL, KIND = 7, 5
ROW = 16  # bytes of a row of x and of y
SLOT = 256


class Request(NamedTuple):
    ticket: int
    plan: int
    offset: int
    out_offset: int


class RingDouble:
    """Batches that are laid out in ``queue``, one after the other."""

    def __init__(self, arena: Region) -> None:
        self.arena = arena
        self.queue: deque[list[Request]] = deque()
        self.ended: list[tuple[int, int]] = []
        self.plans: dict[int, Learn] = {}
        self.max_rows: dict[int, int] = {}
        self.batch: list[Request] = []
        self.mail = self.left = False
        self.alone: dict[tuple[int, int, int], Callable[[], object]] = {}
        self.merged: dict[tuple[int, int], tuple[tuple[int, int], tuple[int, int], Callable[[], object]]] = {}

    def add_template(
        self,
        template: int,
        kind: int,
        rows: int,
        max_rows: int,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
    ) -> None:
        if rows < 1:
            raise ValueError("no rows")
        self.plans[template] = lesson(template, rows)
        self.max_rows[template] = max_rows
        assert (tuple(input_sizes), tuple(output_sizes)) == self.plans[template][6:10:3]

    def drop_template(self, template: int) -> None:
        if self.plans.pop(template, None) is not None:
            self.alone = {key: run for key, run in self.alone.items() if key[0] != template}
            self.merged.clear()

    def wait(self, timeout_ms: int) -> int:
        told = MAIL if self.mail else 0
        self.mail = False
        return told | (SUBMISSIONS if self.queue else 0)

    def take(self) -> tuple[int, int, int, int, int, int] | None:
        assert self.left
        first = self.batch[0]
        return KIND, first.plan, self.rows(), len(self.batch), first.offset, first.out_offset

    def rows(self) -> int:
        return sum(self.plans[each.plan].rows for each in self.batch)

    def serve(self, timeout_ms: int) -> int:
        while told := self.serve_one():
            if told == LEFT:
                return LEFT
        return self.wait(timeout_ms) & MAIL

    def serve_one(self) -> int:
        assert not self.batch
        if self.mail or not self.queue:
            return 0
        self.batch = self.queue.popleft()
        first = self.batch[0]
        try:
            if len(self.batch) == 1:
                self.alone[first.plan, first.offset, first.out_offset]()
            else:
                source, place, run = self.merged[KIND, self.rows()]
                self.gather(*source)
                run()
                self.scatter(*place)
        except KeyError:
            self.left = True
            return LEFT
        except Exception:  # noqa: BLE001 - as the ring does
            self.drop_runs(KIND)
            self.complete(HAND_OVER, 0, 0, 0)
        else:
            self.complete(OK, 0, 0, 0)
        return 4

    def keep_alone(self, kind: int, plan: int, at: tuple[int, int], run: Callable[[], object]) -> int:
        assert kind == KIND
        self.alone[plan, *at] = run
        return len(self.alone) + len(self.merged)

    def keep_merged(
        self, kind: int, rows: int, source: tuple[int, int], place: tuple[int, int], run: Callable[[], object]
    ) -> int:
        self.merged[kind, rows] = source, place, run
        return len(self.alone) + len(self.merged)

    def drop_runs(self, kind: int | None = None) -> None:
        assert kind in (None, KIND)
        self.alone.clear()
        self.merged.clear()

    def gather(self, address: int, nbytes: int) -> None:
        self._copy(address, nbytes, lambda each, there, here, size: ctypes.memmove(there, here, size), 1)

    def scatter(self, address: int, nbytes: int) -> None:
        self._copy(address, nbytes, lambda each, there, here, size: ctypes.memmove(here, there, size), 2)

    def _copy(
        self, address: int, nbytes: int, move: Callable[[Request, int, int, int], object], side: int
    ) -> None:
        position = 0
        for each in self.batch:
            size = self.plans[each.plan].rows * ROW
            move(
                each, address + position, self.arena.address + (each.offset, each.out_offset)[side - 1], size
            )
            position += size
        assert aligned(position) == nbytes

    def complete(self, status: int, gather_ns: int, run_ns: int, scatter_ns: int) -> None:
        assert self.batch
        assert min(gather_ns, run_ns, scatter_ns) >= 0
        self.ended += [(each.ticket, status) for each in self.batch]
        self.batch, self.left = [], False


class CountedSession(FakeSession):
    """Remembers how it was run. ``odd`` makes outputs of other shapes than were asked for."""

    def __init__(self, mode: str = "identity", **parameters: object) -> None:
        super().__init__(fake(mode, **parameters), mode)
        self.odd = False
        self.runs = 0
        self.preparations = 0
        self.refuses = False

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        self.runs += 1
        produced = super().run(source, feeds, wanted, place)
        return (
            produced._replace(shapes=tuple((9, *each[1:]) for each in produced.shapes))
            if self.odd
            else produced
        )

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        self.preparations += 1
        return None if self.refuses else super().prepared(source, feeds, wanted, place)


def lesson(plan: int, rows: int = 1, *, model: int = MODEL, max_rows: int = 8) -> Learn:
    shape, size = (rows, 4), rows * ROW
    return Learn(plan, model, KIND, rows, max_rows, (shape,), (size,), (0,), (shape,), (size,))


class Rig:
    """A worker's leased side with plans 1 (one row) and 3 (three rows)."""

    def __init__(self, session: CountedSession) -> None:
        self.arena = region_of(mmap.mmap(-1, 64 << 10))
        self.ring = RingDouble(self.arena)
        self.leased = LeasedRuns(cast(Any, self.ring), self.arena)
        self.session = session
        self.leased.add(MODEL, LoadedModel(version=fake(), session=session))
        for plan in (1, 3):
            self.leased.learn(lesson(plan, plan))
        self._tickets = 0

    def request(self, plan: int, slot: int, value: int) -> Request:
        self._tickets += 1
        self.arena.view[slot * SLOT : (slot + 1) * SLOT] = bytes(SLOT)
        self.arena.view[slot * SLOT : slot * SLOT + plan * ROW] = bytes([value]) * (plan * ROW)
        return Request(self._tickets, plan, slot * SLOT, slot * SLOT + 128)

    def output(self, request: Request) -> bytes:
        return bytes(self.arena.view[request.out_offset : request.out_offset + request.plan * ROW])

    def serve(self, *batches: list[Request]) -> list[int]:
        """The status of every request of these batches."""
        self.ring.queue += batches
        self.ring.ended.clear()
        self.leased.serve(0)
        assert [ticket for ticket, _ in self.ring.ended] == [
            each.ticket for batch in batches for each in batch
        ]
        return [status for _, status in self.ring.ended]


def test_a_request_alone_runs_in_its_place_and_is_prepared_once_for_each_place() -> None:
    rig = Rig(CountedSession())
    for value in range(1, 5):
        for slot in (0, 3):
            request = rig.request(3, slot, value)
            assert rig.serve([request]) == [OK]
            assert rig.output(request) == bytes([value]) * 48
    assert (rig.session.preparations, rig.session.runs) == (2, 8)


def test_batches_are_prepared_once_for_each_number_of_rows() -> None:
    rig = Rig(CountedSession())
    for value in range(1, 4):
        for plans in ((1, 1), (1, 3), (3, 1), (1, 1, 1, 3)):
            batch = [rig.request(plan, slot, value + slot) for slot, plan in enumerate(plans)]
            assert rig.serve(batch) == [OK] * len(plans)
            assert [rig.output(each) for each in batch] == [
                bytes([value + slot]) * (plan * ROW) for slot, plan in enumerate(plans)
            ]
    assert rig.session.preparations == 3


def test_a_session_that_prepares_nothing_is_run_each_time() -> None:
    session = CountedSession()
    session.refuses = True
    rig = Rig(session)
    for value in range(1, 4):
        one, *two = (rig.request(1, slot, value) for slot in range(3))
        assert rig.serve([one], two) == [OK] * 3
        assert {rig.output(each) for each in (one, *two)} == {bytes([value]) * ROW}


@pytest.mark.parametrize("batch", [1, 3])
def test_outputs_of_other_shapes_than_were_taught_are_handed_over(batch: int) -> None:
    rig = Rig(CountedSession())
    rig.session.odd = True
    for _ in range(2):
        assert rig.serve([rig.request(1, slot, 1) for slot in range(batch)]) == [HAND_OVER] * batch
    rig.session.odd = False
    assert rig.serve([rig.request(1, slot, 1) for slot in range(batch)]) == [OK] * batch


@pytest.mark.parametrize("batch", [1, 3])
def test_a_failing_batch_is_handed_over_and_what_was_prepared_is_not_used_again(batch: int) -> None:
    rig = Rig(CountedSession("fail", magic=0x66))

    def requests(value: int) -> list[Request]:
        good = [rig.request(1, slot, 1) for slot in range(batch - 1)]
        return [*good, rig.request(1, batch - 1, value)]

    assert rig.serve(requests(1), requests(2)) == [OK] * 2 * batch
    assert rig.session.preparations == 1
    bad = requests(0x66)
    assert rig.serve(bad) == [HAND_OVER] * batch
    assert rig.serve(requests(1)) == [OK] * batch
    assert rig.session.preparations == 2


def test_a_model_that_is_dropped_is_handed_over_and_never_run_again() -> None:
    rig = Rig(CountedSession())
    batches = [[rig.request(1, 0, 1)], [rig.request(1, 1, 1), rig.request(1, 2, 1)]]
    assert rig.serve(*batches) == [OK] * 3
    rig.leased.drop(MODEL)
    runs = rig.session.runs
    assert rig.serve(*batches) == [HAND_OVER] * 3
    assert rig.session.runs == runs
    rig.leased.add(MODEL, LoadedModel(version=fake(), session=CountedSession()))
    assert rig.serve(*batches) == [OK] * 3


def test_forgotten_plans_leave_nothing_behind() -> None:
    rig = Rig(CountedSession())
    assert rig.serve([rig.request(1, 0, 1)], [rig.request(1, 0, 1), rig.request(3, 1, 1)]) == [OK] * 3
    rig.leased.forget((1, 99))
    assert set(rig.ring.plans) == {3}
    rig.leased.learn(lesson(1))
    assert rig.serve([rig.request(1, 0, 1)], [rig.request(1, 0, 1), rig.request(3, 1, 1)]) == [OK] * 3
    assert rig.session.preparations == 4


def test_a_plan_that_the_ring_refuses_is_not_known() -> None:
    rig = Rig(CountedSession())
    rig.leased.learn(lesson(4, 0))
    assert 4 not in rig.ring.plans


def test_batches_are_bounded_by_the_memory_they_are_gathered_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased, "SCRATCH_KEPT_BYTES", 5 * 64)
    rig = Rig(CountedSession())
    rig.leased.learn(lesson(5, 5, max_rows=1000))
    rig.leased.learn(lesson(6, 6, max_rows=4))
    assert (rig.ring.max_rows[5], rig.ring.max_rows[6]) == (4 * 64 // ROW, 4)


def test_what_is_prepared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased, "PREPARED_MAX", 4)
    rig = Rig(CountedSession())
    for slot in [*range(10), *range(10)]:
        assert rig.serve([rig.request(1, slot, slot)]) == [OK]
        assert len(rig.ring.alone) <= 4


def test_only_what_is_kept_counts_against_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased, "PREPARED_MAX", 4)
    rig = Rig(CountedSession("fail", magic=0x66))
    for _ in range(5):  # each time as many are dropped as were kept
        assert rig.serve([rig.request(1, 0, 1)], [rig.request(1, 1, 1)]) == [OK] * 2
        assert rig.serve([rig.request(1, 0, 0x66)]) == [HAND_OVER]
    assert rig.serve(*([rig.request(1, slot, 1)] for slot in range(4))) == [OK] * 4
    prepared = rig.session.preparations
    assert rig.serve(*([rig.request(1, slot, 1)] for slot in range(4))) == [OK] * 4
    assert rig.session.preparations == prepared


def test_a_plan_that_is_forgotten_leaves_the_runs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(CountedSession())
    assert rig.serve([rig.request(1, 0, 1)], [rig.request(3, 1, 1)]) == [OK] * 2
    rig.leased.forget((1,))
    assert rig.serve([rig.request(3, 1, 1)]) == [OK]
    assert rig.session.preparations == 2


def test_larger_scratch_memory_ends_what_was_prepared_in_the_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.workers.child.tensors.SCRATCH_FIRST_BYTES", 64)
    rig = Rig(CountedSession())
    for value in range(1, 4):
        for count in (2, 4, 8, 2):
            batch = [rig.request(1, slot, value + slot) for slot in range(count)]
            assert rig.serve(batch) == [OK] * count
            assert [rig.output(each) for each in batch] == [
                bytes([value + slot]) * ROW for slot in range(count)
            ]


def test_serving_ends_for_mail_and_finishing_does_not() -> None:
    rig = Rig(CountedSession())
    rig.ring.queue.append([rig.request(1, 0, 1)])
    rig.ring.mail = True
    rig.leased.serve(0)
    assert rig.ring.ended == []
    rig.leased.finish()
    assert rig.ring.ended == [(1, OK)]


def test_an_optional_input_that_is_left_out_takes_no_room() -> None:
    class Peeking(CountedSession):
        def run(
            self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
        ) -> Produced:
            assert feeds == (None, Feed((1, 4), 512, ROW), None, Feed((1, 4), 576, ROW))
            raise RunFailed("seen")

    arena = region_of(mmap.mmap(-1, 4096))
    ring = RingDouble(arena)
    runs = LeasedRuns(cast(Any, ring), arena)
    inputs = [spec(name, Datatype.FP32, 4, optional=name in "ac") for name in "abcd"]
    runs.add(1, LoadedModel(version=version_of("", inputs, inputs), session=Peeking()))
    shapes = (None, (1, 4), None, (1, 4))
    ring.plans[9] = taught = lesson(9, model=1)._replace(shapes=shapes, sizes=(0, ROW, 0, ROW))
    runs._templates[9] = taught
    ring.queue.append([Request(1, 9, 512, 1024)])
    runs.serve(0)
    assert ring.ended == [(1, HAND_OVER)]
