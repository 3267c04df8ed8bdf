"""Talk to an appliance with kserve's InferenceGRPCClient, unmodified; the address is the argument."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

ROWS = np.arange(32, dtype=np.int32).reshape(2, 16)


def numbers(name: str, raw: bool) -> Any:
    """An INT32 input of two rows, in raw bytes or as typed contents."""
    tensor = InferInput(name=name, shape=[2, 16], datatype="INT32")
    if raw:
        tensor.set_data_from_numpy(ROWS, binary_data=True)
    else:
        tensor.data = ROWS.ravel().tolist()
    return tensor


async def talk(address: str) -> dict[str, Any]:
    """Everything that the client can ask; values that JSON has."""
    async with InferenceGRPCClient(url=address, retries=0) as client:
        said: dict[str, Any] = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model_ready": await client.is_model_ready("add_sub"),
            "unknown_ready": await client.is_model_ready("nope"),
        }
        for form in ("raw", "typed"):
            inputs = [numbers(name, form == "raw") for name in ("INPUT0", "INPUT1")]
            request = InferRequest(model_name="add_sub", request_id=form, infer_inputs=inputs)
            response = await client.infer(request)
            said[form] = {
                "id": response.id,
                "version": response.model_version,
                "outputs": {output.name: output.as_numpy().tolist() for output in response.outputs},
            }
        try:
            await client.infer(InferRequest(model_name="nope", infer_inputs=[numbers("x", True)]))
        except Exception as error:  # noqa: BLE001 - what it raises is what is looked at
            said["unknown"] = str(error)
    return said


if __name__ == "__main__":
    print(json.dumps(asyncio.run(talk(sys.argv[1]))))
