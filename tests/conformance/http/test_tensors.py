"""Every datatype and shape through the public client, both as binary tensor data and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from appliance.domain.tensor import Datatype
from tests.appliance_process import ApplianceProcess
from tests.fronts import EVERY_WAY, TEMPLATED

NUMPY: dict[Datatype, Any] = {
    Datatype.BOOL: np.bool_,
    Datatype.UINT8: np.uint8,
    Datatype.UINT16: np.uint16,
    Datatype.UINT32: np.uint32,
    Datatype.UINT64: np.uint64,
    Datatype.INT8: np.int8,
    Datatype.INT16: np.int16,
    Datatype.INT32: np.int32,
    Datatype.INT64: np.int64,
    Datatype.FP16: np.float16,
    Datatype.FP32: np.float32,
    Datatype.FP64: np.float64,
    Datatype.BYTES: np.object_,
}
HAS_JSON = [datatype for datatype in NUMPY if datatype is not Datatype.FP16]

pytestmark = pytest.mark.parametrize("way", EVERY_WAY, indirect=True)


@pytest.fixture
def client(server: ApplianceProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.http) as client:
        yield client


def _values(datatype: Datatype, shape: tuple[int, ...]) -> NDArray[Any]:
    count = int(np.prod(shape))
    if datatype is Datatype.BYTES:
        words = [("", "a", "snow \u2603", "x" * 300)[index % 4].encode() for index in range(count)]
        return np.array(words, dtype=np.object_).reshape(shape)
    if datatype is Datatype.BOOL:
        return np.resize(np.array([True, False, False]), shape)
    kind = NUMPY[datatype]
    if np.issubdtype(kind, np.integer):
        bounds = np.iinfo(kind)
        edges = np.array([bounds.min, bounds.max, 0, 1], dtype=kind)
        return np.resize(edges, shape)
    floats = np.array([0.1, -2.5, 65504.0, -0.0, 1e-7], dtype=kind)
    return np.resize(floats, shape)


def _ask(
    client: triton.InferenceServerClient,
    model: str,
    tensors: dict[str, tuple[NDArray[Any], str]],
    wanted: str,
    *,
    binary_in: bool = True,
    binary_out: bool = True,
    **options: Any,
) -> Any:
    inputs = []
    for name, (array, datatype) in tensors.items():
        tensor = triton.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=binary_in)
        inputs.append(tensor)
    outputs = [triton.InferRequestedOutput(wanted, binary_data=binary_out)]
    return client.infer(model, inputs, outputs=outputs, **options)


def _leased(server: ApplianceProcess, model: str) -> int:
    """Requests of a model that were answered without the engine."""
    return sum(int(found["leased"]) for found in server.status()["models"] if found["name"] == model)


@pytest.mark.parametrize("binary_out", [True, False], ids=["binary-out", "json-out"])
@pytest.mark.parametrize("binary_in", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize("datatype", HAS_JSON, ids=str)
def test_every_datatype_comes_back_as_it_was_sent(
    way: str,
    server: ApplianceProcess,
    client: triton.InferenceServerClient,
    datatype: Datatype,
    binary_in: bool,
    binary_out: bool,
) -> None:
    array = _values(datatype, (3, 5))
    model = f"identity_{datatype.wire.lower()}"
    before = _leased(server, model)
    result = _ask(
        client, model, {"x": (array, datatype.wire)}, "y", binary_in=binary_in, binary_out=binary_out
    )
    answer = result.as_numpy("y")
    if datatype is Datatype.BYTES and not binary_out:
        answer = np.array([text.encode() for text in answer.reshape(-1)], dtype=np.object_).reshape(3, 5)
    assert answer.dtype == array.dtype
    np.testing.assert_array_equal(answer, array)
    natively = way == TEMPLATED and datatype is not Datatype.BYTES
    assert (_leased(server, model) > before) is natively, "whoever answered the ones behind the first"


def test_fp16_and_bf16_travel_as_binary_data(client: triton.InferenceServerClient) -> None:
    half = _values(Datatype.FP16, (2, 3))
    np.testing.assert_array_equal(
        _ask(client, "identity_fp16", {"x": (half, "FP16")}, "y").as_numpy("y"), half
    )
    brain = np.array([[1.5, -2.0, 0.0]], dtype=ml_dtypes.bfloat16)
    np.testing.assert_array_equal(
        _ask(client, "identity_bf16", {"x": (brain, "BF16")}, "y").as_numpy("y"), brain
    )


@pytest.mark.parametrize("wire", ["FP16", "BF16"])
def test_what_has_no_json_form_says_so(client: triton.InferenceServerClient, wire: str) -> None:
    array = np.ones((1, 2), dtype=np.float16 if wire == "FP16" else ml_dtypes.bfloat16)
    with pytest.raises(InferenceServerException, match="no JSON form"):
        _ask(client, f"identity_{wire.lower()}", {"x": (array, wire)}, "y", binary_out=False)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("rank", range(1, 7))
def test_every_rank(client: triton.InferenceServerClient, rank: int, binary: bool) -> None:
    shape = tuple(range(1, rank + 1))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    result = _ask(client, f"rank_{rank}", {"x": (array, "FP32")}, "y", binary_in=binary, binary_out=binary)
    np.testing.assert_array_equal(result.as_numpy("y"), -array)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_rank_0(client: triton.InferenceServerClient, binary: bool) -> None:
    array = np.array(3.0, dtype=np.float32)
    result = _ask(client, "scalar", {"x": (array, "FP32")}, "y", binary_in=binary, binary_out=binary)
    assert result.as_numpy("y") == 9.0
    assert result.as_numpy("y").shape == ()


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_empty_tensors(client: triton.InferenceServerClient, binary: bool) -> None:
    array = np.zeros((2, 0), dtype=np.float32)
    result = _ask(client, "identity_fp32", {"x": (array, "FP32")}, "y", binary_in=binary, binary_out=binary)
    assert result.as_numpy("y").shape == (2, 0)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_many_inputs_and_outputs(client: triton.InferenceServerClient, binary: bool) -> None:
    arrays = {f"IN{index:02}": np.array([[index, -index]], dtype=np.int64) for index in range(20)}
    for wanted in (0, 7, 19):
        result = _ask(
            client,
            "many_io",
            {name: (array, "INT64") for name, array in arrays.items()},
            f"OUT{wanted:02}",
            binary_in=binary,
            binary_out=binary,
        )
        np.testing.assert_array_equal(result.as_numpy(f"OUT{wanted:02}"), arrays[f"IN{wanted:02}"] + wanted)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_names_with_odd_characters(client: triton.InferenceServerClient, binary: bool) -> None:
    metadata = client.get_model_metadata("odd_names")
    array = np.array([[1.0, 2.0]], dtype=np.float32)
    name, wanted = metadata["inputs"][0]["name"], metadata["outputs"][0]["name"]
    result = _ask(client, "odd_names", {name: (array, "FP32")}, wanted, binary_in=binary, binary_out=binary)
    np.testing.assert_array_equal(result.as_numpy(wanted), array)


def test_an_optional_input_may_be_left_out(client: triton.InferenceServerClient) -> None:
    array = np.zeros((1, 4), dtype=np.float32)
    left_out = _ask(client, "optional_input", {"x": (array, "FP32")}, "y")
    np.testing.assert_array_equal(left_out.as_numpy("y"), array + 10)
    offset = (np.array([2.5], dtype=np.float32), "FP32")
    given = _ask(client, "optional_input", {"x": (array, "FP32"), "offset": offset}, "y")
    np.testing.assert_array_equal(given.as_numpy("y"), array + 2.5)


def test_outputs_whose_size_only_the_run_knows(client: triton.InferenceServerClient) -> None:
    for length, nonzero in ((8, 0), (8, 3), (5000, 4999)):
        array = np.zeros(length, dtype=np.float32)
        array[:nonzero] = 1
        result = _ask(client, "data_shape", {"x": (array, "FP32")}, "y")
        np.testing.assert_array_equal(result.as_numpy("y"), np.nonzero(array))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_bodies_may_be_compressed_both_ways(
    client: triton.InferenceServerClient, coding: str, binary: bool
) -> None:
    array = np.arange(6000, dtype=np.int32).reshape(3, 2000)
    result = _ask(
        client,
        "identity_int32",
        {"x": (array, "INT32")},
        "y",
        binary_in=binary,
        binary_out=binary,
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    np.testing.assert_array_equal(result.as_numpy("y"), array)


def test_not_finite_values_reach_the_client_through_json(client: triton.InferenceServerClient) -> None:
    array = np.array([[np.nan, np.inf, -np.inf, 1.0]], dtype=np.float32)
    result = _ask(client, "identity_fp32", {"x": (array, "FP32")}, "y", binary_out=False)
    np.testing.assert_array_equal(result.as_numpy("y"), array)
