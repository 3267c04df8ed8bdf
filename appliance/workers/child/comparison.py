"""Run a version's engine and its session in turns, to find out whether the engine is worth having.

Both have the same request, each in memory that its device copies from and to by itself, as batches have it. The one
that goes first changes from pair to pair. What others have of the processor meanwhile is not counted (Stopwatch), and
what they have of the device falls on both. It says how long runs take, and judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from appliance.domain.errors import ApplianceError
from appliance.domain.side_by_side import SIZES_MAX, SideBySide, of_pairs
from appliance.runtimes.runtime import Place, batch_sizes, region_maker
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.measurement import PRIME_RUNS, Stopwatch, request_of
from appliance.workers.child.proof import Golden, run_nowhere
from appliance.workers.child.tensors import Scratch, Tensor, lay_out, span

PAIRS_MAX: Final = 1001
"""Of short runs, which differ most from one another: so many that their middle moves by a fiftieth."""
PAIRS_MIN: Final = 41
SIZE_BUDGET_NS: Final = 250_000_000
PAIRS_LEAST: Final = 5
"""Of runs so long that what disturbs them is little of them."""
LONG_BUDGET_NS: Final = 20_000_000_000
"""For one size, and for all after the first."""
REQUEST_BYTES_MAX: Final = 256 << 20
"""Of inputs and outputs."""
ROWS_MAX: Final = 4096
"""No front end has so many requests at once as would make a larger batch, and what is learned of this one holds for a
request that brings more rows."""
SIDES: Final = 2


class _Runner:
    """A loaded model with one request in memory of its own."""

    def __init__(self, model: LoadedModel, tensors: Sequence[Tensor | None]) -> None:
        make = region_maker(model.session)
        self._session = model.session
        self._region, self._feeds = lay_out(tensors, make)
        self._wanted = tuple(range(len(model.version.outputs)))
        room = span(run_nowhere(model, self._region, self._feeds).sizes)
        self._place = Place(Scratch().at_least(room, make), 0, room)
        self.out_bytes = room

    def run(self) -> None:
        self._session.run(self._region, self._feeds, self._wanted, self._place)


def compare(
    engine: LoadedModel, session: LoadedModel, golden: Golden | None, room_bytes: int = 0
) -> tuple[SideBySide, ...]:
    """Both at some batch sizes, with the first case of the golden set or with zeros, one row first; as many as
    LONG_BUDGET_NS allows. A size whose request is too large, or for which the device has no room in ``room_bytes``
    (0: nothing bounds it), is left out. One that is refused, as there is no memory for it, is left out with those after
    it. Both gave answers before."""
    found: list[SideBySide] = []
    bounds = _Bounds(room_bytes)
    started = time.monotonic_ns()
    for rows in _sizes(engine, session):
        if found and time.monotonic_ns() - started > LONG_BUDGET_NS:
            break
        if not bounds.allow(rows):
            continue
        _, tensors = request_of(engine.version, golden, rows)
        if tensors is None:
            continue
        in_bytes = sum(len(each.raw) for each in tensors if each is not None)
        if in_bytes > REQUEST_BYTES_MAX:
            continue
        try:
            one, other = _Runner(engine, tensors), _Runner(session, tensors)
            found.append(of_pairs(rows, _pairs(one, other)))
        except ApplianceError:
            break
        bounds.ran(rows, in_bytes + one.out_bytes)
    return tuple(found)


class _Bounds:
    """Which sizes have room. Each of both keeps the tensors of each size that it ran on the device; of those of the
    first sizes is known what a row has."""

    def __init__(self, room_bytes: int) -> None:
        self._left_bytes = room_bytes or 1 << 62
        self._row_bytes = 0

    def allow(self, rows: int) -> bool:
        """Whether a request of so many is no larger than it may be, and has room."""
        needed = rows * self._row_bytes
        return needed <= REQUEST_BYTES_MAX and SIDES * needed <= self._left_bytes

    def ran(self, rows: int, nbytes: int) -> None:
        """A request of so many rows has so many bytes of inputs and outputs."""
        self._row_bytes = max(self._row_bytes, nbytes // rows)
        self._left_bytes -= SIDES * nbytes


def _sizes(engine: LoadedModel, session: LoadedModel) -> tuple[int, ...]:
    """One row, the largest batch, those that are preferred, and others between them: those that matter most first.
    Where both fill batches up to the same sizes, it is those alone that ever run, and each counts once."""
    version, filled = engine.version, batch_sizes(engine.session)
    if filled != batch_sizes(session.session):
        filled = ()
    largest = min(max(version.max_batch_size, 1), ROWS_MAX)
    preferred = () if version.batching is None else version.batching.preferred_batch_size
    sizes = (1, largest, *(size for size in preferred if 0 < size <= largest), *_halves(largest))
    run = dict.fromkeys(next((each for each in filled if each >= rows), rows) for rows in sizes)
    return tuple(run)[:SIZES_MAX]


def _halves(largest: int) -> Iterator[int]:
    while (largest := largest // 2) > 1:
        yield largest


def _pairs(engine: _Runner, session: _Runner) -> list[tuple[int, int]]:
    """Nanoseconds of runs of both, pair by pair, after some that learn."""
    for _ in range(PRIME_RUNS):
        engine.run()
        session.run()
    taken: list[tuple[int, int]] = []
    spent = 0
    with Stopwatch() as watch:
        while len(taken) < PAIRS_MAX:
            first, second = (engine, session) if len(taken) % 2 else (session, engine)
            times = _time(watch, first), _time(watch, second)
            taken.append(times if first is engine else times[::-1])
            spent += sum(times)
            enough = PAIRS_LEAST if spent > LONG_BUDGET_NS else PAIRS_MIN
            if len(taken) >= enough and spent > SIZE_BUDGET_NS:
                break
    return taken


def _time(watch: Stopwatch, runner: _Runner) -> int:
    watch.start()
    runner.run()
    return watch.stop()
