"""Talk to an appliance with kserve's InferenceRESTClient, unmodified; the base URL is the argument."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

ROWS = np.arange(32, dtype=np.int32).reshape(2, 16)
TIMES = 3  # the native front end answers by itself what it has seen before


def numbers(name: str, binary: bool) -> Any:
    """An INT32 input of two rows."""
    tensor = InferInput(name=name, shape=[2, 16], datatype="INT32")
    tensor.set_data_from_numpy(ROWS, binary_data=binary)
    return tensor


async def talk(url: str) -> dict[str, Any]:
    """Everything that the client can ask; values that JSON has."""
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    said: dict[str, Any] = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model_ready": await client.is_model_ready(url, "add_sub"),
        "unknown_ready": await client.is_model_ready(url, "nope"),
    }
    for form in ("json", "binary"):
        inputs = [numbers(name, form == "binary") for name in ("INPUT0", "INPUT1")]
        request = InferRequest(model_name="add_sub", request_id=form, infer_inputs=inputs)
        answers = [await client.infer(url, request, model_name="add_sub") for _ in range(TIMES)]
        said[form] = [
            {"id": answer.id, **{output.name: output.as_numpy().tolist() for output in answer.outputs}}
            for answer in answers
        ]
    try:
        await client.infer(url, request, model_name="nope")
    except Exception as error:  # noqa: BLE001 - what it raises is what is looked at
        said["unknown"] = str(error)
    await client.close()
    return said


if __name__ == "__main__":
    print(json.dumps(asyncio.run(talk(sys.argv[1]))))
