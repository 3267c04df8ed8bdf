"""Every sample model does what its summary says, in the real runtime, or is refused by it as declared.

Expected results come from numpy on the same inputs. A sample model without a row here fails the completeness test.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from models.generate import MODELS, Expectation, main, write_model
from models.generators.burn import BurnTime, Turns, burn_graph, plan_turns
from models.generators.compute import external_weight, mlp_weights

Tensors = dict[str, NDArray[Any]]
SEED = 11
INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
FLOATS = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}


def _floats(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)


def _identity_input(kind: str) -> NDArray[Any]:
    if kind == "bool":
        return np.array([[True, False, True]])
    if kind == "bytes":
        return np.array([["", "a", "ä\u2192"]], dtype=object)
    if kind in INTEGERS:
        limits = np.iinfo(kind)
        return np.array([[limits.min, 0, limits.max]], dtype=kind)
    return np.array([[-0.5, np.inf, 1e-7]], dtype=FLOATS[kind])


def _mlp(feed: Tensors) -> Tensors:
    value = feed["x"].astype(np.float64)
    *hidden, (weight, bias) = mlp_weights()
    for layer_weight, layer_bias in hidden:
        value = np.maximum(value @ layer_weight + layer_bias, 0)
    return {"y": value @ weight + bias}


def _many(feed: Tensors) -> Tensors:
    return {f"OUT{name[2:]}": array + int(name[2:]) for name, array in feed.items()}


def _variable(feed: Tensors) -> Tensors:
    return {"y": feed["x"] * 2, "total": feed["x"].sum(axis=1, keepdims=True)}


def _add_sub(feed: Tensors) -> Tensors:
    first, second = feed["INPUT0"], feed["INPUT1"]
    return {"OUTPUT0": first + second, "OUTPUT1": first - second}


def _only(formula: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Tensors], Tensors]:
    return lambda feed: {"y": formula(feed["x"])}


def _same(array: NDArray[Any]) -> NDArray[Any]:
    return array


STRINGS = {"a": np.array([["x", ""]], dtype=object), "b": np.array([["y", "ü"]], dtype=object)}
INT32 = np.arange(32, dtype=np.int32).reshape(2, 16)
CASES: Mapping[str, tuple[Tensors, Callable[[Tensors], Tensors]]] = {
    **{
        f"identity_{kind}": ({"x": _identity_input(kind)}, _only(_same))
        for kind in ("bool", "bytes", *INTEGERS, *FLOATS)
    },
    **{f"rank_{n}": ({"x": _floats(*range(1, n + 1))}, _only(np.negative)) for n in range(1, 7)},
    "scalar": ({"x": np.array(-3, np.float32)}, _only(np.square)),
    "no_batch": ({"x": _floats(3, 2)}, _only(lambda x: x + np.float32(1))),
    "variable": ({"x": np.arange(10, dtype=np.float32).reshape(2, 5)}, _variable),
    "reshape": ({"x": _floats(3, 4, 4)}, _only(lambda x: x.reshape(3, 16))),
    "transpose": ({"x": _floats(2, 5)}, _only(np.transpose)),
    "repeated_symbol": (
        {"a": INT32[:, :3].copy(), "b": INT32[:, 3:6].T.copy()},
        lambda feed: {"y": feed["a"] @ feed["b"]},
    ),
    "data_shape": ({"x": np.array([0, 2, 0, 4], np.float32)}, _only(lambda x: np.array(np.nonzero(x)))),
    "add_sub": ({"INPUT0": INT32, "INPUT1": INT32 * 3}, _add_sub),
    "string_concat": (STRINGS, lambda feed: {"y": feed["a"] + feed["b"]}),
    "optional_input": ({"x": _floats(2, 4)}, _only(lambda x: x + np.float32(10))),
    "many_io": ({f"IN{n:02d}": np.array([[n, -n]], np.int64) for n in range(20)}, _many),
    "odd_names": ({"in put/0:ä": _floats(1, 2)}, lambda feed: {"out\"put'{1}\u2192": feed["in put/0:ä"]}),
    "mlp": ({"x": _floats(5, 64)}, _mlp),
    "big_mean": (
        {"image": _floats(2, 3, 224, 224)},
        lambda feed: {"mean": feed["image"].mean(axis=(2, 3), dtype=np.float64)},
    ),
    "detector_mean": (
        {"image": _floats(1, 3, 640, 640)},
        lambda feed: {"mean": feed["image"].mean(axis=(2, 3), dtype=np.float64)},
    ),
    "external": ({"x": np.eye(2, 32, dtype=np.float32)}, _only(lambda x: x @ external_weight())),
    "burn_2ms": ({"x": _floats(3, 16)}, _only(_same)),
    "burn_10ms": ({"x": _floats(8, 16)}, _only(_same)),
    "huge_alloc": ({"x": np.array([2, 3], np.int64)}, _only(lambda x: np.array(6, np.float32))),
    "endless": ({"x": np.array([-2], np.float32)}, _only(_same)),
    "wrong_config": ({"x": _floats(1, 64)}, _mlp),
}
ROUNDING = {"mlp", "wrong_config", "big_mean", "detector_mean"}
REFUSED = {"not_onnx", "truncated", "unknown_operator"}
OTHER_TYPES = {
    "sequence_out": "seq(tensor(float))",
    "map_out": "seq(map(int64,tensor(float)))",
    "map_in": "map(string,tensor(float))",
    "optional_type": "optional(tensor(float))",
}


def _session(name: str, root: Path) -> ort.InferenceSession:
    home = write_model(name, root)
    return ort.InferenceSession(str(home / "1" / "model.onnx"), providers=["CPUExecutionProvider"])


def test_every_sample_model_is_covered_here() -> None:
    covered = {*CASES, *REFUSED, *OTHER_TYPES, "identity_bf16", "external_outside"}
    assert covered == set(MODELS)


@pytest.mark.parametrize("name", CASES)
def test_computes_what_the_summary_says(name: str, tmp_path: Path) -> None:
    feed, formula = CASES[name]
    session = _session(name, tmp_path)
    outputs = [output.name for output in session.get_outputs()]
    answered = dict(zip(outputs, session.run(None, feed), strict=True))
    expected = formula(feed)
    assert answered.keys() == expected.keys()
    for output, array in expected.items():
        assert answered[output].shape == array.shape
        if name in ROUNDING:
            np.testing.assert_allclose(answered[output], array, rtol=1e-4, atol=1e-5)
        else:
            assert answered[output].dtype == array.dtype
            np.testing.assert_array_equal(answered[output], array)


def test_bf16_passes_bit_for_bit(tmp_path: Path) -> None:
    session = _session("identity_bf16", tmp_path)
    bits = np.array([[0x3F80, 0xFF80, 0x0001]], np.uint16)
    bfloat16 = 16  # the element type's number in ONNX
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, bfloat16)
    (answered,) = session.run_with_ort_values(["y"], {"x": value})
    assert answered.data_type() == "tensor(bfloat16)"
    assert answered.shape() == [1, 3]
    assert ctypes.string_at(answered.data_ptr(), bits.nbytes) == bits.tobytes()


def test_the_default_of_an_optional_input_can_be_overridden(tmp_path: Path) -> None:
    session = _session("optional_input", tmp_path)
    assert [value.name for value in session.get_overridable_initializers()] == ["offset"]
    feed = {"x": np.zeros((1, 4), np.float32), "offset": np.array([-1], np.float32)}
    np.testing.assert_array_equal(session.run(["y"], feed)[0], np.full((1, 4), -1))


@pytest.mark.parametrize("name", sorted(OTHER_TYPES))
def test_types_that_are_not_tensors_load_in_the_runtime(name: str, tmp_path: Path) -> None:
    session = _session(name, tmp_path)
    assert MODELS[name].expectation is Expectation.UNSERVABLE_TYPE
    assert OTHER_TYPES[name] in {port.type for port in (*session.get_inputs(), *session.get_outputs())}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_the_runtime_refuses_broken_models(name: str, tmp_path: Path) -> None:
    assert MODELS[name].expectation is Expectation.RUNTIME_REFUSES
    with pytest.raises(Exception, match=r"INVALID_PROTOBUF|not a registered function"):
        _session(name, tmp_path)


def test_weights_outside_the_directory_exist_and_are_the_only_thing_wrong(tmp_path: Path) -> None:
    home = write_model("external_outside", tmp_path)
    assert MODELS["external_outside"].expectation is Expectation.UNSAFE_PATH
    secret = tmp_path / "secret.bin"
    assert secret.read_bytes() == external_weight().tobytes()
    assert b"../../secret.bin" in (home / "1" / "model.onnx").read_bytes()


def test_a_wrong_config_is_written_beside_a_good_graph(tmp_path: Path) -> None:
    home = write_model("wrong_config", tmp_path)
    assert MODELS["wrong_config"].expectation is Expectation.CONFIG_DISAGREES
    assert "TYPE_INT32" in (home / "config.pbtxt").read_text()


def test_endless_runs_until_it_is_terminated(tmp_path: Path) -> None:
    session = _session("endless", tmp_path)
    options = ort.RunOptions()
    timer = threading.Timer(0.2, setattr, (options, "terminate", True))
    timer.start()
    with pytest.raises(Exception, match="terminate"):
        session.run(None, {"x": np.array([1], np.float32)}, options)
    timer.join()


def test_huge_alloc_takes_the_memory_it_is_asked_for(tmp_path: Path) -> None:
    home = write_model("huge_alloc", tmp_path)
    program = (
        "import resource, sys, numpy, onnxruntime\n"
        "options = onnxruntime.SessionOptions()\n"
        "options.intra_op_num_threads = 1\n"
        "session = onnxruntime.InferenceSession(sys.argv[1], options)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "try:\n"
        "    session.run(None, {'x': numpy.array([1 << 31], numpy.int64)})\n"
        "except Exception as problem:\n"
        "    print('refused:', problem)\n"
    )
    command = [sys.executable, "-c", program, str(home / "1" / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search("refused:.*(alloc|8589934592)", done.stdout, re.DOTALL), done.stdout


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"burn_2ms", "burn_10ms"}))
def test_the_same_name_is_the_same_bytes(name: str) -> None:
    assert MODELS[name].build() == MODELS[name].build()


def test_burn_turns_are_a_line_in_the_batch_size() -> None:
    wanted = BurnTime(batch_1_ms=10.0, batch_8_ms=12.0)
    turns = plan_turns(wanted, turn_ms=0.01, overhead_ms=0.1)
    for batch, milliseconds in ((1, 10.0), (8, 12.0)):
        planned = 0.1 + 0.01 * (turns.fixed + turns.per_row * batch)
        assert planned == pytest.approx(milliseconds, abs=0.05)


def test_burn_refuses_times_that_shrink_with_the_batch() -> None:
    with pytest.raises(ValueError, match="batch 1 <= batch 8"):
        BurnTime(batch_1_ms=3.0, batch_8_ms=2.0)


@pytest.mark.parametrize(("batch", "turns"), [(1, 5), (4, 11)])
def test_burn_does_its_turns_and_answers_the_input(batch: int, turns: int, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    model = burn_graph(Turns(fixed=3, per_row=2))
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rows = _floats(batch, 16)
    np.testing.assert_array_equal(session.run(None, {"x": rows})[0], rows)
    events = json.loads(Path(session.end_profiling()).read_text())
    products = [event for event in events if event.get("args", {}).get("op_name") == "MatMul"]
    assert len({event["ts"] for event in products}) == len(products) == turns


def test_an_unknown_name_is_an_error_that_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="--list"):
        write_model("no_such_model", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_lists_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(MODELS)
    assert main([str(tmp_path), "mlp", "scalar"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp", "scalar"]
    with pytest.raises(SystemExit):
        main([str(tmp_path), "no_such_model"])


def test_the_command_reports_a_directory_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert main([str(blocked), "scalar"]) == 1
    assert "cannot write scalar" in capsys.readouterr().err


def test_without_onnx_it_is_said_what_installs_it() -> None:
    """An interpreter that looks at no installed packages stands for one that has none."""
    file = Path(__file__).parents[2] / "models" / "generate.py"
    command = [sys.executable, "-S", str(file), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "'make install-test' installs it" in done.stderr
