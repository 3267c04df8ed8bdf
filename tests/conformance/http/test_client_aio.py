"""The public asyncio client, unmodified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from tests.appliance_process import ApplianceProcess
from tests.fronts import EVERY_WAY

pytestmark = pytest.mark.parametrize("way", EVERY_WAY, indirect=True)


@pytest.fixture
async def client(server: ApplianceProcess) -> AsyncIterator[triton.InferenceServerClient]:
    async with triton.InferenceServerClient(server.http) as client:
        yield client


async def _double(client: triton.InferenceServerClient, rows: int, binary: bool) -> None:
    array = np.arange(rows * 100, dtype=np.float32).reshape(rows, 100)
    tensor = triton.InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput("y", binary_data=binary)]
    result = await client.infer("variable", [tensor], outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("y"), 2 * array)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_concurrent_inferences_get_their_own_answers(
    client: triton.InferenceServerClient, binary: bool
) -> None:
    await asyncio.gather(*[_double(client, 1 + index % 7, binary) for index in range(40)])


async def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("digits")
    assert not await client.is_model_ready("not_onnx")
    assert "binary_tensor_data" in (await client.get_server_metadata())["extensions"]
    assert (await client.get_model_metadata("digits"))["versions"] == ["1", "2"]
    assert (await client.get_model_config("digits"))["max_batch_size"] == 32
    assert len(await client.get_model_repository_index()) > 20
    statistics = await client.get_inference_statistics()
    assert len(statistics["model_stats"]) > 20


async def test_errors_carry_the_servers_words(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 2), dtype=np.float32))
    with pytest.raises(InferenceServerException, match="'nowhere' is not found"):
        await client.infer("nowhere", [tensor])
