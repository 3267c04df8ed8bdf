"""Server reflection, by which clients without our ``.proto`` files learn the services and their messages.

Answers as the gRPC project's own servicer does, without the gRPC library, so that every front end answers alike. The
messages of version 1 are those of version 1alpha.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2 as pb

from appliance.domain.errors import InvalidRequest
from appliance.engine.port import Buffer
from appliance.frontend.grpc.stream import Read, Write

V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"
V1 = "grpc.reflection.v1.ServerReflection"
METHOD = "ServerReflectionInfo"

_NOT_FOUND = pb.ErrorResponse(error_code=5, error_message="not found")
_INVALID_ARGUMENT = pb.ErrorResponse(error_code=3, error_message="invalid argument")


class Reflection:
    """Describes ``services``, which ``files`` and reflection's own file define."""

    def __init__(self, services: Iterable[str], files: Iterable[descriptor_pb2.FileDescriptorProto]) -> None:
        self._services = sorted({*services, V1ALPHA})
        self._pool = descriptor_pool.DescriptorPool()
        own = descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
        for file in (*files, own):
            self._pool.Add(file)

    async def serve(self, read: Read, write: Write) -> None:
        """Answer each message of a stream; raises InvalidRequest."""
        while (answer := await self._next(read)) is not None:
            await write(answer)
            del answer  # an idle stream keeps nothing of what went over it

    async def _next(self, read: Read) -> bytes | None:
        message = await read()
        return None if message is None else self.answer(message)

    def answer(self, message: Buffer) -> bytes:
        """Answer one serialised ServerReflectionRequest; raises InvalidRequest when it is none."""
        try:
            request = pb.ServerReflectionRequest.FromString(bytes(message))
        except DecodeError as error:
            raise InvalidRequest(f"the message is not a ServerReflectionRequest: {error}") from error
        answer = pb.ServerReflectionResponse(original_request=request)
        try:
            self._fill(answer, request)
        except KeyError:
            answer.error_response.CopyFrom(_NOT_FOUND)
        return bytes(answer.SerializeToString())

    def _fill(self, answer: pb.ServerReflectionResponse, request: pb.ServerReflectionRequest) -> None:
        """Put in what is asked for; raises KeyError for what is not known."""
        match request.WhichOneof("message_request"):
            case "file_by_filename":
                self._describe(answer, self._pool.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                self._describe(answer, self._pool.FindFileContainingSymbol(request.file_containing_symbol))
            case "file_containing_extension":
                wanted = request.file_containing_extension
                extended = self._pool.FindMessageTypeByName(wanted.containing_type)
                extension = self._pool.FindExtensionByNumber(extended, wanted.extension_number)
                self._describe(answer, self._pool.FindFileContainingSymbol(extension.full_name))
            case "all_extension_numbers_of_type":
                extended = self._pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
                numbers = answer.all_extension_numbers_response
                numbers.base_type_name = extended.full_name
                numbers.extension_number.extend(
                    sorted(each.number for each in self._pool.FindAllExtensions(extended))
                )
            case "list_services":
                for name in self._services:
                    answer.list_services_response.service.add(name=name)
            case _:
                answer.error_response.CopyFrom(_INVALID_ARGUMENT)

    def _describe(self, answer: pb.ServerReflectionResponse, file: object) -> None:
        """Add ``file`` and all files that it needs."""
        seen: dict[str, object] = {}
        _collect(file, seen)
        for each in seen.values():
            described = descriptor_pb2.FileDescriptorProto()
            each.CopyToProto(described)  # type: ignore[attr-defined]
            answer.file_descriptor_response.file_descriptor_proto.append(described.SerializeToString())


def _collect(file: object, seen: dict[str, object]) -> None:
    seen[file.name] = file  # type: ignore[attr-defined]
    dependencies: Sequence[object] = file.dependencies  # type: ignore[attr-defined]
    for dependency in dependencies:
        if dependency.name not in seen:  # type: ignore[attr-defined]
            _collect(dependency, seen)
