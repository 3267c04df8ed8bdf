"""Warm-ups that a model asks for, and seeds that are measured without being asked."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from appliance.domain.errors import BeyondDeviceLimit, DeviceFull, LoadFailed, RunFailed
from appliance.domain.model import ModelVersion, Warmup, WarmupInput
from appliance.domain.tensor import Datatype, TensorSpec, encode_bytes
from appliance.runtimes.runtime import Feed, Place, Port, Produced, Region
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.measurement import PRIME_RUNS, measure_passes
from appliance.workers.child.proof import run_warmups
from tests.workers.bench import spec, version_of


class Seen(NamedTuple):
    """One input of one run."""

    shape: tuple[int, ...]
    raw: bytes


class RecordingSession:
    """Answers each input as the output of the same number, and remembers what it was given. Fails where told."""

    measurable = True
    weights = None
    batch_sizes: tuple[int, ...] = ()

    def __init__(self, version: ModelVersion, fails_from_rows: int = 1 << 30) -> None:
        self.version = version
        self.runs: list[tuple[Seen | None, ...]] = []
        self._fails_from_rows = fails_from_rows

    @property
    def inputs(self) -> tuple[Port, ...]:
        return ()

    @property
    def outputs(self) -> tuple[Port, ...]:
        return ()

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        views = [
            None if feed is None else source.view[feed.offset : feed.offset + feed.nbytes] for feed in feeds
        ]
        self.runs.append(
            tuple(
                None if feed is None or view is None else Seen(feed.shape, bytes(view))
                for feed, view in zip(feeds, views, strict=True)
            )
        )
        given = [
            (feed, view)
            for feed, view in zip(feeds, views, strict=True)
            if feed is not None and view is not None
        ]
        if given[0][0].shape[0] >= self._fails_from_rows:
            raise RunFailed("too many rows")
        return Produced(
            tuple(feed.shape for feed, _ in given),
            tuple(feed.nbytes for feed, _ in given),
            tuple(view for _, view in given),
        )

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> None:
        return None

    def memory(self) -> int:
        return 0

    def close(self) -> None:
        return


def model_of(
    *inputs: TensorSpec,
    max_batch_size: int = 4,
    warmups: tuple[Warmup, ...] = (),
    fails_from_rows: int = 1 << 30,
) -> tuple[LoadedModel, RecordingSession]:
    given = [each for each in inputs if not each.optional]
    version = version_of("", inputs, given, max_batch_size=max_batch_size, warmups=warmups)
    session = RecordingSession(version, fails_from_rows)
    return LoadedModel(version=version, session=session), session


X = spec("x", Datatype.FP32, 3)


def warmup(*inputs: WarmupInput, batch_size: int = 2, count: int = 1) -> tuple[Warmup, ...]:
    return (Warmup(name="w", batch_size=batch_size, count=count, inputs=inputs),)


def test_zeros_as_often_as_asked() -> None:
    model, session = model_of(X, warmups=warmup(WarmupInput(spec=X), count=3))
    run_warmups(model)
    assert session.runs == [(Seen((2, 3), bytes(24)),)] * 3


def test_random_values_are_harmless_numbers() -> None:
    kinds = [kind for kind in Datatype if kind is not Datatype.BYTES]
    specs = [spec(kind.wire, kind, 50) for kind in kinds]
    inputs = [WarmupInput(spec=each, random=True) for each in specs]
    model, session = model_of(*specs, warmups=warmup(*inputs, batch_size=1))
    run_warmups(model)
    for kind, seen in zip(kinds, session.runs[0], strict=True):
        assert seen is not None
        assert len(seen.raw) == 50 * kind.size
        assert any(seen.raw)
        if kind in (Datatype.FP16, Datatype.FP32, Datatype.FP64):
            values = np.frombuffer(seen.raw, f"f{kind.size}")
            assert values.min() >= 0
            assert values.max() <= 1


def test_random_strings() -> None:
    text = spec("s", Datatype.BYTES, 2)
    model, session = model_of(text, warmups=warmup(WarmupInput(spec=text, random=True), batch_size=1))
    run_warmups(model)
    seen = session.runs[0][0]
    assert seen is not None
    assert len(seen.raw) == 2 * (4 + 8)


@pytest.mark.parametrize("rows_in_file", [1, 2])
def test_a_file_for_one_row_or_for_all(tmp_path: Path, rows_in_file: int) -> None:
    row = np.arange(3, dtype=np.float32).tobytes()
    file = tmp_path / "x.raw"
    file.write_bytes(row * rows_in_file)
    model, session = model_of(X, warmups=warmup(WarmupInput(spec=X, file=str(file))))
    run_warmups(model)
    assert session.runs == [(Seen((2, 3), row * 2),)]


def test_a_file_of_strings(tmp_path: Path) -> None:
    text = spec("s", Datatype.BYTES, 2)
    file = tmp_path / "s.raw"
    file.write_bytes(encode_bytes([b"a", b"bc"]))
    model, session = model_of(text, warmups=warmup(WarmupInput(spec=text, file=str(file)), batch_size=1))
    run_warmups(model)
    assert session.runs == [(Seen((1, 2), file.read_bytes()),)]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"short", "has 5 bytes, shape [2, 3] needs 24"), (None, "No such file")]
)
def test_a_file_that_does_not_do(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "x.raw"
    if content is not None:
        file.write_bytes(content)
    model, _ = model_of(X, warmups=warmup(WarmupInput(spec=X, file=str(file))))
    with pytest.raises(LoadFailed) as caught:
        run_warmups(model)
    assert "warm-up 'w' failed" in str(caught.value)
    assert reason in str(caught.value)


def test_a_warmup_that_the_model_does_not_survive() -> None:
    model, _ = model_of(X, warmups=warmup(WarmupInput(spec=X)), fails_from_rows=2)
    with pytest.raises(LoadFailed, match="model/1: warm-up 'w' failed: too many rows"):
        run_warmups(model)


@pytest.mark.parametrize(
    ("max_batch_size", "rows"), [(0, [1]), (1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_seeds_by_rows(max_batch_size: int, rows: list[int]) -> None:
    model, session = model_of(X, max_batch_size=max_batch_size)
    passes = measure_passes(model)
    assert [each.rows for each in passes] == rows
    assert all(taken > 0 for each in passes for taken in each.taken)
    assert [each.seed for each in passes] == [
        (each.rows, sorted(each.taken)[len(each.taken) // 2]) for each in passes
    ]
    first = session.runs[0][0]
    assert first is not None
    assert first.shape == ((1, 3) if max_batch_size else (3,))
    assert not any(first.raw)


def test_sizes_whose_first_runs_are_dear_are_run_before_they_are_measured() -> None:
    model, session = model_of(X, max_batch_size=6)
    session.batch_sizes = (1, 2, 3, 6, 8)
    assert [each.rows for each in measure_passes(model)] == [1, 2, 4, 6]
    tried = [seen.shape[0] for (seen,) in session.runs if seen is not None]
    first = [1, *(rows for rows in (1, 2, 3, 6) for _ in range(PRIME_RUNS))]
    assert tried[: len(first)] == first, (
        "one that tells how much room outputs take, then these; 8 is more than it takes"
    )


def test_no_seeds_where_shapes_are_free() -> None:
    model, session = model_of(spec("x", Datatype.FP32, -1))
    assert measure_passes(model) == ()
    assert session.runs == []


def test_no_seeds_where_the_session_is_not_to_be_measured() -> None:
    model, session = model_of(X)
    session.measurable = False
    assert measure_passes(model) == ()
    assert session.runs == []


def test_optional_inputs_are_left_out_and_strings_are_empty() -> None:
    model, session = model_of(spec("s", Datatype.BYTES, 2), spec("o", Datatype.FP32, 1, optional=True))
    assert [each.rows for each in measure_passes(model)] == [1, 2, 4]
    assert session.runs[0] == (Seen((1, 2), bytes(8)), None)


def test_no_seeds_for_a_model_that_does_not_take_zeros() -> None:
    model, _ = model_of(X, max_batch_size=8, fails_from_rows=1)
    assert measure_passes(model) == ()


def failing(model: LoadedModel, problem: Exception) -> LoadedModel:
    """The model, whose runs raise ``problem``."""

    def run(*given: object) -> object:
        raise problem

    return replace(model, session=SimpleNamespace(run=run, measurable=True))


def test_a_device_that_is_full_for_a_moment_says_nothing_of_a_model() -> None:
    model, _ = model_of(X)
    assert measure_passes(failing(model, DeviceFull("its GPU has no memory left"))) == ()


def test_a_row_that_takes_more_than_a_session_is_held_to_refuses_its_load() -> None:
    model, _ = model_of(X)
    with pytest.raises(LoadFailed, match="model/1: it needs more of its GPU"):
        measure_passes(failing(model, BeyondDeviceLimit("it needs more of its GPU")))


def test_a_batch_that_fails_costs_what_its_requests_cost_one_by_one() -> None:
    model, session = model_of(X, max_batch_size=2, fails_from_rows=2)
    assert [each.rows for each in measure_passes(model)] == [1, 2]
    tried = [seen.shape[0] for (seen,) in session.runs if seen is not None]
    assert tried[-3:] == [2, 1, 1]


def test_rows_that_take_too_much_memory_are_not_tried() -> None:
    quarter = spec(
        "x", Datatype.UINT8, 8 * mmap.PAGESIZE * 1024
    )  # 32 MiB in and out: one row is all there is room for
    model, _ = model_of(quarter, max_batch_size=64)
    assert [each.rows for each in measure_passes(model)] == [1]
