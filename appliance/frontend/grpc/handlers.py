"""What every RPC but inference answers: plain functions from message to message, whatever the transport is.

Errors are raised as the appliance's own; a front end turns them into statuses. Nothing here loads or unloads a
model: what the network may not do is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from appliance import __version__
from appliance.domain.errors import Forbidden, InvalidRequest, Unsupported
from appliance.domain.protocol import EXTENSIONS, SERVER_NAME
from appliance.engine.port import EnginePort
from appliance.frontend.grpc.metadata import model_config, tensor_metadata, version_statistics
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.port import LogControl, Setting
from appliance.telemetry.trace import Tracer, check_trace_setting, trace_settings


class Rpc(NamedTuple):
    """One RPC of the service: its request message and what answers it."""

    request: type[Message]
    answer: Callable[[Message], Message]

    def serve(self, message: bytes) -> bytes:
        """Answer a serialised request; raises ApplianceError."""
        try:
            request = self.request.FromString(message)
        except DecodeError as error:
            raise InvalidRequest(f"the message is not a {self.request.DESCRIPTOR.name}: {error}") from error
        return self.answer(request).SerializeToString()


class Handlers:
    """The RPCs about the server, its models and its settings. ``stopping`` makes the server not ready."""

    def __init__(self, engine: EnginePort, log: LogControl, tracer: Tracer | None = None) -> None:
        self._engine = engine
        self._tracer = tracer
        self._log = log
        self.stopping = False

    def rpcs(self) -> Mapping[str, Rpc]:
        """RPC names of the inference service to what serves them; inference itself is not among them."""
        found: dict[str, Rpc] = {}
        for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            answer = getattr(self, _method_name(method.name), None)
            if answer is not None:
                found[method.name] = Rpc(getattr(pb, method.input_type.name), answer)
            elif "SharedMemory" in method.name:
                found[method.name] = Rpc(getattr(pb, method.input_type.name), self._shared_memory)
        return found

    # --- health and metadata

    def server_live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        """A server that can answer lives."""
        return pb.ServerLiveResponse(live=True)

    def server_ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        """Whether requests are welcome: after the first load, until the stop is announced."""
        return pb.ServerReadyResponse(ready=self._engine.ready and not self.stopping)

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """False, not an error, for a model that is unknown or not ready."""
        return pb.ModelReadyResponse(ready=self._engine.is_ready(request.name, request.version))

    def server_metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        """Name, version and what is offered beyond the core protocol."""
        return pb.ServerMetadataResponse(name=SERVER_NAME, version=__version__, extensions=EXTENSIONS)

    def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """Tensors of one version and all versions that are ready."""
        model = self._engine.resolve(request.name, request.version)
        batched = model.max_batch_size > 0
        return pb.ModelMetadataResponse(
            name=model.name,
            versions=[str(ready.version) for ready in self._engine.versions(request.name)],
            platform=model.platform,
            inputs=[tensor_metadata(spec, batched) for spec in model.inputs],
            outputs=[tensor_metadata(spec, batched) for spec in model.outputs],
            properties=dict(model.parameters),
        )

    def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        """The configuration in force."""
        return pb.ModelConfigResponse(
            config=model_config(self._engine.resolve(request.name, request.version))
        )

    def model_statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """Counts and times per version."""
        found = self._engine.statistics(request.name, request.version)
        return pb.ModelStatisticsResponse(model_stats=[version_statistics(version) for version in found])

    # --- the repository

    def repository_index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """Every version known, or only what is ready."""
        return pb.RepositoryIndexResponse(
            models=[
                pb.RepositoryIndexResponse.ModelIndex(
                    name=entry.name, version=entry.version, state=entry.state.value, reason=entry.reason
                )
                for entry in self._engine.index(request.ready)
            ]
        )

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

    def _shared_memory(self, request: Message) -> Message:
        raise Unsupported("client shared memory is turned off here; send and receive tensors in the message")

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
        """Change what is given, all or nothing, and answer with the settings in force."""
        changes: dict[str, Setting] = {}
        for key, value in request.settings.items():
            choice = value.WhichOneof("parameter_choice")
            if choice is None:
                raise InvalidRequest(f"log setting '{key}' has no value of a known type")
            changes[key] = getattr(value, choice)
        if changes:
            self._log.update(changes)
        answer = pb.LogSettingsResponse()
        for key, setting in self._log.settings().items():
            _set(answer.settings[key], setting)
        return answer


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
