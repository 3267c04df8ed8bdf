"""What every RPC but inference answers: plain functions from message to message, whatever the transport is.

Errors are raised as the appliance's own; a front end turns them into statuses. Nothing here loads or unloads a
model, and only an operator changes settings: what the network may not do is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from appliance.domain.errors import Forbidden, InvalidRequest, Unsupported
from appliance.domain.protocol import SERVER_NAME
from appliance.engine.port import EnginePort
from appliance.frontend import documents
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.port import LogControl, Setting, check_log_settings
from appliance.frontend.regions.region import Registered
from appliance.frontend.regions.registry import NO_DEVICE_MEMORY, NOBODYS, Regions
from appliance.telemetry.trace import Tracer, check_trace_setting, trace_settings

M = TypeVar("M", bound=Message)


class Rpc(NamedTuple):
    """One RPC of the service: its request message and what answers it."""

    request: type[Message]
    answer: Callable[[Message], Message]

    def serve(self, message: bytes) -> bytes:
        """Answer a serialised request; raises ApplianceError."""
        return self.answer(_read(self.request, message)).SerializeToString()


class UserRpc(NamedTuple):
    """One RPC that is answered by whose it is."""

    request: type[Message]
    answer: Callable[[Any, int], Message]

    def serve(self, user: int, message: bytes) -> bytes:
        """Answer a serialised request of ``user`` (UNKNOWN_USER: that is not known); raises ApplianceError."""
        return self.answer(_read(self.request, message), user).SerializeToString()


def _read(kind: type[Message], message: bytes) -> Message:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise InvalidRequest(f"the message is not a {kind.DESCRIPTOR.name}: {error}") from error


class Handlers:
    """The RPCs about the server, its models and its settings, which only ``for_operator`` can be changed."""

    def __init__(
        self,
        engine: EnginePort,
        log: LogControl,
        tracer: Tracer | None = None,
        *,
        for_operator: bool = False,
        server_name: str = SERVER_NAME,
        regions: Regions = NOBODYS,
    ) -> None:
        self._server_name = server_name
        self._for_operator = for_operator
        self._engine = engine
        self._tracer = tracer
        self._log = log
        self._regions = regions

    def rpcs(self) -> Mapping[str, Rpc]:
        """RPC names of the inference service to what serves them; inference itself is not among them."""
        found: dict[str, Rpc] = {}
        for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            answer = getattr(self, _method_name(method.name), None)
            if answer is not None:
                found[method.name] = Rpc(getattr(pb, method.input_type.name), answer)
        return found

    def user_rpcs(self) -> Mapping[str, UserRpc]:
        """The same of those RPCs that are answered by whose they are."""
        return {
            "SystemSharedMemoryStatus": UserRpc(pb.SystemSharedMemoryStatusRequest, self._region_status),
            "SystemSharedMemoryRegister": UserRpc(pb.SystemSharedMemoryRegisterRequest, self._register),
            "SystemSharedMemoryUnregister": UserRpc(pb.SystemSharedMemoryUnregisterRequest, self._unregister),
            "CudaSharedMemoryStatus": UserRpc(pb.CudaSharedMemoryStatusRequest, self._device_region_status),
            "CudaSharedMemoryUnregister": UserRpc(
                pb.CudaSharedMemoryUnregisterRequest, self._unregister_device_region
            ),
        }

    # --- health and metadata

    def server_live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        """A server that can answer lives."""
        return pb.ServerLiveResponse(live=True)

    def server_ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        """Whether requests are welcome: after the first load, until the stop is announced."""
        return pb.ServerReadyResponse(ready=self._engine.ready)

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """False, not an error, for a model that is unknown or not ready."""
        return pb.ModelReadyResponse(ready=self._engine.is_ready(request.name, request.version))

    def server_metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        """Name, version and what is offered beyond the core protocol."""
        return _filled(
            pb.ServerMetadataResponse, documents.server_metadata(self._server_name, self._regions.on)
        )

    def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """Tensors of one version and all versions that are ready."""
        model = self._engine.resolve(request.name, request.version)
        document = documents.model_metadata(model, self._engine.versions(request.name))
        return _filled(pb.ModelMetadataResponse, {**document, "properties": dict(model.parameters)})

    def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        """The configuration in force."""
        config = documents.model_config(self._engine.in_force(request.name, request.version))
        return ParseDict({"config": config}, pb.ModelConfigResponse())

    def model_statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """Counts and times per version."""
        found = self._engine.statistics(request.name, request.version)
        return _filled(pb.ModelStatisticsResponse, documents.statistics_document(found))

    # --- the repository

    def repository_index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """Every version known, or only what is ready."""
        entries = documents.index_document(self._engine.index(request.ready))
        return _filled(pb.RepositoryIndexResponse, {"models": entries})

    def repository_model_load(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Refused: models come from the model directory."""
        raise Forbidden(
            f"loading model '{request.model_name or request.repository_name}' over the network is turned off; put it "
            "into the model directory, or load it over the control socket (control.socket)"
        )

    def repository_model_unload(
        self, request: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        """Refused: models leave with the model directory."""
        raise Forbidden(
            f"unloading model '{request.model_name or request.repository_name}' over the network is turned off; take "
            "it out of the model directory, or unload it over the control socket (control.socket)"
        )

    # --- shared memory

    def cuda_shared_memory_register(self, request: pb.CudaSharedMemoryRegisterRequest) -> Message:
        """Refused: the memory of devices is not shared with clients."""
        raise Unsupported(NO_DEVICE_MEMORY)

    def _device_region_status(self, request: pb.CudaSharedMemoryStatusRequest, user: int) -> Message:
        self._regions.check_device_regions(user, request.name)
        return pb.CudaSharedMemoryStatusResponse()

    def _unregister_device_region(self, request: pb.CudaSharedMemoryUnregisterRequest, user: int) -> Message:
        self._regions.check(user)
        return pb.CudaSharedMemoryUnregisterResponse()

    def _region_status(self, request: pb.SystemSharedMemoryStatusRequest, user: int) -> Message:
        answer = pb.SystemSharedMemoryStatusResponse()
        for each in self._regions.status(user, request.name):
            region = answer.regions[each.name]
            region.name, region.key, region.offset, region.byte_size = each
        return answer

    def _register(self, request: pb.SystemSharedMemoryRegisterRequest, user: int) -> Message:
        asked = Registered(request.name, request.key, request.offset, request.byte_size)
        self._regions.register(user, asked)
        return pb.SystemSharedMemoryRegisterResponse()

    def _unregister(self, request: pb.SystemSharedMemoryUnregisterRequest, user: int) -> Message:
        self._regions.unregister(user, request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    # --- settings

    def trace_setting(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        """Say what is traced. What leaves that as it is is accepted, anything else is not offered."""
        if request.model_name:
            self._engine.versions(request.model_name)
        for key, setting in request.settings.items():
            check_trace_setting(self._tracer, key, setting.value)
        answer = pb.TraceSettingResponse()
        for key, words in trace_settings(self._tracer).items():
            answer.settings[key].value.extend(words)
        return answer

    def log_settings(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        """Change what is given, all or nothing, and answer with the settings in force; raises Forbidden for changes
        where no operator asks."""
        chosen = {key: value.WhichOneof("parameter_choice") for key, value in request.settings.items()}
        changes: dict[str, Setting | None] = {
            key: choice and getattr(request.settings[key], choice) for key, choice in chosen.items()
        }
        if self._for_operator:
            self._update_log(changes)
        else:
            check_log_settings(self._log, changes)
        answer = pb.LogSettingsResponse()
        for key, setting in self._log.settings().items():
            _set(answer.settings[key], setting)
        return answer

    def _update_log(self, changes: Mapping[str, Setting | None]) -> None:
        given: dict[str, Setting] = {}
        for key, setting in changes.items():
            if setting is None:
                raise InvalidRequest(f"log setting '{key}' has no value of a known type")
            given[key] = setting
        if given:
            self._log.update(given)


def _filled(kind: Callable[..., M], document: Mapping[str, Any]) -> M:
    """The message that ``document`` describes. Much faster than ParseDict, which reads maps with numbers as keys."""
    return kind(**document)


def _set(value: pb.LogSettingsResponse.SettingValue, setting: Setting) -> None:
    if isinstance(setting, bool):
        value.bool_param = setting
    elif isinstance(setting, int):
        value.uint32_param = setting
    else:
        value.string_param = setting


def _method_name(rpc: str) -> str:
    """``ModelReady`` to ``model_ready``."""
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in rpc).lstrip("_")
