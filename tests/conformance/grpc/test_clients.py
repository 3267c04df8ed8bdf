"""The public gRPC clients, unmodified: every call they have, every datatype both ways."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from PIL import Image
from tritonclient.utils import InferenceServerException

from appliance.domain.tensor import Datatype
from tests.appliance_process import ApplianceProcess
from tests.fronts import EVERY_WAY

DIGITS = Path(__file__).parents[3] / "models" / "digits"
RANDOM = np.random.default_rng(7)
SHAPE = (2, 3)
VALUES: dict[Datatype, Any] = {
    Datatype.BOOL: RANDOM.integers(0, 2, SHAPE).astype(np.bool_),
    Datatype.UINT8: RANDOM.integers(0, 255, SHAPE, dtype=np.uint8),
    Datatype.UINT16: RANDOM.integers(0, 65535, SHAPE, dtype=np.uint16),
    Datatype.UINT32: RANDOM.integers(0, 1 << 32, SHAPE, dtype=np.uint32),
    Datatype.UINT64: RANDOM.integers(0, 1 << 63, SHAPE, dtype=np.uint64),
    Datatype.INT8: RANDOM.integers(-128, 127, SHAPE, dtype=np.int8),
    Datatype.INT16: RANDOM.integers(-32768, 32767, SHAPE, dtype=np.int16),
    Datatype.INT32: RANDOM.integers(-(1 << 31), 1 << 31, SHAPE, dtype=np.int32),
    Datatype.INT64: RANDOM.integers(-(1 << 62), 1 << 62, SHAPE, dtype=np.int64),
    Datatype.FP16: RANDOM.normal(size=SHAPE).astype(np.float16),
    Datatype.FP32: np.array([[1, np.inf, -0.0], [np.pi, -1e-40, 3e38]], np.float32),
    Datatype.FP64: RANDOM.normal(size=SHAPE),
    Datatype.BF16: np.array([[1, -2, 0.5], [0, 128, -1]], ml_dtypes.bfloat16),
    Datatype.BYTES: np.array(
        [[b"", b"text", b"in\x00side"], ["\u00e4".encode(), b" ", b"x" * 300]], np.object_
    ),
}


pytestmark = pytest.mark.parametrize("way", EVERY_WAY, indirect=True)


@pytest.fixture
def client(server: ApplianceProcess) -> Iterator[Any]:
    connected = triton.InferenceServerClient(server.grpc)
    yield connected
    connected.close()


@pytest.fixture
async def aio_client(server: ApplianceProcess) -> AsyncIterator[Any]:
    async with triton_aio.InferenceServerClient(server.grpc) as connected:
        yield connected


def feed(name: str, values: Any, datatype: Datatype, module: Any = triton) -> Any:
    tensor = module.InferInput(name, list(values.shape), datatype.wire)
    tensor.set_data_from_numpy(values)
    return tensor


@pytest.mark.parametrize("datatype", VALUES, ids=lambda datatype: datatype.wire)
def test_every_datatype_comes_back_as_it_went(client: Any, datatype: Datatype) -> None:
    values = VALUES[datatype]
    result = client.infer(f"identity_{datatype.wire.lower()}", [feed("x", values, datatype)], request_id="7")
    returned = result.as_numpy("y")
    assert returned.shape == values.shape
    assert (
        returned.tobytes() == values.tobytes()
        if datatype is not Datatype.BYTES
        else (returned == values).all()
    )
    response = result.get_response()
    assert (response.id, response.model_version, result.get_output("y").datatype) == ("7", "1", datatype.wire)
    assert not result.get_output("y").HasField("contents")


@pytest.mark.parametrize("rank", range(1, 7))
def test_every_rank(client: Any, rank: int) -> None:
    values = np.arange(2**rank, dtype=np.float32).reshape((2,) * rank)
    assert (client.infer(f"rank_{rank}", [feed("x", values, Datatype.FP32)]).as_numpy("y") == -values).all()


def test_rank_zero(client: Any) -> None:
    values = np.array(3, np.float32)
    assert client.infer("scalar", [feed("x", values, Datatype.FP32)]).as_numpy("y") == 9


@pytest.mark.parametrize("shape", [(1, 0), (3, 0)])
def test_empty_tensors(client: Any, shape: tuple[int, int]) -> None:
    returned = client.infer(
        "identity_fp32", [feed("x", np.zeros(shape, np.float32), Datatype.FP32)]
    ).as_numpy("y")
    assert returned.shape == shape


def test_many_inputs_in_any_order_and_chosen_outputs(client: Any) -> None:
    values = {f"{index:02d}": np.full((1, 2), index, np.int64) for index in range(20)}
    feeds = [feed(f"IN{name}", each, Datatype.INT64) for name, each in reversed(values.items())]
    outputs = [triton.InferRequestedOutput("OUT07"), triton.InferRequestedOutput("OUT03")]
    result = client.infer("many_io", feeds, outputs=outputs)
    assert [output.name for output in result.get_response().outputs] == ["OUT07", "OUT03"]
    assert result.as_numpy("OUT07").tolist() == [[14, 14]]
    assert result.as_numpy("OUT03").tolist() == [[6, 6]]
    assert len(client.infer("many_io", feeds).get_response().outputs) == 20


def test_outputs_of_different_shapes(client: Any) -> None:
    for length in (1, 5, 2):
        values = np.ones((2, length), np.float32)
        result = client.infer("variable", [feed("x", values, Datatype.FP32)])
        assert result.as_numpy("y").shape == (2, length)
        assert result.as_numpy("total").tolist() == [[length], [length]]


def test_optional_inputs_and_odd_names(client: Any) -> None:
    x = feed("x", np.zeros((1, 4), np.float32), Datatype.FP32)
    offset = feed("offset", np.array([3], np.float32), Datatype.FP32)
    assert client.infer("optional_input", [x]).as_numpy("y").tolist() == [[10] * 4]
    assert client.infer("optional_input", [x, offset]).as_numpy("y").tolist() == [[3] * 4]
    source, result = "in put/0:ä", "out\"put'{1}\u2192"
    odd = client.infer("odd_names", [feed(source, np.ones((1, 2), np.float32), Datatype.FP32)])
    assert odd.as_numpy(result).tolist() == [[1, 1]]


def test_strings(client: Any) -> None:
    a, b = np.array([[b"a", b""]], np.object_), np.array([[b"b", b"c"]], np.object_)
    result = client.infer("string_concat", [feed("a", a, Datatype.BYTES), feed("b", b, Datatype.BYTES)])
    assert result.as_numpy("y").tolist() == [[b"ab", b"c"]]


def test_classification_of_a_real_digit(client: Any) -> None:
    picture = np.asarray(Image.open(DIGITS / "golden" / "3-0539.png").convert("L"))
    metadata = client.get_model_metadata("digits")
    shape = [1, *metadata.inputs[0].shape[1:]]
    values = (picture.astype(np.float32) / picture.max()).reshape(shape)
    output = metadata.outputs[0].name
    plain = client.infer("digits", [feed(metadata.inputs[0].name, values, Datatype.FP32)]).as_numpy(output)[0]
    wanted = triton.InferRequestedOutput(output, class_count=3)
    result = client.infer("digits", [feed(metadata.inputs[0].name, values, Datatype.FP32)], outputs=[wanted])
    classes = [word.decode().split(":") for word in result.as_numpy(output)[0]]
    best = [int(index) for index in np.argsort(-plain, kind="stable")[:3]]
    assert [int(parts[1]) for parts in classes] == best
    assert [float(parts[0]) for parts in classes] == [pytest.approx(plain[index], abs=1e-6) for index in best]
    assert all(len(parts) == 3 and parts[2] for parts in classes)


def test_priority_timeout_and_parameters_are_taken(client: Any) -> None:
    values = np.array([[1, 2, 3, 4]], np.uint8)
    result = client.infer(
        "levels",
        [feed("x", values, Datatype.UINT8)],
        priority=2,
        timeout=10_000_000,
        parameters={"mine": "x"},
    )
    assert result.as_numpy("y").tolist() == values.tolist()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_requests_may_be_compressed(client: Any, algorithm: str) -> None:
    values = np.arange(50_000, dtype=np.float32).reshape(1, -1)
    result = client.infer(
        "identity_fp32", [feed("x", values, Datatype.FP32)], compression_algorithm=algorithm
    )
    assert (result.as_numpy("y") == values).all()


def test_versions(client: Any) -> None:
    values = feed("x", np.zeros((1, 4), np.uint8), Datatype.UINT8)
    served = [
        client.infer("pair", [values], version).get_response().model_version for version in ("", "1", "3")
    ]
    assert served == ["3", "1", "3"]
    assert list(client.get_model_metadata("pair").versions) == ["1", "3"]


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp")
    assert client.is_model_ready("pair", "3")
    for name, version in (("nobody", ""), ("mlp", "9"), ("not_onnx", ""), ("mlp", "x")):
        assert not client.is_model_ready(name, version)
    metadata = client.get_server_metadata()
    assert metadata.name
    assert metadata.version
    assert {"statistics", "classification", "model_configuration", "binary_tensor_data"} <= set(
        metadata.extensions
    )
    tensor = client.get_model_metadata("add_sub").inputs[0]
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("INPUT0", "INT32", [-1, 16])


def test_configuration_and_index(client: Any) -> None:
    config = client.get_model_config("levels").config
    assert (config.backend, config.max_batch_size, config.dynamic_batching.priority_levels) == ("fake", 0, 2)
    assert client.get_model_config("add_sub").config.max_batch_size > 0
    index = {(entry.name, entry.version): entry for entry in client.get_model_repository_index().models}
    assert index["pair", "3"].state == "READY"
    broken = next(entry for (name, _), entry in index.items() if name == "not_onnx")
    assert broken.state == "UNAVAILABLE"
    assert broken.reason


def test_statistics_count(client: Any, times: int) -> None:
    def figures() -> tuple[int, int, int]:
        stats = client.get_inference_statistics("rank_2", "1").model_stats[0]
        return (
            stats.inference_count,
            stats.inference_stats.success.count,
            sum(b.compute_infer.count for b in stats.batch_stats),
        )

    before = figures()
    for _ in range(3):
        client.infer("rank_2", [feed("x", np.zeros((2, 2), np.float32), Datatype.FP32)])
    after = figures()
    assert after[1] - before[1] == 3 * times
    assert after[0] > before[0]
    assert after[2] > before[2]
    assert {stats.name for stats in client.get_inference_statistics().model_stats} >= {"mlp", "pair"}


def test_trace_and_log_settings(client: Any) -> None:
    assert dict(client.get_trace_settings(as_json=True)["settings"])["trace_level"]["value"] == ["OFF"]
    assert client.update_trace_settings(settings={"trace_level": ["OFF"]}, as_json=True)
    with pytest.raises(InferenceServerException, match="request tracing is not offered"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    before = client.get_log_settings(as_json=True)["settings"]
    assert before
    with pytest.raises(InferenceServerException, match=r"control\.socket") as refused:
        client.update_log_settings({"log_info": False})
    assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
    assert client.get_log_settings(as_json=True)["settings"] == before


CONTROLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "load": (lambda client: client.load_model("mlp"), "PERMISSION_DENIED"),
    "unload": (lambda client: client.unload_model("mlp"), "PERMISSION_DENIED"),
    "system status": (lambda client: client.get_system_shared_memory_status(), "UNIMPLEMENTED"),
    "system register": (lambda client: client.register_system_shared_memory("r", "/r", 8), "UNIMPLEMENTED"),
    "system unregister": (lambda client: client.unregister_system_shared_memory(), "UNIMPLEMENTED"),
    "cuda status": (lambda client: client.get_cuda_shared_memory_status(), "UNIMPLEMENTED"),
    "cuda register": (
        lambda client: client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 8),
        "UNIMPLEMENTED",
    ),
    "cuda unregister": (lambda client: client.unregister_cuda_shared_memory(), "UNIMPLEMENTED"),
}


@pytest.mark.parametrize(("control", "code"), CONTROLS.values(), ids=CONTROLS.keys())
def test_controls_that_are_off(client: Any, control: Callable[[Any], Any], code: str) -> None:
    with pytest.raises(InferenceServerException) as refused:
        control(client)
    assert refused.value.status() == f"StatusCode.{code}"


async def test_the_asyncio_client(aio_client: Any) -> None:
    values = np.ones((1, 64), np.float32)
    result = await aio_client.infer("mlp", [feed("x", values, Datatype.FP32, triton_aio)], request_id="a")
    assert (result.get_response().id, result.as_numpy("y").shape[0]) == ("a", 1)
    assert await aio_client.is_server_live()
    assert await aio_client.is_server_ready()
    assert not await aio_client.is_model_ready("nobody")
    assert (await aio_client.get_model_metadata("mlp")).name == "mlp"
    assert (await aio_client.get_model_config("mlp")).config.name == "mlp"
    assert (await aio_client.get_inference_statistics("mlp")).model_stats[0].name == "mlp"
    assert (await aio_client.get_model_repository_index()).models
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nobody' is not found"):
        await aio_client.infer("nobody", [feed("x", values, Datatype.FP32, triton_aio)])


async def test_the_asyncio_clients_stream(aio_client: Any, times: int) -> None:
    """As often as single requests are sent: those of the first stream may all be one batch of the engine's."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(5):
            values = np.full((1, 4), number, np.uint8)
            yield {
                "model_name": "pair",
                "inputs": [feed("x", values, Datatype.UINT8, triton_aio)],
                "request_id": str(number),
            }

    for _ in range(times):
        seen = {}
        async for result, error in aio_client.stream_infer(requests()):
            assert error is None
            seen[result.get_response().id] = result.as_numpy("y").tolist()
        assert seen == {str(number): [[number] * 4] for number in range(5)}
