"""Requests and how they arrive on the wire, for tests."""

from __future__ import annotations

import struct

from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.domain.sample import make_version

ROW = struct.pack("<4f", 1, 2, 3, 4)


def two_inputs() -> ModelVersion:
    """A model ``two`` with an FP32 input ``a`` [2] and a BYTES input ``s`` [1], one FP32 output ``y`` [2]."""
    return make_version(
        "two",
        inputs=(
            TensorSpec(name="a", datatype=Datatype.FP32, shape=(2,)),
            TensorSpec(name="s", datatype=Datatype.BYTES, shape=(1,)),
        ),
    )


def one_input(datatype: Datatype, model: str = "typed") -> ModelVersion:
    """A model with one input ``x`` [-1] of ``datatype``."""
    return make_version(model, inputs=(TensorSpec(name="x", datatype=datatype, shape=(-1,)),))


def infer_request(
    model: str = "m", *, request_id: str = "", shape: tuple[int, ...] = (1, 4), raw: bytes | None = ROW
) -> pb.ModelInferRequest:
    """A request for a model with one FP32 input ``x`` [4]."""
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="x", datatype="FP32", shape=shape)
    if raw is not None:
        request.raw_input_contents.append(raw)
    return request
