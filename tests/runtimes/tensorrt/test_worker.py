"""Engines in real worker processes in their jails. TensorRT, the device and the CUDA session are simulated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.domain.device import cuda
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.session_options import ENGINE_REFIT, ENGINE_WEIGHTS_MAX
from appliance.domain.tensor import Datatype
from appliance.repository.model_directory import read_model_directory
from appliance.runtimes.runtime import ENGINE_FILE, KEPT_FILE
from appliance.store.layout import FORMS_KEY
from appliance.workers.forms import FORM_FILE, SEAL_FILE
from appliance.workers.port import FormBuilt, FormVerdict, LoadStage, ModelProgress, ModelRefused
from appliance.workers.seal import kin_of
from tests.runtimes.tensorrt.simulated import FULL_FOR
from tests.workers.bench import PLAIN, Bench
from tests.workers.transformers import flip_bit, load, stop

MODELS = Path(__file__).parents[3] / "models"
DIGEST = "d" * 64


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench(runtimes=("onnx", "simulated_tensorrt"))
    yield bench
    bench.close()


@pytest.fixture
def version(tmp_path: Path) -> ModelVersion:
    reading = read_model_directory(str(MODELS), "digits", RepositoryConfig())
    assert reading is not None
    model = reading.servable[-1].model
    (tmp_path / "serve").mkdir()
    forms = str(tmp_path / "serve" / "forms")
    return replace(model, runtime="simulated_tensorrt", device=ON_CUDA, digest=DIGEST, forms=forms)


def build(bench: Bench, version: ModelVersion) -> tuple[FormBuilt, list[ModelProgress]]:
    worker = bench.start(PLAIN.building(version))
    bench.call(bench.pool.build_form, worker, 500, version)
    told: list[ModelProgress] = []
    while isinstance(event := bench.any_event(), ModelProgress):
        told.append(event)
    stop(bench, worker)
    assert isinstance(event, FormBuilt)
    return event, told


def loads_packed(bench: Bench, version: ModelVersion) -> bool:
    """Whether it runs from its engine; it answers its golden set either way."""
    worker = bench.start(PLAIN.serving([version], shared=False, device=cuda(0)))
    loaded = load(bench, worker, version, LoadWish(assess=True))
    assert loaded.assessment is not None
    assert loaded.assessment.cases > 0
    stop(bench, worker)
    return loaded.packed


def test_an_engine_is_built_sealed_and_run_and_one_that_was_changed_is_built_anew(
    bench: Bench, version: ModelVersion
) -> None:
    assert not loads_packed(bench, version)
    built, told = build(bench, version)
    assert built.failure is None
    form = Path(version.forms) / built.name
    assert {each.name for each in form.iterdir()} == {
        ENGINE_FILE,
        KEPT_FILE,
        FORM_FILE,
        SEAL_FILE,
        "weights.bin",
    }
    assert (form.parent.parent / FORMS_KEY).exists()
    assert [word.done_bytes for word in told] == list(range(1, 101))
    assert {word.stage for word in told} == {LoadStage.BUILDING}
    assert loads_packed(bench, version)
    assert not bench.judged
    flip_bit(str(form / ENGINE_FILE), 7)
    assert not loads_packed(bench, version)
    assert [judged.verdict for judged in bench.judged] == [FormVerdict.DROPPED]
    assert build(bench, version)[0].failure is None
    bench.judged.clear()
    assert loads_packed(bench, version)
    assert [judged.verdict for judged in bench.judged] == [FormVerdict.PROVEN]


@pytest.mark.parametrize("what", ["engine", "runs"])
def test_an_engine_for_which_the_device_is_full_is_told_as_that_and_kept(
    bench: Bench, version: ModelVersion, what: str
) -> None:
    """It took minutes to be built, and there is nothing wrong with it."""
    assert build(bench, version)[0].failure is None
    assert loads_packed(bench, version)
    bench.judged.clear()
    cramped = replace(version, parameters={FULL_FOR: what})
    worker = bench.start(PLAIN.serving([cramped], shared=False, device=cuda(0)))
    bench.call(bench.pool.load, worker, 100, cramped, LoadWish(assess=True))
    refused = bench.event(ModelRefused)
    assert refused.full
    assert not refused.assessed
    assert "its GPU has no memory left; see who has it" in refused.reason
    stop(bench, worker)
    assert not bench.judged
    assert loads_packed(bench, version)


@pytest.mark.parametrize("what", ["engine", "runs"])
def test_the_build_of_an_engine_that_is_not_proven_as_the_device_is_full_comes_again(
    bench: Bench, version: ModelVersion, what: str
) -> None:
    built, _ = build(bench, replace(version, parameters={FULL_FOR: what}))
    assert "its GPU has no memory left" in str(built.failure)
    assert built.later
    built, _ = build(bench, replace(version, parameters={ENGINE_WEIGHTS_MAX: "x"}))
    assert built.failure is not None
    assert not built.later


def test_a_graph_with_free_shapes_and_nothing_to_prove_it_by_is_not_built(
    bench: Bench, version: ModelVersion
) -> None:
    (only,) = version.inputs
    assert only.datatype is Datatype.FP32
    free = replace(version, inputs=(replace(only, shape=(-1, 8)),), parameters={})
    built, told = build(bench, replace(free, golden=""))
    assert "give it a golden set" in str(built.failure)
    assert not told
    assert build(bench, free)[0].failure is None, "for what is in the set at least"
    assert loads_packed(bench, free)


def test_a_builder_in_its_jail_reads_the_engine_that_is_to_take_other_weights(
    bench: Bench, version: ModelVersion, tmp_path: Path
) -> None:
    first = replace(version, parameters={ENGINE_REFIT: "1"})
    built, told = build(bench, first)
    assert built.failure is None
    told.clear()
    home = tmp_path / "digits" / "7"
    home.mkdir(parents=True)
    for file in (Path(version.path), *Path(version.path).parent.glob("*.txt")):
        (home / file.name).write_bytes(file.read_bytes())
    again = replace(first, version=7, digest="7" * 64, path=str(home / Path(version.path).name))
    kin = kin_of(again)
    assert kin == (built.name,)
    locked_out = bench.start(PLAIN.building(again))
    bench.call(bench.pool.build_form, locked_out, 500, replace(again, kin=kin))
    while isinstance(event := bench.any_event(), ModelProgress):
        told.append(event)
    stop(bench, locked_out)
    assert isinstance(event, FormBuilt)
    assert event.failure is None
    assert told, "it was built, as the jail kept the other engine from it"
    shutil.rmtree(Path(version.forms) / event.name)
    refitted, told = build(bench, replace(again, kin=kin))
    assert refitted.failure is None
    assert not told, "nothing was built"
    assert loads_packed(bench, again)
    unrelated = replace(again, digest="8" * 64, name="others")
    assert kin_of(unrelated) == ()
    alone, told = build(bench, replace(unrelated, kin=()))
    assert alone.failure is None
    assert told, "it was built"
