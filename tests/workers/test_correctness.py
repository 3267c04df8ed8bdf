"""Through pool, lane and worker, every model answers bit for bit what an in-process session answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from appliance.domain.device_wish import ON_CUDA
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.workers.port import ItemStatus, ModelRefused, RunResult, WorkerExited
from models.generate import write_model
from models.generators.graph import Shape, constant, model_bytes, node, tensor_port
from tests.runtimes.onnx_reference import Array, make_array, reference, session_of
from tests.workers.bench import Bench, Placed, spec, strings, tensor, version_of

DIMENSIONS = (2, 3, 1, 2, 2, 3)
ROOM = 64 << 10


@pytest.fixture(scope="module")
def worker(shared_bench: Bench) -> Iterator[int]:
    """One worker for all models of this module; none of them may harm it."""
    number = shared_bench.start()
    yield number
    shared_bench.call(shared_bench.pool.stop, number)
    shared_bench.event(WorkerExited)


class Case:
    """One model loaded in the worker and in this process."""

    def __init__(
        self,
        bench: Bench,
        worker: int,
        path: Path,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        max_batch_size: int = 0,
    ) -> None:
        self.bench, self.worker, self.inputs, self.outputs = bench, worker, inputs, outputs
        version = version_of(path, inputs, outputs, max_batch_size=max_batch_size)
        self.model = bench.load(worker, version)
        self.session = session_of(path)

    def place(self, feed: Mapping[str, Array], *, rows: int = 1, capacity: int = ROOM) -> Placed:
        given = [tensor(feed[each.name]) if each.name in feed else None for each in self.inputs]
        return self.bench.place(given, range(len(self.outputs)), rows=rows, capacity=capacity)

    def check(self, feed: Mapping[str, Array]) -> None:
        """Three times: the first run, the one that binds, the one that is bound."""
        expected = reference(self.session, feed)
        placed = self.place(feed)
        for _ in range(3):
            placed.slot.memory.view(placed.item.out_offset, 1024)[:] = b"\xee" * 1024
            (result,) = self.bench.run(self.worker, self.model, placed)
            self.compare(placed, result, expected)
        self.bench.free(placed)

    def compare(self, placed: Placed, result: RunResult, expected: Sequence[Array]) -> None:
        assert result.status is ItemStatus.OK, result.error
        assert result.shapes == tuple(array.shape for array in expected)
        for raw, array in zip(self.bench.read(placed, result), expected, strict=True):
            if array.dtype == object:
                assert strings(raw) == list(array.reshape(-1))
            else:
                assert raw == array.tobytes()


def free(name: str, datatype: Datatype, rank: int) -> TensorSpec:
    """A tensor with free dimensions only."""
    return spec(name, datatype, *[-1] * rank)


@pytest.mark.parametrize("rank", range(7))
@pytest.mark.parametrize("datatype", Datatype, ids=lambda each: each.wire)
def test_datatypes_by_rank(
    shared_bench: Bench, worker: int, tmp_path: Path, datatype: Datatype, rank: int
) -> None:
    symbols: Shape = [f"d{axis}" for axis in range(rank)]
    model = model_bytes(
        "matrix",
        [
            node("Identity", ["x"], ["same"]),
            node("Reshape", ["x", "all"], ["flat"]),
            node("Shape", ["x"], ["shape"]),
        ],
        inputs=[tensor_port("x", datatype.wire, symbols)],
        outputs=[
            tensor_port("same", datatype.wire, symbols),
            tensor_port("flat", datatype.wire, ["n"]),
            tensor_port("shape", "INT64", [rank]),
        ],
        constants=[constant("all", np.array([-1], np.int64))],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    outputs = [free("same", datatype, rank), free("flat", datatype, 1), free("shape", Datatype.INT64, 1)]
    case = Case(shared_bench, worker, path, [free("x", datatype, rank)], outputs)
    shapes = {DIMENSIONS[:rank], (1,) * rank, *([(0, *DIMENSIONS[1:rank])] if rank else [])}
    for shape in sorted(shapes):
        case.check({"x": make_array(datatype, shape)})
    shared_bench.call(shared_bench.pool.unload, worker, case.model)


def load_sample(
    bench: Bench,
    worker: int,
    root: Path,
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    max_batch_size: int = 0,
) -> Case:
    path = write_model(name, root) / "1" / "model.onnx"
    return Case(bench, worker, path, inputs, outputs, max_batch_size)


FP32, INT32, INT64 = Datatype.FP32, Datatype.INT32, Datatype.INT64


def test_optional_input_given_and_left_out(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    inputs = [spec("x", FP32, -1, 4), spec("offset", FP32, 1, optional=True)]
    case = load_sample(shared_bench, worker, tmp_path, "optional_input", inputs, [free("y", FP32, 2)])
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    case.check({"x": x})
    case.check({"x": x, "offset": np.array([0.5], np.float32)})


def test_many_inputs_and_outputs(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    names = [f"{number:02d}" for number in range(20)]
    case = load_sample(
        shared_bench,
        worker,
        tmp_path,
        "many_io",
        [spec(f"IN{name}", INT64, -1, 2) for name in names],
        [spec(f"OUT{name}", INT64, -1, 2) for name in names],
    )
    case.check({f"IN{name}": np.full((3, 2), int(name) * 7, np.int64) for name in names})


def test_only_the_wanted_outputs(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    inputs = [spec("INPUT0", INT32, 16), spec("INPUT1", INT32, 16)]
    outputs = [spec("OUTPUT0", INT32, 16), spec("OUTPUT1", INT32, 16)]
    case = load_sample(shared_bench, worker, tmp_path, "add_sub", inputs, outputs, max_batch_size=4)
    feed = {
        name: np.arange(16, dtype=np.int32)[None] * factor for name, factor in (("INPUT0", 5), ("INPUT1", 2))
    }
    both = case.place(feed)
    last = both._replace(item=case.place(feed).item._replace(outputs=(1,), ticket=990))
    total, difference = reference(case.session, feed)
    for _ in range(3):
        results = shared_bench.run(worker, case.model, both, last)
        case.compare(both, results[0], [total, difference])
        case.compare(last, results[1], [difference])
        case.compare(last, shared_bench.run(worker, case.model, last)[0], [difference])


def test_repeated_symbols(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    case = load_sample(
        shared_bench,
        worker,
        tmp_path,
        "repeated_symbol",
        [free("a", INT32, 2), free("b", INT32, 2)],
        [free("y", INT32, 2)],
    )
    for n, m in ((2, 3), (4, 1), (1, 5)):
        case.check({"a": make_array(INT32, (n, m)), "b": make_array(INT32, (m, n), 9)})


def test_names_with_odd_characters(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    source, result = "in put/0:ä", "out\"put'{1}\u2192"
    case = load_sample(
        shared_bench, worker, tmp_path, "odd_names", [spec(source, FP32, -1, 2)], [spec(result, FP32, -1, 2)]
    )
    case.check({source: make_array(FP32, (2, 2))})


def test_shapes_that_depend_on_values(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    case = load_sample(
        shared_bench, worker, tmp_path, "data_shape", [free("x", FP32, 1)], [spec("y", INT64, 1, -1)]
    )
    for values in ([1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 2, 0, 0], [3, 0, 3, 0]):
        case.check({"x": np.array(values, np.float32)})


def test_an_output_that_is_an_input(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    model = model_bytes(
        "through",
        [node("Neg", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n"])],
        outputs=[
            tensor_port("y", "FP32", ["n"]),
            tensor_port("x", "FP32", ["n"]),
            tensor_port("c", "FP32", [2]),
        ],
        constants=[constant("c", np.array([5, 6], np.float32))],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    outputs = [free("y", FP32, 1), free("x", FP32, 1), spec("c", FP32, 2)]
    case = Case(shared_bench, worker, path, [free("x", FP32, 1)], outputs)
    case.check({"x": make_array(FP32, (5,))})


def test_strings_in_and_out(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    inputs = [free("a", Datatype.BYTES, 2), free("b", Datatype.BYTES, 2)]
    case = load_sample(
        shared_bench, worker, tmp_path, "string_concat", inputs, [free("y", Datatype.BYTES, 2)]
    )
    for shape in ((2, 4), (0, 3), (1, 1)):
        case.check({"a": make_array(Datatype.BYTES, shape), "b": make_array(Datatype.BYTES, shape, 2)})


def test_strings_that_are_not_text_are_refused_clearly(
    shared_bench: Bench, worker: int, tmp_path: Path
) -> None:
    one = [free("x", Datatype.BYTES, 2)], [free("y", Datatype.BYTES, 2)]
    case = load_sample(shared_bench, worker, tmp_path, "identity_bytes", *one)
    raw = b"\x02\x00\x00\x00ok\x02\x00\x00\x00\xff\xfe"
    placed = shared_bench.place([tensor(np.array([["ok"]], object))._replace(shape=(1, 2), raw=raw)], [0])
    (result,) = shared_bench.run(worker, case.model, placed)
    assert result.status is ItemStatus.INVALID
    assert "input 'x': element 1 is not valid UTF-8" in result.error


@pytest.mark.parametrize("split", [(1, 1), (3, 1, 2), (1,) * 8, (2, 6)])
def test_a_batch_is_one_run_split_by_rows(
    shared_bench: Bench, worker: int, tmp_path: Path, split: tuple[int, ...]
) -> None:
    case = load_sample(
        shared_bench, worker, tmp_path, "mlp", [spec("x", FP32, 64)], [spec("y", FP32, 10)], max_batch_size=8
    )
    x = np.random.default_rng(3).standard_normal((sum(split), 64)).astype(np.float32)
    (expected,) = reference(case.session, {"x": x})
    starts = np.cumsum((0, *split))
    placed = [
        case.place({"x": x[start : start + rows]}, rows=rows)
        for start, rows in zip(starts, split, strict=False)
    ]
    for _ in range(3):
        results = shared_bench.run(worker, case.model, *placed)
        for each, result, start, rows in zip(placed, results, starts, split, strict=False):
            case.compare(each, result, [expected[start : start + rows]])


def test_a_batch_of_strings_is_split_by_rows(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    one = [spec("x", Datatype.BYTES, -1)], [spec("y", Datatype.BYTES, -1)]
    case = load_sample(shared_bench, worker, tmp_path, "identity_bytes", *one, max_batch_size=8)
    arrays = [make_array(Datatype.BYTES, (rows, 3), rows) for rows in (2, 1, 3)]
    placed = [case.place({"x": array}, rows=len(array)) for array in arrays]
    results = shared_bench.run(worker, case.model, *placed)
    for each, result, array in zip(placed, results, arrays, strict=True):
        case.compare(each, result, [array])


def test_outputs_larger_than_their_place_in_a_batch(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    case = load_sample(
        shared_bench, worker, tmp_path, "mlp", [spec("x", FP32, 64)], [spec("y", FP32, 10)], max_batch_size=8
    )
    x = make_array(INT32, (2, 64)).astype(np.float32)
    small, large = case.place({"x": x[:1]}, capacity=16), case.place({"x": x[1:]})
    results = shared_bench.run(worker, case.model, small, large)
    assert (results[0].status, results[0].needed) == (ItemStatus.TOO_LARGE, 64)
    case.compare(large, results[1], [reference(case.session, {"x": x})[0][1:]])


def test_an_output_without_the_batch_dimension_is_an_error(
    shared_bench: Bench, worker: int, tmp_path: Path
) -> None:
    case = load_sample(
        shared_bench,
        worker,
        tmp_path,
        "transpose",
        [spec("x", FP32, -1)],
        [spec("y", FP32, -1)],
        max_batch_size=4,
    )
    placed = [case.place({"x": np.zeros((1, 3), np.float32)}) for _ in range(2)]
    for result in (
        *shared_bench.run(worker, case.model, *placed),
        *shared_bench.run(worker, case.model, placed[0]),
    ):
        assert result.status is ItemStatus.FAILED
        assert "output 'y' has shape [3, 1] for a batch of 1 rows" in result.error
        assert "set max_batch_size to 0" in result.error


REFUSED = {
    "sequence_out": "output 'y' is of type seq(tensor(float))",
    "map_out": "output 'y' is of type seq(map(int64,tensor(float)))",
    "map_in": "input 'x' is of type map(string,tensor(float))",
    "optional_type": "input 'x' is of type optional(tensor(float))",
    "not_onnx": "INVALID_PROTOBUF",
    "truncated": "INVALID_PROTOBUF",
    "unknown_operator": "operator 'Frobnicate' of the domain 'com.microsoft' is not known",
    "external_outside": "escapes model directory",
}


@pytest.mark.parametrize(("name", "reason"), REFUSED.items(), ids=REFUSED.keys())
def test_models_that_cannot_be_served_are_refused_with_the_reason(
    shared_bench: Bench, worker: int, tmp_path: Path, name: str, reason: str
) -> None:
    path = write_model(name, tmp_path) / "1" / "model.onnx"
    refused = shared_bench.try_load(worker, version_of(path, [free("x", FP32, 2)], [free("y", FP32, 2)]))
    assert isinstance(refused, ModelRefused)
    assert reason in refused.reason
    assert refused.unsupported == (name == "unknown_operator"), "of the others the files may be to blame"


def test_a_session_that_is_not_what_the_model_says(shared_bench: Bench, worker: int, tmp_path: Path) -> None:
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    inputs = [spec("x", INT32, 64), spec("ghost", FP32, 1)]
    outputs = [spec("y", FP32, 11), spec("z", FP32, 2, 2)]
    refused = shared_bench.try_load(worker, version_of(path, inputs, outputs, max_batch_size=4))
    assert isinstance(refused, ModelRefused)
    assert "input 'x' is said to be INT32, the model has FP32" in refused.reason
    assert "input 'ghost' does not exist, the model has 'x'" in refused.reason
    assert "output 'y' is said to have shape [-1, 11], the model has [-1, 10]" in refused.reason
    assert "output 'z' does not exist, the model has 'y'" in refused.reason


def test_a_cuda_model_on_a_machine_without_cuda_is_refused(
    shared_bench: Bench, worker: int, tmp_path: Path
) -> None:
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    version = version_of(path, [spec("x", FP32, 64)], [spec("y", FP32, 10)], max_batch_size=4, device=ON_CUDA)
    refused = shared_bench.try_load(worker, version)
    assert isinstance(refused, ModelRefused)
    assert (
        "asks for device 'cuda', but the installed onnxruntime has no CUDAExecutionProvider" in refused.reason
    )
    assert "or have it run on the processor (kind: KIND_CPU, or KIND_AUTO: " in refused.reason
