"""Engine and session in turns: the same request, which of them goes first, and at which batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from appliance.domain.errors import RunFailed
from appliance.domain.model import Batching, ModelVersion
from appliance.domain.side_by_side import SIZES_MAX, SideBySide
from appliance.runtimes.runtime import (
    Feed,
    Place,
    Produced,
    Region,
    Runtime,
    RuntimeSettings,
    Session,
)
from appliance.workers.child import comparison
from appliance.workers.child.comparison import PAIRS_LEAST, PAIRS_MAX, PAIRS_MIN, ROWS_MAX, compare
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.form_builder import Built
from appliance.workers.child.loading import Loader
from appliance.workers.child.measurement import PRIME_RUNS
from tests.domain.sample import make_version

MS = 1_000_000


class Clock:
    """Time that passes while something runs, and no other."""

    now = 0


class Watch:
    """A stopwatch of that clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began = clock, 0

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *problem: object) -> None: ...

    def start(self) -> None:
        self._began = self._clock.now

    def stop(self) -> int:
        return max(self._clock.now - self._began, 1)


class Bench:
    """Two sessions by name, which note what they ran; ``takes`` are nanoseconds of a run by name and rows."""

    def __init__(self, takes: Callable[[str, int], int], largest: int = 4) -> None:
        self.takes = takes
        self.clock = Clock()
        self.ran: list[tuple[str, int]] = []
        self.fails_at = 0
        self.filled: dict[str, tuple[int, ...]] = {}
        """The sizes that each fills batches up to."""
        batching = Batching(preferred_batch_size=(3, 99))
        self.version = replace(make_version("m", 1), max_batch_size=largest, batching=batching)

    def session(self, name: str) -> LoadedModel:
        def run(source: Region, feeds: tuple[Feed, ...], wanted: tuple[int, ...], place: Place) -> Produced:
            rows = feeds[0].shape[0]
            if rows == self.fails_at:
                raise RunFailed("no memory for so many")
            self.ran.append((name, rows))
            self.clock.now += self.takes(name, rows)
            return Produced(((rows, 2),), (8 * rows,), None)

        made = SimpleNamespace(run=run, batch_sizes=self.filled.get(name, ()))
        return LoadedModel(version=self.version, session=cast(Session, made))

    def compare(self, room_bytes: int = 0) -> tuple[SideBySide, ...]:
        return compare(self.session("engine"), self.session("session"), None, room_bytes)


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bench], Bench]:
    """Have a bench measured by its own clock."""

    def use(bench: Bench) -> Bench:
        monkeypatch.setattr(comparison, "Stopwatch", lambda: Watch(bench.clock))
        monkeypatch.setattr("appliance.workers.child.comparison.time.monotonic_ns", lambda: bench.clock.now)
        return bench

    return use


def test_both_run_the_same_in_turns_and_take_turns_at_going_first(timed: Callable[[Bench], Bench]) -> None:
    bench = timed(Bench(lambda name, rows: 3 * MS if name == "engine" else 4 * MS, largest=1))
    (found,) = bench.compare()
    assert found == SideBySide(1, PAIRS_MIN, 3 * MS, 4 * MS, 0.75)
    names = [name for name, _ in bench.ran[2 + 2 * PRIME_RUNS :]]
    firsts, seconds = names[::2], names[1::2]
    assert all(first != second for first, second in zip(firsts, seconds, strict=True))
    assert firsts[:4] == ["session", "engine", "session", "engine"]


def test_one_row_the_largest_the_preferred_and_those_between_in_this_order(
    timed: Callable[[Bench], Bench],
) -> None:
    bench = timed(Bench(lambda name, rows: rows * MS, largest=16))
    assert [each.rows for each in bench.compare()] == [1, 16, 3, 8, 4, 2]
    many = timed(Bench(lambda name, rows: MS, largest=4096))
    assert [each.rows for each in many.compare()] == [1, 4096, 3, 99, 2048, 1024, 512, 256]
    assert SIZES_MAX == 8


SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 20)


@pytest.mark.parametrize(
    ("engine", "session", "sizes"),
    [
        (SIZES, SIZES, [1, 20, 6, 12, 2]),
        (SIZES, (), [1, 20, 5, 6, 10, 2]),
        ((), (), [1, 20, 5, 6, 10, 2]),
    ],
)
def test_only_sizes_that_batches_are_filled_up_to_are_compared_and_each_once(
    timed: Callable[[Bench], Bench], engine: tuple[int, ...], session: tuple[int, ...], sizes: list[int]
) -> None:
    bench = timed(Bench(lambda name, rows: MS, largest=20))
    bench.version = replace(bench.version, batching=Batching(preferred_batch_size=(5, 6)))
    bench.filled = {"engine": engine, "session": session}
    assert [each.rows for each in bench.compare()] == sizes
    assert {rows for _, rows in bench.ran} == set(sizes)


@pytest.mark.parametrize(
    ("run_ns", "pairs"), [(10, PAIRS_MAX), (10 * MS, PAIRS_MIN), (3_000 * MS, PAIRS_LEAST)]
)
def test_short_runs_are_many_and_long_ones_few(
    timed: Callable[[Bench], Bench], run_ns: int, pairs: int
) -> None:
    assert timed(Bench(lambda name, rows: run_ns)).compare()[0].pairs == pairs


def test_what_takes_long_is_compared_with_one_row_alone(timed: Callable[[Bench], Bench]) -> None:
    assert [each.rows for each in timed(Bench(lambda name, rows: 3_000 * MS)).compare()] == [1]


def test_a_size_that_is_refused_ends_it(timed: Callable[[Bench], Bench]) -> None:
    bench = timed(Bench(lambda name, rows: MS))
    bench.fails_at = 3
    assert [each.rows for each in bench.compare()] == [1, 4]


def test_sizes_that_no_batch_will_have_are_not_run(timed: Callable[[Bench], Bench]) -> None:
    many = timed(Bench(lambda name, rows: MS, largest=1 << 20))
    assert max(each.rows for each in many.compare()) == ROWS_MAX


def test_sizes_for_which_the_device_has_no_room_are_not_run(timed: Callable[[Bench], Bench]) -> None:
    """Each of both keeps the tensors of a row, which are padded where it is alone: 128 bytes of both."""
    bench = timed(Bench(lambda name, rows: MS, largest=16))
    whole = {each.rows for each in bench.compare()}
    bench.ran.clear()
    found = [each.rows for each in bench.compare(room_bytes=2_000)]
    assert found[0] == 1
    assert 16 not in found
    assert {rows for _, rows in bench.ran} == set(found) < whole


def test_a_request_whose_outputs_are_too_large_is_not_run(
    timed: Callable[[Bench], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "REQUEST_BYTES_MAX", 1_000)
    bench = timed(Bench(lambda name, rows: MS, largest=16))
    assert 16 not in [each.rows for each in bench.compare()]


def test_a_request_that_nobody_knows_is_not_made_up(timed: Callable[[Bench], Bench]) -> None:
    bench = timed(Bench(lambda name, rows: MS))
    free: ModelVersion = bench.version
    bench.version = replace(free, inputs=tuple(replace(each, shape=(-1,)) for each in free.inputs))
    assert bench.compare() == ()
    assert not bench.ran


def test_a_worker_that_builds_is_held_to_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    def build(version: ModelVersion, runtime: object, settings: RuntimeSettings, judge: object) -> Built:
        told.append(settings.room_bytes)
        return Built("", 0, ())

    monkeypatch.setattr("appliance.workers.child.loading.build_form", build)
    version = make_version("m", 1)
    loader = Loader(1, {version.runtime: cast(Runtime, None)}, 1)
    monkeypatch.setattr(loader, "runtime_of", lambda version: None)
    loader.build(version, lambda *said: None, lambda *said: None, 70)
    assert told == [70]
