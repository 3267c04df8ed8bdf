"""How far a load is, as workers say it: stages in their order, bytes of weights that grow, nothing unasked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion, Warmup, WarmupInput
from appliance.domain.tensor import FREE, Datatype
from appliance.workers.child.loading import READS_MAX, LoadReport
from appliance.workers.daemon.pending_replies import PROGRESS_MAX
from appliance.workers.messages import Load
from appliance.workers.port import (
    LoadStage,
    ModelLoaded,
    ModelProgress,
    WorkerExited,
)
from tests.workers.bench import Bench, fake, spec
from tests.workers.test_assessment import golden_of
from tests.workers.transformers import write_version

TOLD = LoadWish(background=True, assess=True, tell=True)
FREE_ROW = replace(
    fake(), inputs=(spec("x", Datatype.FP32, FREE),), outputs=(spec("y", Datatype.FP32, FREE),)
)


def words(bench: Bench, load: Load) -> list[ModelProgress]:
    """What is said until the version is loaded."""
    worker = bench.start()
    bench.call(bench.pool.load, worker, *load)
    said: list[ModelProgress] = []
    while isinstance(event := bench.any_event(), ModelProgress):
        said.append(event)
    assert isinstance(event, ModelLoaded), event
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)
    return said


def test_weights_are_counted_while_they_are_read(shared_bench: Bench, tmp_path: Path) -> None:
    version = write_version(tmp_path)
    assert version.weights is not None
    said = words(shared_bench, Load(100, version, TOLD))
    reading = [word for word in said if word.stage is LoadStage.READING]
    assert [word.stage for word in said[len(reading) :]] == [LoadStage.SESSION, LoadStage.MEASURING]
    done = [word.done_bytes for word in said]
    assert (done[0], done[-1], done) == (0, version.weights.size, sorted(done))
    assert {word.total_bytes for word in said} == {version.weights.size}


def test_stages_that_a_version_has_are_said_when_they_begin(shared_bench: Bench, tmp_path: Path) -> None:
    plain = fake()
    warmup = Warmup(name="w", batch_size=1, count=1, inputs=(WarmupInput(spec=plain.inputs[0]),))
    version = replace(plain, golden=golden_of(tmp_path, [1, 2, 3, 4]), warmups=(warmup,))
    said = words(shared_bench, Load(100, version, TOLD))
    stages = [LoadStage.SESSION, LoadStage.WARM_UP, LoadStage.GOLDEN, LoadStage.MEASURING]
    assert [word.stage for word in said] == stages
    assert {(word.done_bytes, word.total_bytes) for word in said} == {(0, 0)}
    assert words(shared_bench, Load(100, version, TOLD._replace(tell=False))) == []


@pytest.mark.parametrize(
    ("version", "wish"),
    [
        pytest.param(fake(), TOLD._replace(assess=False, quick=True), id="not wanted"),
        pytest.param(fake("wrong"), TOLD, id="a session that cannot be"),
        pytest.param(FREE_ROW, TOLD, id="nobody knows with what"),
    ],
)
def test_measuring_is_not_said_where_nothing_is_measured(
    shared_bench: Bench, version: ModelVersion, wish: LoadWish
) -> None:
    assert [word.stage for word in words(shared_bench, Load(100, version, wish))] == [LoadStage.SESSION]


def test_a_stage_is_said_once() -> None:
    said: list[tuple[LoadStage, int, int]] = []
    report = LoadReport(Load(1, fake(), TOLD), lambda *word: said.append(word))
    report.read(0, 8)
    report.begin(LoadStage.SESSION)
    report.begin(LoadStage.SESSION)
    assert said == [(LoadStage.READING, 0, 8), (LoadStage.SESSION, 0, 8)]


def test_no_file_is_read_in_more_words_than_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, and also where another one is read in its place."""
    monkeypatch.setattr("appliance.workers.child.loading.SILENCE_NS", 0)
    said: list[tuple[LoadStage, int, int]] = []
    report = LoadReport(Load(1, fake(), TOLD), lambda *word: said.append(word))
    for _ in range(2):
        before = len(said)
        for done in range(100_001):
            report.read(done, 100_000)
        assert READS_MAX // 2 < len(said) - before <= READS_MAX + 1
    assert 2 * (READS_MAX + 1 + len(LoadStage)) <= PROGRESS_MAX
