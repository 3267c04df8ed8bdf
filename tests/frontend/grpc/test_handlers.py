"""What every RPC but inference answers, as messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from appliance.domain.errors import Forbidden, InvalidRequest, UnknownModel, Unsupported
from appliance.frontend.grpc.handlers import Handlers
from appliance.frontend.grpc.health import Health, health_of
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.grpc.wire_pb import model_config_pb2 as config_pb
from tests.domain.sample import EVERYTHING, make_version
from tests.frontend.grpc.engine_double import EngineDouble, LogDouble


@pytest.fixture
def engine() -> EngineDouble:
    return EngineDouble(make_version(), make_version(version=2), EVERYTHING)


@pytest.fixture
def handlers(engine: EngineDouble) -> Handlers:
    return Handlers(engine, LogDouble())


def ask(handlers: Handlers, rpc: str, **fields: Any) -> Any:
    """Answer of an RPC through its serialised form."""
    method = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name[rpc]
    request = getattr(pb, method.input_type.name)(**fields)
    return getattr(pb, method.output_type.name).FromString(
        handlers.rpcs()[rpc].serve(request.SerializeToString())
    )


def test_every_rpc_but_inference_is_served(handlers: Handlers) -> None:
    methods = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    served = {*handlers.rpcs(), *handlers.user_rpcs()}
    assert set(methods) - served == {"ModelInfer", "ModelStreamInfer"}


def test_garbage_is_refused_by_name(handlers: Handlers) -> None:
    with pytest.raises(InvalidRequest, match="the message is not a ModelReadyRequest"):
        handlers.rpcs()["ModelReady"].serve(b"\x0a\xff")


def test_readiness_of_the_server(handlers: Handlers, engine: EngineDouble) -> None:
    assert ask(handlers, "ServerLive").live is True
    assert ask(handlers, "ServerReady").ready is True
    engine.ready = False
    assert ask(handlers, "ServerReady").ready is False
    assert ask(handlers, "ServerLive").live is True


@pytest.mark.parametrize(
    ("name", "version", "ready"),
    [("m", "", True), ("m", "2", True), ("m", "9", False), ("nobody", "", False), ("m", "x", False)],
)
def test_readiness_of_a_model_is_never_an_error(
    handlers: Handlers, name: str, version: str, ready: bool
) -> None:
    assert ask(handlers, "ModelReady", name=name, version=version).ready is ready


def test_metadata_of_a_model(handlers: Handlers) -> None:
    metadata = ask(handlers, "ModelMetadata", name="m")
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("m", ["1", "2"], "fake")
    (tensor,) = metadata.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", "FP32", [-1, 4])
    with pytest.raises(UnknownModel):
        ask(handlers, "ModelMetadata", name="nobody")


def test_a_model_without_batches_has_no_batch_dimension() -> None:
    handlers = Handlers(EngineDouble(make_version(max_batch_size=0)), LogDouble())
    assert list(ask(handlers, "ModelMetadata", name="m").inputs[0].shape) == [4]


def test_the_whole_configuration_is_told(handlers: Handlers) -> None:
    config = ask(handlers, "ModelConfig", name="full").config
    assert (config.name, config.platform, config.backend) == ("full", "onnxruntime_onnx", "onnxruntime")
    assert (config.max_batch_size, config.default_model_filename) == (8, "model.onnx")
    assert [(each.name, each.data_type, list(each.dims), each.optional) for each in config.input] == [
        ("x", config_pb.TYPE_FP32, [-1, 4], False),
        ("s", config_pb.TYPE_STRING, [1], True),
    ]
    assert (config.output[0].data_type, config.output[0].label_filename) == (
        config_pb.TYPE_BF16,
        "classes.txt",
    )
    assert list(config.version_policy.specific.versions) == [1, 3]
    group = config.instance_group[0]
    assert (group.kind, group.count) == (config_pb.ModelInstanceGroup.KIND_GPU, 2)
    assert config.parameters["threads"].string_value == "2"


def test_batching_is_told(handlers: Handlers) -> None:
    batching = ask(handlers, "ModelConfig", name="full").config.dynamic_batching
    assert (list(batching.preferred_batch_size), batching.max_queue_delay_microseconds) == ([2, 4], 100)
    assert (batching.priority_levels, batching.default_priority_level) == (2, 1)
    assert batching.default_queue_policy.max_queue_size == 7
    level = batching.priority_queue_policy[2]
    assert (level.timeout_action, level.default_timeout_microseconds) == (config_pb.ModelQueuePolicy.DELAY, 5)
    assert not ask(
        Handlers(EngineDouble(make_version(batching=None)), LogDouble()), "ModelConfig", name="m"
    ).config.HasField("dynamic_batching")


def test_warmups_are_told(handlers: Handlers) -> None:
    (warmup,) = ask(handlers, "ModelConfig", name="full").config.model_warmup
    assert (warmup.name, warmup.batch_size, warmup.count) == ("w", 2, 3)
    assert (list(warmup.inputs["x"].dims), warmup.inputs["x"].random_data) == ([5, 4], True)
    assert warmup.inputs["s"].input_data_file == "s"


def test_statistics_count_per_version(handlers: Handlers) -> None:
    found = ask(handlers, "ModelStatistics", name="m").model_stats
    assert [(each.name, each.version) for each in found] == [("m", "1"), ("m", "2")]
    assert (found[0].inference_count, found[0].execution_count, found[0].last_inference) == (
        3,
        1,
        1_700_000_000_000,
    )
    stats = found[0].inference_stats
    assert (stats.success.count, stats.success.ns, stats.fail.count) == (1, 250, 0)
    assert (stats.queue.ns, stats.compute_input.ns, stats.compute_infer.ns, stats.compute_output.ns) == (
        5,
        10,
        200,
        30,
    )
    (batch,) = found[0].batch_stats
    assert (batch.batch_size, batch.compute_infer.count, batch.compute_infer.ns) == (3, 1, 200)
    assert len(ask(handlers, "ModelStatistics").model_stats) == 3


def test_the_index_has_states_and_reasons(handlers: Handlers) -> None:
    models = ask(handlers, "RepositoryIndex").models
    assert ("broken", "1", "UNAVAILABLE", "not ONNX") in [
        (m.name, m.version, m.state, m.reason) for m in models
    ]
    assert {m.state for m in ask(handlers, "RepositoryIndex", ready=True).models} == {"READY"}


@pytest.mark.parametrize("rpc", ["RepositoryModelLoad", "RepositoryModelUnload"])
@pytest.mark.parametrize("field", ["model_name", "repository_name"])
def test_loading_over_the_network_is_refused_whichever_field_names_the_model(
    handlers: Handlers, rpc: str, field: str
) -> None:
    with pytest.raises(
        Forbidden, match=r"loading model 'm' over the network is turned off; .* control.socket"
    ):
        ask(handlers, rpc, **{field: "m"})


@pytest.mark.parametrize("verb", ["Status", "Register", "Unregister"])
def test_shared_memory_is_not_offered(handlers: Handlers, verb: str) -> None:
    for kind in ("System", "Cuda"):
        if (kind, verb) != ("Cuda", "Register"):
            with pytest.raises(Unsupported, match="client shared memory is turned off"):
                handlers.user_rpcs()[f"{kind}SharedMemory{verb}"].serve(0, b"")
    with pytest.raises(Unsupported, match="CUDA shared memory of clients is not offered"):
        ask(handlers, "CudaSharedMemoryRegister", name="r")


def test_tracing_is_off_and_stays_off(handlers: Handlers) -> None:
    off = pb.TraceSettingRequest.SettingValue(value=["OFF"])
    for settings in ({}, {"trace_level": off}, {"trace_level": pb.TraceSettingRequest.SettingValue()}):
        answer = ask(handlers, "TraceSetting", settings=settings, model_name="m")
        assert {key: list(setting.value) for key, setting in answer.settings.items()} == {
            "trace_level": ["OFF"]
        }
    cleared = pb.TraceSettingRequest.SettingValue()
    names = ("trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency")
    ask(handlers, "TraceSetting", settings=dict.fromkeys(names, cleared))
    with pytest.raises(Unsupported, match="trace setting 'mystery'"):
        ask(handlers, "TraceSetting", settings={"mystery": cleared})
    on = pb.TraceSettingRequest.SettingValue(value=["TIMESTAMPS"])
    with pytest.raises(Unsupported, match="request tracing is not offered"):
        ask(handlers, "TraceSetting", settings={"trace_level": on})
    with pytest.raises(Unsupported, match="trace setting 'trace_rate'"):
        ask(handlers, "TraceSetting", settings={"trace_rate": off})
    with pytest.raises(UnknownModel):
        ask(handlers, "TraceSetting", model_name="nobody")


def test_tracing_that_is_configured_is_told_and_stays(engine: EngineDouble) -> None:
    tracer: Any = SimpleNamespace(one_in=50)
    handlers = Handlers(engine, LogDouble(), tracer)
    value = pb.TraceSettingRequest.SettingValue
    same = {"trace_level": value(value=["TIMESTAMPS"]), "trace_rate": value(value=["50"])}
    for settings in ({}, same):
        answer = ask(handlers, "TraceSetting", settings=settings)
        told = {key: list(setting.value) for key, setting in answer.settings.items()}
        assert told == {"trace_level": ["TIMESTAMPS"], "trace_rate": ["50"]}
    for key, wanted in (("trace_level", "OFF"), ("trace_rate", "1"), ("trace_count", "9")):
        with pytest.raises(Unsupported, match=f"trace setting '{key}'.*trace_rate is 50"):
            ask(handlers, "TraceSetting", settings={key: value(value=[wanted])})


def test_log_settings_are_an_operators_to_change(engine: EngineDouble) -> None:
    log = LogDouble()
    value = pb.LogSettingsRequest.SettingValue
    as_it_is = {"log_info": value(bool_param=True), "log_verbose_level": value(uint32_param=0)}
    assert (
        ask(Handlers(engine, log), "LogSettings", settings=as_it_is).settings["log_info"].bool_param is True
    )
    for changes in (
        {"log_info": value(bool_param=False)},
        {**as_it_is, "log_verbose_level": value(uint32_param=1)},
        {"log_info": value(uint32_param=1)},
        {"log_info": value()},
        {"mystery": value()},
    ):
        with pytest.raises(Forbidden, match=r"over the network is turned off; .* control.socket"):
            ask(Handlers(engine, log), "LogSettings", settings=changes)
    assert ask(Handlers(engine, log), "LogSettings").settings["log_info"].bool_param is True
    handlers = Handlers(engine, log, for_operator=True)
    before = ask(handlers, "LogSettings").settings
    assert (before["log_info"].bool_param, before["log_verbose_level"].uint32_param) == (True, 0)
    assert before["log_format"].string_param == "json"
    changes = {"log_info": value(bool_param=False), "log_verbose_level": value(uint32_param=2)}
    after = ask(handlers, "LogSettings", settings=changes).settings
    assert (after["log_info"].bool_param, after["log_verbose_level"].uint32_param) == (False, 2)
    with pytest.raises(InvalidRequest, match="unknown log setting 'mystery'"):
        ask(handlers, "LogSettings", settings={"mystery": value(bool_param=True)})
    with pytest.raises(InvalidRequest, match="log setting 'log_info' has no value"):
        ask(handlers, "LogSettings", settings={"log_info": value()})


@pytest.mark.parametrize(
    ("service", "health"),
    [
        ("", Health.SERVING),
        ("inference.GRPCInferenceService", Health.SERVING),
        ("m", Health.SERVING),
        ("m/2", Health.SERVING),
        ("broken", Health.NOT_SERVING),
        ("broken/1", Health.NOT_SERVING),
        ("nobody", Health.SERVICE_UNKNOWN),
        ("m/9", Health.SERVICE_UNKNOWN),
        ("/", Health.SERVICE_UNKNOWN),
    ],
)
def test_health_of_services(engine: EngineDouble, service: str, health: Health) -> None:
    assert health_of(engine, service) is health
    engine.ready = engine.accepting = False
    expected = Health.SERVICE_UNKNOWN if health is Health.SERVICE_UNKNOWN else Health.NOT_SERVING
    assert health_of(engine, service) is expected


def test_a_slash_in_a_name_is_part_of_it() -> None:
    engine = EngineDouble(make_version("a/1"), make_version("a", 2))
    assert health_of(engine, "a/1") is Health.SERVING
    assert health_of(engine, "a/1/1") is Health.SERVING
    assert health_of(engine, "a/2") is Health.SERVING


def test_the_server_is_not_healthy_before_the_first_load(engine: EngineDouble) -> None:
    engine.ready = False
    assert health_of(engine, "") is Health.NOT_SERVING
    assert health_of(engine, "m") is Health.SERVING
