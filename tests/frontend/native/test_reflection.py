"""Reflection answers byte for byte as the gRPC project's own servicer does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2 as pb
from grpc_reflection.v1alpha._async import ReflectionServicer

from appliance.domain.errors import InvalidRequest
from appliance.frontend.grpc.health import HEALTH_SERVICE, SERVICE
from appliance.frontend.grpc.reflection import V1ALPHA, Reflection
from appliance.frontend.grpc.wire_pb import descriptor_files

OWN = [
    descriptor_pb2.FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb) for each in (health_pb2, pb)
]
ASKED = {
    "services": pb.ServerReflectionRequest(list_services=""),
    "a file": pb.ServerReflectionRequest(file_by_filename="inference.proto"),
    "no file": pb.ServerReflectionRequest(file_by_filename="nothing.proto"),
    "a service": pb.ServerReflectionRequest(file_containing_symbol=SERVICE),
    "a method": pb.ServerReflectionRequest(file_containing_symbol=f"{SERVICE}.ModelInfer"),
    "a message": pb.ServerReflectionRequest(host="h", file_containing_symbol="inference.ModelInferRequest"),
    "health": pb.ServerReflectionRequest(file_containing_symbol=HEALTH_SERVICE),
    "no symbol": pb.ServerReflectionRequest(file_containing_symbol="inference.Nothing"),
    "no extension": pb.ServerReflectionRequest(
        file_containing_extension=pb.ExtensionRequest(
            containing_type="inference.ModelInferRequest", extension_number=100
        )
    ),
    "extension of nothing": pb.ServerReflectionRequest(
        file_containing_extension=pb.ExtensionRequest(containing_type="x.Y", extension_number=1)
    ),
    "extensions": pb.ServerReflectionRequest(all_extension_numbers_of_type="inference.ModelInferRequest"),
    "extensions of nothing": pb.ServerReflectionRequest(all_extension_numbers_of_type="x.Y"),
    "nothing": pb.ServerReflectionRequest(host="h"),
}


async def theirs(request: Any) -> Any:
    """What the public servicer answers over the same files."""
    pool = descriptor_pool.DescriptorPool()
    for file in (*descriptor_files(), *OWN):
        pool.Add(file)
    servicer = ReflectionServicer((SERVICE, HEALTH_SERVICE, V1ALPHA), pool=pool)

    async def requests() -> AsyncIterator[Any]:
        yield request

    (answer,) = [answer async for answer in servicer.ServerReflectionInfo(requests(), None)]
    return answer


@pytest.fixture(scope="module")
def ours() -> Reflection:
    return Reflection((SERVICE, HEALTH_SERVICE), (*descriptor_files(), OWN[0]))


@pytest.mark.parametrize("request_message", ASKED.values(), ids=ASKED)
async def test_answers_are_theirs(ours: Reflection, request_message: Any) -> None:
    answer = pb.ServerReflectionResponse.FromString(ours.answer(request_message.SerializeToString()))
    assert answer == await theirs(request_message)


def test_garbage_is_refused(ours: Reflection) -> None:
    with pytest.raises(InvalidRequest, match="is not a ServerReflectionRequest"):
        ours.answer(b"\xff")
