"""What NVIDIA's own code does with the one file that knows TensorRT, on a machine without a GPU: `make tensorrt-test`.

Two things. NVIDIA's real Python bindings of TensorRT, and the module that calls CUDA, over a *simulated* libnvinfer and
a *simulated* CUDA runtime library, which are compiled here: opening, running, graphs. And TensorRT-RTX, which is real
from its bindings down, and builds engines without a device: building. Neither computes anything on a GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import DeviceFull, DeviceHasNoRoom, InvalidRequest, LoadFailed, RunFailed
from appliance.domain.model import Batching, ModelVersion
from appliance.domain.tensor import Datatype
from appliance.repository.model_directory import read_model_directory
from appliance.runtimes import device_graphs
from appliance.runtimes.tensorrt import vendor
from appliance.runtimes.tensorrt.profiles import profiles_of
from appliance.runtimes.tensorrt.session import EngineSession
from appliance.runtimes.tensorrt.vendor import Built, EngineTensor, Library
from appliance.tools.conformance.memory import Memory, any_floats
from appliance.tools.evaluation.jobs import ORIGINAL, PRECISIONS
from appliance.tools.subject import find_subject
from appliance.tools.variants.conversion import make_variant
from models.generators.graph import model_bytes, node, tensor_port
from tests.devices.compiled_cuda import CompiledCuda, compile_library, compiled_cuda
from tests.tools.models import picture_model, write
from tests.workers.bench import spec, version_of
from tests.workers.transformers import write_version

SOURCE = Path(__file__).with_name("libnvinfer.cpp")
MODELS = Path(__file__).parents[3] / "models"
NEEDS = "run `make tensorrt-test`, which fetches it"
ENGINE = b"""SIMULATED
tensor a in 0 0 2 -1 3
tensor b in 0 0 2 -1 2
tensor p out 0 0 2 -1 3
tensor q out 0 0 2 -1 2
profile 0 a 4 3 4 3 4 3
profile 0 b 4 2 4 2 4 2
profile 1 a 1 3 4 3 8 3
profile 1 b 1 2 4 2 8 2
"""
PAIRS = version_of(
    "pairs",
    [spec("a", Datatype.FP32, 3), spec("b", Datatype.FP32, 2)],
    [spec("p", Datatype.FP32, 3), spec("q", Datatype.FP32, 2)],
    max_batch_size=8,
    batching=Batching(preferred_batch_size=(4,)),
)
BOTH = (0, 1)
SEED = 11
GONE = """
import gc
import tensorrt_rtx_bindings as trt
from appliance.runtimes.tensorrt import vendor
first, second = (trt.Runtime(vendor._words(trt)) for _ in range(2))
del first
gc.collect()
others = [bytes(64 + size) for size in range(20_000)]
words = vendor._words(trt)
trt.get_plugin_registry().load_library("/nowhere.so")
print(*words.kept)
"""


def compile_libraries(folder: Path) -> None:
    """The three libraries that the bindings link, all of which are one that is simulated."""
    for name, source in (
        ("nvinfer", str(SOURCE)),
        ("nvinfer_plugin", "/dev/null"),
        ("nvonnxparser", "/dev/null"),
    ):
        compile_library(source, f"lib{name}.so.11", folder)


@pytest.fixture(scope="module")
def cuda() -> CompiledCuda:
    """The real module for CUDA over a library that is simulated."""
    return compiled_cuda()


@pytest.fixture(scope="module")
def bindings(tmp_path_factory: pytest.TempPathFactory, cuda: CompiledCuda) -> ModuleType:
    """NVIDIA's real bindings, which find libraries by name among those that are loaded."""
    if importlib.util.find_spec("tensorrt_bindings") is None:
        pytest.skip(f"tensorrt_bindings is not installed: {NEEDS}")
    folder = tmp_path_factory.mktemp("simulated")
    compile_libraries(folder)
    for each in folder.iterdir():
        ctypes.CDLL(str(each))
    return importlib.import_module("tensorrt_bindings")


@pytest.fixture
def library(bindings: ModuleType) -> Library:
    return Library(bindings)


@pytest.fixture
def session(library: Library, cuda: CompiledCuda) -> Iterator[EngineSession]:
    held = cuda.held
    session = EngineSession(library.open(ENGINE), len(ENGINE), PAIRS, cuda.device)
    yield session
    session.close()
    assert cuda.held == held, "memory of the device, a stream or a graph was not given back"


class TestBindingsOverSimulatedLibnvinfer:
    def test_an_engine_tells_its_tensors_and_profiles(self, library: Library) -> None:
        engine = library.open(ENGINE)
        assert engine.tensors == (
            EngineTensor("a", True, Datatype.FP32, (-1, 3)),
            EngineTensor("b", True, Datatype.FP32, (-1, 2)),
            EngineTensor("p", False, Datatype.FP32, (-1, 3)),
            EngineTensor("q", False, Datatype.FP32, (-1, 2)),
        )
        assert engine.profiles == profiles_of(PAIRS)
        assert [engine.context_bytes(number) for number in (0, 1)] == [1000, 1001]

    @pytest.mark.parametrize("rows", [1, 4, 5, 8])
    def test_requests_are_run_in_the_profile_that_holds_them(self, session: EngineSession, rows: int) -> None:
        a, b = any_floats(rows, 3, rows), any_floats(rows, 2, 9)
        memory = Memory(a, b)
        for _ in range(2):
            produced = memory.run(session, BOTH)
            assert produced.shapes == ((rows, 3), (rows, 2))
            assert memory.outputs(produced) == [a.tobytes(), b.tobytes()]

    def test_what_is_outside_of_all_profiles_is_refused_before_tensorrt_sees_it(
        self, session: EngineSession
    ) -> None:
        with pytest.raises(InvalidRequest, match=r"takes 'a' \[1, 3\] to \[8, 3\]"):
            Memory(any_floats(9, 3), any_floats(9, 2)).run(session, BOTH)

    def test_runs_are_captured_and_launched_as_the_documentation_asks_for(
        self, session: EngineSession, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The simulated library refuses to capture the first run of a context, and spoils what was captured when a
        context is told something else."""
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 4, 1) * 4:
            a, b = any_floats(rows, 3, rows), any_floats(rows, 2, 9)
            memory = Memory(a, b)
            assert memory.outputs(memory.run(session, BOTH)) == [a.tobytes(), b.tobytes()]
        assert len(session._graphs.captured) == len((1, 2, 3, 4, 6, 8))
        assert "without CUDA graphs" not in capfd.readouterr().err

    def test_a_capture_that_tensorrt_refuses_leaves_a_session_that_runs_without(
        self, session: EngineSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        real = vendor.Context.run

        def changed(context: vendor.Context, stream: int) -> None:
            context.set_input_shape("a", (8, 3))
            real(context, stream)

        monkeypatch.setattr(vendor.Context, "run", changed)
        a, b = any_floats(8, 3, 1), any_floats(8, 2, 2)
        for _ in range(5):
            memory = Memory(a, b)
            assert memory.outputs(memory.run(session, BOTH)) == [a.tobytes(), b.tobytes()]
        said = capfd.readouterr().err
        assert said.count("runs without CUDA graphs: TensorRT cannot run this: operation not permitted") == 1

    def test_weights_may_be_elsewhere_than_on_the_device(self, library: Library, cuda: CompiledCuda) -> None:
        engine = library.open(ENGINE + b"weights 5000\n")
        assert engine.limit_weights(5000) == 0
        assert engine.limit_weights(2000) == 3000
        assert engine.context_bytes(0) == 1500, "with what weights come through"
        session = EngineSession(engine, 7000, PAIRS, cuda.device)
        for _ in range(4):
            a, b = any_floats(3, 3, 1), any_floats(3, 2, 2)
            memory = Memory(a, b)
            assert memory.outputs(memory.run(session, BOTH)) == [a.tobytes(), b.tobytes()]
        with pytest.raises(LoadFailed, match=r"no part of the weights off the device: .*active contexts"):
            engine.limit_weights(1000)
        session.close()

    def test_an_engine_whose_weights_have_to_be_on_the_device_is_left_as_it_is(
        self, library: Library
    ) -> None:
        engine = library.open(ENGINE)
        assert engine.limit_weights(10) == 0
        assert engine.context_bytes(0) == 1000

    @pytest.mark.parametrize("what", ["open", "context"])
    def test_an_engine_for_which_the_device_has_no_memory_is_refused_for_that(
        self, library: Library, cuda: CompiledCuda, what: str
    ) -> None:
        held = cuda.held
        with pytest.raises(
            DeviceHasNoRoom, match=r"^(model/1: )?its GPU has no memory left; .*OutOfMemory"
        ) as told:
            EngineSession(library.open(ENGINE + f"full {what}\n".encode()), 1, PAIRS, cuda.device)
        assert str(told.value).count("its GPU has no memory left") == 1
        assert cuda.held == held

    def test_what_was_said_of_a_full_device_before_is_not_said_of_another_failure(
        self, library: Library, cuda: CompiledCuda, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All that TensorRT says in a process comes to one place."""
        monkeypatch.setattr(device_graphs, "QUIET_NS", 0)  # other tests have this device, too
        session = EngineSession(library.open(ENGINE), 1, PAIRS, cuda.device)
        full = EngineSession(library.open(ENGINE + b"full run\n"), 1, PAIRS, cuda.device)
        memory = Memory(any_floats(2, 3), any_floats(2, 2))
        with pytest.raises(
            DeviceFull, match=r"^its GPU has no memory left; .*TensorRT cannot run this: .*out of memory"
        ):
            memory.run(full, BOTH)
        with pytest.raises(
            RunFailed, match=r"^TensorRT does not take the address of 'a': no address$"
        ) as told:
            session._contexts.another(0, session._copies.stream).set_address("a", 0)
        assert not isinstance(told.value, DeviceFull)
        session.close()
        full.close()

    def test_an_engine_takes_other_weights_and_can_take_others_again(
        self, library: Library, cuda: CompiledCuda
    ) -> None:
        once = library.refit(ENGINE + b"refits 3\n", b"key 85", "")
        twice = library.refit(once, b"key 170", "")
        a, b = any_floats(3, 3, 1), any_floats(3, 2, 2)
        for engine, key in ((once, 85), (twice, 170)):
            session = EngineSession(library.open(engine), len(engine), PAIRS, cuda.device)
            for _ in range(4):  # and so does a graph
                memory = Memory(a, b)
                expected = [bytes(byte ^ key for byte in each.tobytes()) for each in (a, b)]
                assert memory.outputs(memory.run(session, BOTH)) == expected
            assert len(session._graphs.captured) == 1
            session.close()

    @pytest.mark.parametrize(
        ("engine", "graph", "reason"),
        [
            (ENGINE, b"key 1", "makes no refitter: the engine was not built to be refitted"),
            (ENGINE + b"refits 3\n", b"other", "TensorRT does not take the graph: the graph is another one"),
            (ENGINE + b"refits 3\n", b"key -1", "takes no other weights into this engine: some weights are"),
        ],
    )
    def test_weights_that_an_engine_does_not_take_are_told_of(
        self, library: Library, engine: bytes, graph: bytes, reason: str
    ) -> None:
        with pytest.raises(LoadFailed, match=reason):
            library.refit(engine, graph, "")

    def test_each_no_of_tensorrt_is_an_error_with_its_words(self, library: Library) -> None:
        engine = library.open(ENGINE)
        with pytest.raises(LoadFailed, match="takes no profile 5: no such profile"):
            engine.context(5, 0, 256, 1000)
        with pytest.raises(RunFailed, match="there is no memory to compute in"):
            engine.context(0, 0, 256, 999).run(0)
        context = engine.context(0, 0, 256, 1000)
        with pytest.raises(RunFailed, match=r"shape \[9, 3\] of 'a': .*the shape is outside of the profile"):
            context.set_input_shape("a", (9, 3))
        with pytest.raises(RunFailed, match=r"address of 'a': .*no address"):
            context.set_address("a", 0)
        with pytest.raises(RunFailed, match=r"cannot run this: .*no address or no shape"):
            context.run(0)

    def test_an_engine_with_plug_ins_of_tensorrt_is_opened(self, library: Library) -> None:
        assert library.open(ENGINE + b"plugin roi_align\n").profiles == profiles_of(PAIRS)

    def test_complaints_are_of_what_was_asked_last(self, library: Library) -> None:
        with pytest.raises(RunFailed, match="no memory to compute in"):
            library.open(ENGINE).context(0, 0, 256, 999).run(0)
        with pytest.raises(LoadFailed, match=r"own engine: the magic number does not match$"):
            library.open(b"an engine of another release")

    def test_what_is_no_engine_is_refused_with_tensorrt_s_words(self, library: Library) -> None:
        with pytest.raises(LoadFailed, match="does not take its own engine: the magic number does not match"):
            library.open(b"an engine of another release")

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b"tensor a in 6 0 2 -1 3", "'a' is FP8, which no request can carry"),
            (b"tensor a in 0 1 2 -1 3", "used on the"),
        ],
    )
    def test_tensors_that_cannot_be_served_are_told_of(
        self, library: Library, line: bytes, reason: str
    ) -> None:
        with pytest.raises(LoadFailed, match=reason):
            library.open(ENGINE.replace(b"tensor a in 0 0 2 -1 3", line))

    def test_a_builder_that_cannot_be_made_is_told_of(self, library: Library) -> None:
        with pytest.raises(LoadFailed, match="makes no builder"):
            build(library, b"", PAIRS)


@pytest.fixture(scope="module")
def rtx() -> Library:
    """TensorRT-RTX, all of it NVIDIA's."""
    if importlib.util.find_spec("tensorrt_rtx_bindings") is None:
        pytest.skip(f"TensorRT-RTX is not installed: {NEEDS}")
    return Library(importlib.import_module("tensorrt_rtx_bindings"))


def build(
    library: Library,
    graph: bytes,
    version: ModelVersion,
    told: list[int] | None = None,
    *,
    streams: bool = False,
    refits: bool = False,
) -> Built:
    def progress(done: int, total: int) -> None:
        assert total == 1000
        if told is not None:
            told.append(done)

    return library.build(
        graph,
        version.path,
        profiles_of(version),
        workspace_bytes=1 << 28,
        cache=b"rubbish",
        streams=streams,
        refits=refits,
        progress=progress,
    )


def digits(which: int = 0) -> ModelVersion:
    reading = read_model_directory(str(MODELS), "digits", RepositoryConfig())
    assert reading is not None
    return reading.servable[which].model


def images() -> list[dict[str, NDArray[np.float32]]]:
    """For calibration, as grey as the digits are."""
    generator = np.random.default_rng(SEED)
    return [{"image": generator.uniform(0, 255, (4, 8, 8)).astype(np.float32)} for _ in range(4)]


def pictures() -> list[dict[str, NDArray[np.float32]]]:
    """For calibration of the other one."""
    generator = np.random.default_rng(SEED)
    return [{"x": generator.standard_normal((2, 2, 6, 6)).astype(np.float32)} for _ in range(4)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # RTX keeps no timing caches
class TestRealBuilderOfTensorrtRtx:
    def test_it_builds_an_engine_of_the_digits_and_tells_how_far_it_is(self, rtx: Library) -> None:
        version, told = digits(), list[int]()
        built = build(rtx, Path(version.path).read_bytes(), version, told)
        assert len(built.engine) > 10_000
        assert told == sorted(told)
        assert len(set(told)) > 10

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_it_builds_each_variant_that_is_made_for_it(
        self, rtx: Library, precision: str, tmp_path: Path
    ) -> None:
        """Of a convolution with Gemm and MatMul behind it, which is not the digits' shape."""
        source, target = write(tmp_path / "net.onnx", picture_model()), tmp_path / "variant.onnx"
        for name, path, feeds in (("digits", digits(-1).path, images()), ("net", str(source), pictures())):
            version = digits(-1) if name == "digits" else find_subject(source).version
            if PRECISIONS[precision] != ORIGINAL:
                make_variant(path, PRECISIONS[precision], str(target), feeds, for_tensorrt=True)
                path = str(target)
            built = build(rtx, Path(path).read_bytes(), replace(version, path=path, max_batch_size=8))
            assert len(built.engine) > 10_000

    @pytest.mark.parametrize(
        ("method", "node"), [("int8-static", "DequantizeLinear"), ("int4", "MatMulNBits")]
    )
    def test_it_takes_none_of_the_variants_that_are_made_for_the_processor(
        self, rtx: Library, method: str, node: str, tmp_path: Path
    ) -> None:
        """Else there would be no need of two forms."""
        version, target = digits(-1), tmp_path / "variant.onnx"
        make_variant(version.path, method, str(target), images())
        with pytest.raises(LoadFailed, match=rf"TensorRT does not take node '\w*' \({node}\)"):
            build(rtx, target.read_bytes(), replace(version, path=str(target)))

    def test_weights_in_a_file_of_their_own_are_found_beside_the_graph(
        self, rtx: Library, tmp_path: Path
    ) -> None:
        version = write_version(tmp_path)
        assert version.weights is not None
        built = build(rtx, Path(version.path).read_bytes(), version)
        assert len(built.engine) > version.weights.size * 0.9

    def test_it_builds_engines_whose_weights_can_be_elsewhere(self, rtx: Library, tmp_path: Path) -> None:
        version = write_version(tmp_path)
        assert version.weights is not None
        graph = Path(version.path).read_bytes()
        built = build(rtx, graph, version, streams=True)
        assert len(built.engine) > version.weights.size * 0.9
        assert built.engine != build(rtx, graph, version).engine

    def test_it_needs_a_driver_for_engines_that_can_take_other_weights(self, rtx: Library) -> None:
        if Path("/proc/driver/nvidia/version").exists():
            pytest.skip("there is a driver")
        version = digits()
        with pytest.raises(LoadFailed, match=r"cannot build an engine: .*CUDA driver"):
            build(rtx, Path(version.path).read_bytes(), version, refits=True)

    def test_it_gives_up_when_it_is_told_to(self, rtx: Library) -> None:
        class Enough(Exception):
            pass

        def enough(done: int, total: int) -> None:
            raise Enough

        version = digits()
        with pytest.raises(Enough):
            rtx.build(
                Path(version.path).read_bytes(),
                version.path,
                profiles_of(version),
                workspace_bytes=1 << 28,
                cache=b"",
                streams=False,
                refits=False,
                progress=enough,
            )

    def test_it_lives_on_when_what_was_made_first_is_gone(self, rtx: Library) -> None:
        """TensorRT has one logger for plug-ins, the first of the process, whoever is gone since."""
        ran = subprocess.run([sys.executable, "-c", GONE], capture_output=True, text=True, check=False)
        assert (ran.returncode, "loadLibrary" in ran.stdout) == (0, True), ran.stderr

    def test_it_says_which_node_it_does_not_take(self, rtx: Library) -> None:
        graph = model_bytes(
            "unique",
            [node("Unique", ["a"], ["p"])],
            inputs=[tensor_port("a", "FP32", [4])],
            outputs=[tensor_port("p", "FP32", ["n"])],
        )
        version = version_of("unique", [spec("a", Datatype.FP32, 4)], [spec("p", Datatype.FP32, -1)])
        with pytest.raises(LoadFailed, match=r"does not take node '\w*' \(Unique\): unsupported node"):
            build(rtx, graph, version)

    def test_a_profile_that_the_graph_does_not_have_is_told_of(self, rtx: Library) -> None:
        version = version_of("digits", [spec("image", Datatype.FP32, 9, 9)], [spec("p", Datatype.FP32, 10)])
        with pytest.raises(LoadFailed, match="TensorRT"):
            build(rtx, Path(digits().path).read_bytes(), version)

    def test_without_a_driver_it_opens_no_engine_and_says_why(self, rtx: Library) -> None:
        version = digits()
        built = build(rtx, Path(version.path).read_bytes(), version)
        if Path("/proc/driver/nvidia/version").exists():
            pytest.skip("there is a driver")
        with pytest.raises(LoadFailed, match=r"does not take its own engine: .*CUDA driver"):
            rtx.open(built.engine)
