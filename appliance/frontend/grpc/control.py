"""The RPCs by which an operator's tools load and unload models: served on the control socket alone.

Parameters are those of the model repository extension: ``config`` is the model's configuration as JSON and takes the
place of its config.pbtxt as a whole, but for the name of the model's file where it gives none; ``file:PATH`` is the
content of a file of the model, PATH being relative to its directory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError

from appliance.domain.errors import InvalidRequest
from appliance.frontend.grpc.health import SERVICE
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.grpc.wire_pb import model_config_pb2

CONFIG: Final = "config"
FILE: Final = "file:"
UNLOAD_DEPENDENTS: Final = "unload_dependents"


class ModelControl(Protocol):
    """What loads and unloads models."""

    async def load(self, name: str, config: bytes | None, files: Mapping[str, bytes]) -> None:
        """Load or reload; returns when it serves. ``config`` is a config.pbtxt. Raises ApplianceError."""

    async def unload(self, name: str) -> None:
        """Serve nothing of this name any more. Raises UnknownModel."""


class ControlHandlers:
    """The two RPCs as functions from message to message."""

    def __init__(self, control: ModelControl) -> None:
        self._control = control

    def unary(self) -> Mapping[str, Callable[[bytes], Awaitable[bytes]]]:
        """Paths to what serves them; it raises ApplianceError."""
        return {
            f"/{SERVICE}/RepositoryModelLoad": self._load,
            f"/{SERVICE}/RepositoryModelUnload": self._unload,
        }

    async def _load(self, message: bytes) -> bytes:
        try:
            request = pb.RepositoryModelLoadRequest.FromString(message)
        except DecodeError as error:
            raise InvalidRequest(f"the message is no RepositoryModelLoadRequest: {error}") from error
        name = _name(request)
        config: bytes | None = None
        files: dict[str, bytes] = {}
        for key, value in request.parameters.items():
            if key == CONFIG:
                config = _pbtxt(name, value.string_param)
            elif key.startswith(FILE):
                files[key.removeprefix(FILE)] = value.bytes_param
            else:
                raise InvalidRequest(
                    f"failed to load '{name}': unrecognized load parameter '{key[:100]}'; there are 'config' and "
                    "'file:PATH'"
                )
        await self._control.load(name, config, files)
        return pb.RepositoryModelLoadResponse(
            model_name=request.model_name, isLoaded=True
        ).SerializeToString()

    async def _unload(self, message: bytes) -> bytes:
        try:
            request = pb.RepositoryModelUnloadRequest.FromString(message)
        except DecodeError as error:
            raise InvalidRequest(f"the message is no RepositoryModelUnloadRequest: {error}") from error
        name = _name(request)
        for key in request.parameters:
            if key != UNLOAD_DEPENDENTS:  # accepted: no model here depends on another
                raise InvalidRequest(
                    f"failed to unload '{name}': unrecognized unload parameter '{key[:100]}'"
                )
        await self._control.unload(name)
        return pb.RepositoryModelUnloadResponse(
            model_name=request.model_name, isUnloaded=True
        ).SerializeToString()


def _name(request: pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest) -> str:
    if request.repository_name:
        raise InvalidRequest("there is one repository here: leave repository_name empty")
    if not request.model_name:
        raise InvalidRequest("model_name is missing")
    return request.model_name


def _pbtxt(name: str, document: str) -> bytes:
    """The configuration of model ``name`` in JSON as text format."""
    try:
        config = json_format.Parse(document, model_config_pb2.ModelConfig())
    except json_format.ParseError as error:
        raise InvalidRequest(
            f"failed to load '{name}': parameter 'config' is no model configuration in JSON: {error}"
        ) from error
    return text_format.MessageToString(config, as_utf8=True).encode()
