"""The runtime with a simulated TensorRT, a simulated device and a simulated CUDA session: from the first load to a
sealed engine that serves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance import __version__
from appliance.config.repository import RepositoryConfig
from appliance.devices.cuda import Cuda
from appliance.domain.device import cuda
from appliance.domain.device_wish import ON_CPU, ON_CUDA
from appliance.domain.digest import digest_of
from appliance.domain.errors import ConfigInvalid, LoadFailed
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.session_options import ENGINE_REFIT, ENGINE_WEIGHTS_MAX
from appliance.domain.side_by_side import SideBySide
from appliance.repository.model_directory import read_model_directory
from appliance.runtimes.runtime import (
    ENGINE_FILE,
    KEPT_FILE,
    RuntimeSettings,
    Session,
    open_runtimes,
)
from appliance.runtimes.tensorrt.runtime import TensorrtRuntime, unwrapped, wrapped
from appliance.runtimes.tensorrt.session import EngineSession
from appliance.runtimes.tensorrt.tie import Driver
from appliance.workers.child.form_builder import build_form
from appliance.workers.child.loading import Loader
from appliance.workers.daemon.forms_on_disk import for_worker, mark_form, take_up_form
from appliance.workers.forms import DROPPED_FILE, SEAL_FILE
from appliance.workers.messages import Load
from appliance.workers.port import (
    FormBuilt,
    FormJudged,
    FormVerdict,
    LoadStage,
)
from appliance.workers.seal import kin_of
from tests.runtimes.tensorrt.other_weights import other_weights
from tests.runtimes.tensorrt.simulated import DRIVER, HostDevice, SimulatedLibrary, SimulatedPlain
from tests.workers.transformers import flip_bit

MODELS = Path(__file__).parents[3] / "models"
DIGEST = "d" * 64
NO_DRIVER = Driver(problem="NVML: Driver Not Loaded")


class Box:
    """A box with a GPU that is simulated, on which the digits are to run on TensorRT."""

    def __init__(self, state: Path) -> None:
        self.forms = state / "forms"
        self.device = HostDevice()
        self.library = SimulatedLibrary(self.device)
        self.plain = SimulatedPlain()
        self.driver = DRIVER
        state.mkdir()
        reading = read_model_directory(str(MODELS), "digits", RepositoryConfig())
        assert reading is not None
        model = reading.servable[-1].model
        assert model.golden
        self.version = replace(
            model, runtime="tensorrt", device=ON_CUDA, digest=DIGEST, forms=str(self.forms), weights=None
        )
        self.judged: list[tuple[FormVerdict, str]] = []
        self.compared: tuple[SideBySide, ...] = ()

    @property
    def runtime(self) -> TensorrtRuntime:
        return TensorrtRuntime(
            lambda: self.library, lambda: self.driver, lambda index: self.device.as_cuda, self.plain
        )

    def judge(self, name: str, verdict: FormVerdict, reason: str) -> None:
        self.judged.append((verdict, reason))
        mark_form(Load(1, self.version), FormJudged(1, 1, name, verdict, reason))

    def build(self, settings: RuntimeSettings | None = None) -> Path:
        asked = for_worker(self.version)
        made = build_form(asked, self.runtime, settings or RuntimeSettings(), self.judge)
        name, nbytes, self.compared = made
        built = take_up_form(self.version, FormBuilt(1, 1, name, nbytes, 1, None))
        assert built is not None
        assert built.failure is None
        return self.forms / name

    def loads_packed(self) -> bool:
        """Whether it runs from its engine, right according to its golden set either way."""
        loader = Loader(1, {"tensorrt": self.runtime}, 1)
        load = Load(1, for_worker(self.version), LoadWish(assess=True))
        opened = loader.load(load, alone=True, tell=lambda *told: None, judge=self.judge)
        assert opened.said.assessment is not None
        assert opened.said.assessment.cases > 0
        assert isinstance(opened.model.session, EngineSession) is opened.said.packed
        opened.model.session.close()
        return opened.said.packed


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr("appliance.workers.child.comparison.PAIRS_MIN", 3)
    monkeypatch.setattr("appliance.workers.child.comparison.SIZE_BUDGET_NS", 1)
    return Box(tmp_path / "serve")


def test_it_serves_from_the_cuda_session_first_and_from_its_engine_once_that_is_built(box: Box) -> None:
    assert not box.loads_packed()
    assert (box.plain.loaded, box.library.opened) == (1, 0)
    form = box.build()
    assert (box.plain.loaded, box.library.opened) == (2, 1), "it was run beside the session"
    assert box.loads_packed()
    assert not box.device.held
    assert not box.judged
    assert {ENGINE_FILE, KEPT_FILE} < {each.name for each in form.iterdir()}


def test_it_is_run_beside_the_cuda_session_where_there_is_room_for_that(box: Box) -> None:
    box.build()
    assert {each.rows for each in box.compared} >= {1, box.version.max_batch_size}
    assert all(each.possible and each.pairs > 1 for each in box.compared)
    assert not box.device.held


def test_an_engine_that_its_golden_set_proves_needs_no_session_beside_it(
    box: Box, capfd: pytest.CaptureFixture[str]
) -> None:
    box.plain.fails = LoadFailed("no memory for both")
    assert box.build().exists()
    assert box.compared == ()
    assert "its engine is not run beside its session: no memory for both" in capfd.readouterr().err


def test_it_is_compared_with_the_cuda_session_where_there_is_no_golden_set(box: Box) -> None:
    box.version = replace(box.version, golden="")
    box.build()
    assert (box.plain.loaded, box.library.opened) == (1, 1)


def test_it_is_built_for_the_batches_of_the_model_with_half_of_what_is_free(box: Box) -> None:
    box.build()
    (asked,) = box.library.asked
    assert [profile.inputs["image"].most[0] for profile in asked.profiles] == [box.version.max_batch_size]
    assert asked.workspace_bytes == box.device.left // 2


def test_it_is_built_and_compared_with_no_more_than_others_leave(box: Box) -> None:
    rooms: list[int] = []
    real = box.plain.load

    def load(version: ModelVersion, settings: RuntimeSettings) -> Session:
        rooms.append(settings.room_bytes)
        return real(version, settings)

    box.plain.load = load  # type: ignore[method-assign]
    box.build(RuntimeSettings(room_bytes=1 << 20))
    (asked,) = box.library.asked
    assert asked.workspace_bytes == 1 << 20 < box.device.left // 2
    assert len(rooms) == 1
    assert 0 < rooms[0] < 1 << 20, "what the engine leaves"


def test_an_engine_keeps_as_many_weights_on_the_device_as_the_model_says(
    box: Box, capfd: pytest.CaptureFixture[str]
) -> None:
    form = box.build()
    engine = (form / ENGINE_FILE).stat().st_size

    def takes(most: str) -> int:
        parameters = {**box.version.parameters, ENGINE_WEIGHTS_MAX: most}
        asked = for_worker(replace(box.version, parameters=parameters))
        digests = {str(form / ENGINE_FILE): digest_of((form / ENGINE_FILE).read_bytes())}
        packed = replace(asked, path=str(form / ENGINE_FILE), digests=digests)
        session = box.runtime.load(packed, RuntimeSettings(packed=True))
        nbytes = session.memory()
        session.close()
        return nbytes

    whole = takes("0")
    assert whole > engine
    assert not capfd.readouterr().err
    assert takes("1000") == whole, "it was built without"
    assert "keeps all its weights on the device" in capfd.readouterr().err
    box.version = replace(box.version, digest="e" * 64, parameters={ENGINE_WEIGHTS_MAX: "1000"})
    form = box.build()
    assert [asked.streams for asked in box.library.asked] == [False, True]
    graph = Path(box.version.path).stat().st_size
    assert takes("1000") == takes("0") - graph + 1000
    assert box.loads_packed()


@pytest.fixture
def refitting(box: Box) -> Box:
    """A box with an engine that can take other weights."""
    box.version = replace(box.version, parameters={ENGINE_REFIT: "1"})
    box.build()
    return box


def test_an_engine_takes_the_weights_of_the_next_version_instead_of_being_built_anew(
    refitting: Box, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    box = refitting
    assert [asked.refits for asked in box.library.asked] == [True]
    (before,) = box.forms.iterdir()
    other_weights(box, tmp_path / "other")
    plain = box.plain.loaded
    form = box.build()
    assert len(box.library.asked) == 1, "nothing was built"
    assert box.library.refitted == [box.version.path]
    assert box.plain.loaded == plain + 1, "it was compared with its own CUDA session"
    assert f"digits/7: its engine is {before.name} with other weights" in capfd.readouterr().err
    assert (form / ENGINE_FILE).read_bytes() != (before / ENGINE_FILE).read_bytes()
    assert SEAL_FILE in {each.name for each in form.iterdir()}
    other_weights(box, tmp_path / "third", 0.25)
    box.version = replace(box.version, digest="8" * 64)
    box.version = replace(box.version, kin=kin_of(box.version))
    assert len(box.version.kin) == 2
    box.build()
    assert len(box.library.asked) == 1, "one that took others takes others again"


def test_an_engine_that_took_other_weights_and_answers_wrongly_is_not_taken_and_one_is_built(
    refitting: Box, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    box = refitting
    honest = box.library.refit
    graph = Path(box.version.path).read_bytes()
    box.library.refit = lambda engine, other, path: honest(engine, graph, path)  # type: ignore[method-assign,assignment]
    other_weights(box, tmp_path / "other")
    form = box.build()
    assert "digits/7: what it has of another version proved wrong: " in capfd.readouterr().err
    assert len(box.library.asked) == 2
    assert (form / ENGINE_FILE).read_bytes().endswith(Path(box.version.path).read_bytes())


def test_one_that_is_built_and_answers_wrongly_as_well_is_not_built_again(
    refitting: Box, tmp_path: Path
) -> None:
    box = refitting
    graph = Path(box.version.path).read_bytes()
    honest, built = box.library.refit, box.library.build
    box.library.refit = lambda engine, other, path: honest(engine, graph, path)  # type: ignore[method-assign,assignment]
    box.library.build = lambda other, path, *more, **terms: built(graph, path, *more, **terms)  # type: ignore[method-assign]
    other_weights(box, tmp_path / "other")
    with pytest.raises(LoadFailed, match="output 'probabilities'"):
        box.build()
    assert len(box.library.asked) == 2


def test_weights_that_are_refused_have_the_engine_built(
    refitting: Box, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    box = refitting
    box.library.refuses_weights = "TensorRT takes no other weights into this engine: no"
    other_weights(box, tmp_path / "other")
    box.build()
    assert [asked.refits for asked in box.library.asked] == [True, True]
    assert "takes no other weights: TensorRT takes no other weights into this" in capfd.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {}},
        {"parameters": {ENGINE_REFIT: "1", ENGINE_WEIGHTS_MAX: "9"}},
        {"max_batch_size": 16},
    ],
    ids=["not asked for", "built otherwise", "other shapes"],
)
def test_what_differs_in_more_than_weights_is_built(
    refitting: Box, tmp_path: Path, change: dict[str, Any]
) -> None:
    box = refitting
    other_weights(box, tmp_path / "other")
    box.version = replace(box.version, **change)
    box.build()
    assert not box.library.refitted
    assert len(box.library.asked) == 2


def test_a_rotten_engine_is_not_opened_to_take_other_weights(
    refitting: Box, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    box = refitting
    (before,) = box.forms.iterdir()
    flip_bit(str(before / ENGINE_FILE), 9)
    other_weights(box, tmp_path / "other")
    box.build()
    assert not box.library.refitted
    assert len(box.library.asked) == 2
    assert f"{before.name} takes no other weights" in capfd.readouterr().err


def test_it_is_told_how_far_the_build_is(box: Box) -> None:
    told: list[tuple[LoadStage, int, int]] = []
    Loader(1, {"tensorrt": box.runtime}, 1).build(
        for_worker(box.version), box.judge, lambda *word: told.append(word)
    )
    assert told == [(LoadStage.BUILDING, part, 100) for part in range(1, 101)]


def test_what_raises_when_it_is_told_ends_the_build_and_leaves_nothing(box: Box) -> None:
    class Gone(Exception):
        pass

    def gone(done: int, total: int) -> None:
        raise Gone

    with pytest.raises(Gone):
        box.build(RuntimeSettings(progress=gone))
    (site,) = box.forms.iterdir()
    assert not list(site.iterdir())


def test_a_graph_that_tensorrt_does_not_take_says_which_node_and_stays_with_the_cuda_session(
    box: Box,
) -> None:
    box.library.refuses = "TensorRT does not take node 'n' (Unique): unsupported node: no"
    with pytest.raises(LoadFailed, match=r"^digits/\d+: TensorRT does not take node 'n' \(Unique\)"):
        box.build()
    assert not box.loads_packed()


def test_an_engine_that_answers_wrongly_is_not_taken(box: Box) -> None:
    graph = (MODELS / "digits" / "1" / "model.onnx").read_bytes()
    honest = box.library.build
    assert "/2/" in box.version.path

    def wrong(*arguments: object, **more: object) -> object:
        return honest(graph, *arguments[1:], **more)  # type: ignore[arg-type]

    box.library.build = wrong  # type: ignore[method-assign,assignment]
    box.version = replace(box.version, golden="")
    with pytest.raises(LoadFailed, match="output 'probabilities'"):
        box.build()


@pytest.mark.parametrize(
    "change",
    [
        lambda box: setattr(box, "driver", Driver(release="590", devices=DRIVER.devices)),
        lambda box: setattr(box, "driver", Driver(release=DRIVER.release, devices=("another",))),
        lambda box: setattr(box.library, "release", "TensorRT 11.5 (simulated)"),
    ],
    ids=["driver", "device", "release"],
)
def test_another_driver_device_or_release_drops_the_engine_aloud_and_it_is_built_anew(
    box: Box, change: Callable[[Box], None]
) -> None:
    before = box.build()
    change(box)
    opened = box.library.opened
    assert not box.loads_packed()
    assert box.library.opened == opened, "it is not even opened"
    ((verdict, reason),) = box.judged
    assert verdict is FormVerdict.DROPPED
    assert f"for TensorRT 11.4 (simulated), onnx, appliance {__version__}, driver 580.1, Simulated" in reason
    assert (before / DROPPED_FILE).exists()
    assert box.build() != before
    assert box.loads_packed()


def test_a_changed_engine_is_never_opened(box: Box) -> None:
    flip_bit(str(box.build() / ENGINE_FILE), 9)
    opened = box.library.opened
    assert not box.loads_packed()
    assert box.library.opened == opened
    assert [verdict for verdict, _ in box.judged] == [FormVerdict.DROPPED]


def test_an_engine_whose_digest_nobody_has_said_is_never_opened(box: Box) -> None:
    engine = box.build() / ENGINE_FILE
    opened = box.library.opened
    with pytest.raises(LoadFailed, match="is never read"):
        box.runtime.load(replace(box.version, path=str(engine)), RuntimeSettings(packed=True))
    assert box.library.opened == opened


def test_what_a_build_has_learned_is_there_for_the_next_of_the_same_release(box: Box) -> None:
    box.build()
    box.driver = Driver(release="590", devices=DRIVER.devices)
    box.build()
    box.library.release = "TensorRT 11.5 (simulated)"
    box.build()
    assert [asked.cache for asked in box.library.asked] == [b"", b"learned", b""]
    assert unwrapped(wrapped(b"a\nb", "11.4"), "11.4") == b"a\nb"
    assert unwrapped(b"\xff\n", "11.4") == b""


def test_without_a_driver_nothing_of_tensorrt_is_touched(box: Box) -> None:
    box.build()
    box.driver = NO_DRIVER
    opened, asked = box.library.opened, len(box.library.asked)
    with pytest.raises(LoadFailed, match="TensorRT has no device: NVML: Driver Not Loaded"):
        box.runtime.pack(box.version, RuntimeSettings(), "graph", "weights")
    with pytest.raises(LoadFailed, match="TensorRT has no device"):
        box.runtime.load(box.version, RuntimeSettings(packed=True))
    assert (box.library.opened, len(box.library.asked)) == (opened, asked)


def test_a_device_that_cannot_be_opened_is_told_of(box: Box) -> None:
    def absent(index: int) -> Cuda:
        assert index == 1
        raise OSError("CUDA: no device")

    runtime = TensorrtRuntime(lambda: box.library, lambda: DRIVER, absent, box.plain)
    with pytest.raises(LoadFailed, match="TensorRT cannot open cuda:1: CUDA: no device"):
        runtime.load(box.version, RuntimeSettings(packed=True, device=cuda(1)))


def test_a_model_for_the_processor_is_refused(box: Box) -> None:
    with pytest.raises(LoadFailed, match="KIND_GPU"):
        box.runtime.load(replace(box.version, device=ON_CPU), RuntimeSettings())


def config_of(home: Path, text: str) -> ModelVersion | str:
    """What a box with this runtime makes of the digits with another configuration, or what is wrong with it."""
    folder = home / "digits" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes((MODELS / "digits" / "1" / "model.onnx").read_bytes())
    (home / "digits" / "config.pbtxt").write_text(text)
    reading = read_model_directory(str(home), "digits", RepositoryConfig(runtimes=("onnx", "tensorrt")))
    assert reading is not None
    if reading.servable:
        return reading.servable[0].model
    return json.dumps([problem.text for problem in reading.broken[0].problems])


def test_its_models_are_read_and_judged_like_any_onnx_file(tmp_path: Path) -> None:
    model = config_of(
        tmp_path,
        'backend: "tensorrt"\ninstance_group [ { kind: KIND_GPU } ]\n'
        'parameters { key: "tensorrt_free_max" value { string_value: "512" } }\n',
    )
    assert isinstance(model, ModelVersion), model
    assert (model.runtime, model.device, model.inputs[0].name) == ("tensorrt", ON_CUDA, "image")
    assert not model.notes


@pytest.mark.parametrize("said", ["many", "-1", "16777217"])
def test_a_wrong_end_of_free_dimensions_is_told_of_when_it_is_read(tmp_path: Path, said: str) -> None:
    text = (
        f'backend: "tensorrt"\nparameters {{ key: "tensorrt_free_max" value {{ string_value: "{said}" }} }}\n'
    )
    assert "tensorrt_free_max must be a whole number from 0 to 16777216" in str(config_of(tmp_path, text))


def test_an_engine_in_the_place_of_the_model_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "digits" / "1"
    home.mkdir(parents=True)
    (home / "model.onnx").write_bytes(b"ftrt" + bytes(100))
    (tmp_path / "digits" / "config.pbtxt").write_text('backend: "tensorrt"\n')
    reading = read_model_directory(str(tmp_path), "digits", RepositoryConfig(runtimes=("tensorrt",)))
    assert reading is not None
    assert "a TensorRT engine, which fits one device alone" in str(reading.broken[0].problems)


def test_it_is_known_and_says_what_is_missing_where_tensorrt_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    with pytest.raises(ConfigInvalid, match="runtime 'tensorrt' is not available"):
        open_runtimes(("tensorrt",))
