"""What a worker prepares for batches of its ring that a device runs by itself: with the real ring, on a simulated
device."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.domain.errors import RunFailed
from appliance.domain.tensor import Datatype
from appliance.runtimes.runtime import OverlappedRun, Region
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.leased import LeasedRuns
from appliance.workers.child.tensors import region_of
from appliance.workers.port import Learn
from tests.runtimes.simulated_device import DeviceSession
from tests.workers.bench import spec, version_of
from tests.workers.server_double import OK, ServerDouble, Submission

native = pytest.importorskip("edge_appliance_native", reason="the native front end is not installed")

MODEL, OTHER, KIND, WIDTH, SLOT = 7, 8, 3, 4, 512
ROWS_MAX = 1 << 20


class Session(DeviceSession):
    """Has ``pinnable`` bytes for a piece of pinned memory; counts its runs that were not prepared."""

    pinnable = 1 << 40
    runs = 0
    overlapped = False

    def pin(self, nbytes: int) -> Region:
        if nbytes > self.pinnable:
            raise RunFailed(f"no {nbytes} bytes of pinned memory")
        return super().pin(nbytes)

    def run(self, *given: Any) -> Any:
        self.runs += 1
        return super().run(*given)

    def prepared(self, *given: Any) -> Any:
        run = super().prepared(*given)
        self.overlapped = isinstance(run, OverlappedRun)
        return run


class Rig:
    """A worker's runs, and the front end's end of its lane. Plans are named by their rows."""

    def __init__(self) -> None:
        self.memory = native.LaneMemory()
        self.doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.arena = region_of(mmap.mmap(-1, 64 << 10))
        ring = native.WorkerRing(self.memory.fileno(), self.doorbell, self.arena.view)
        self.server = ServerDouble(self.memory, self.doorbell)
        self.leased = LeasedRuns(ring, self.arena)
        inputs = tuple(spec(name, Datatype.UINT8, WIDTH) for name in "ab")
        version = version_of(
            "", inputs, inputs, runtime="fake", max_batch_size=ROWS_MAX, parameters={"run_ms": "0.1"}
        )
        self.session, self.other = Session(version), Session(version)
        self.leased.add(MODEL, LoadedModel(version=version, session=self.session))
        self.leased.add(OTHER, LoadedModel(version=version, session=self.other))

    def learn(self, *rows: int, model: int = MODEL, max_rows: int = ROWS_MAX) -> None:
        """Those of another model are named by ten more."""
        for each in rows:
            shapes, sizes = ((each, WIDTH),) * 2, (each * WIDTH,) * 2
            plan = each + 10 * (model != MODEL)
            self.leased.learn(
                Learn(plan, model, KIND + model, each, max_rows, shapes, sizes, (0, 1), shapes, sizes)
            )

    def batch(self, rows: int, *tickets: int, model: int = MODEL) -> None:
        """Have requests of so many rows each answered in one batch: of their tickets, and of the complements."""
        for ticket in tickets:
            at = ticket * SLOT
            for place, value in ((at, ticket), (at + 64, 255 - ticket)):
                self.arena.view[place : place + rows * WIDTH] = bytes([value]) * (rows * WIDTH)
        plan = rows + 10 * (model != MODEL)
        self.server.submit(
            *(Submission(each, each * SLOT, each * SLOT + 256, plan, rows) for each in tickets)
        )
        self.leased.serve(0)  # which the mail ends that wakes it
        self.leased.serve(0)
        ended = self.server.take()
        assert [(each.ticket, each.status) for each in ended] == [(each, OK) for each in tickets]
        for ticket in tickets:
            at = ticket * SLOT + 256
            given = [bytes(self.arena.view[place : place + rows * WIDTH]) for place in (at, at + 64)]
            assert given == [bytes([value]) * (rows * WIDTH) for value in (ticket, 255 - ticket)]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    os.close(rig.doorbell)


def test_requests_of_one_row_and_of_several_are_read_where_they_were_gathered(rig: Rig) -> None:
    """Of so small rows the scratch memory takes more where they come several at once, as tensors begin apart."""
    rig.learn(1, 2)
    rig.batch(2, 10, 11)
    rig.batch(1, 20, 21)
    rig.batch(2, 30, 31)
    rig.batch(1, 40, 41)
    assert rig.session.runs == 2, "all others were prepared"


def test_a_worker_that_gets_no_pinned_memory_for_the_largest_batches_runs_them_one_after_the_other(
    rig: Rig,
) -> None:
    rig.session.pinnable = 1 << 20
    rig.learn(1)
    for number in range(3):
        rig.batch(1, 10 + number, 20 + number)
    assert rig.session.runs == 1, "what runs without it is prepared nevertheless"


def test_memory_that_a_session_without_pinned_memory_has_left_is_not_that_of_one_with(rig: Rig) -> None:
    """It would run without overlap for as long as the worker lives."""
    rig.other.pin = None  # type: ignore[method-assign,assignment]
    rig.learn(1, model=OTHER, max_rows=8)
    rig.learn(1, max_rows=8)
    rig.batch(1, 1, 2, model=OTHER)
    for number in range(3):
        rig.batch(1, 10 + number, 20 + number)
        rig.batch(1, 30 + number, 40 + number, model=OTHER)
    assert (rig.session.runs, rig.other.runs) == (1, 2), "once more after its memory went"
    assert rig.session.overlapped
