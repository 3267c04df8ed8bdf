"""Models and their figures as the messages of the protocol. Pure."""

from __future__ import annotations

from pathlib import PurePath

from appliance.domain.histogram import HistogramValue
from appliance.domain.model import (
    Batching,
    ModelVersion,
    QueuePolicy,
    TimeoutAction,
    VersionChoice,
    VersionPolicy,
    Warmup,
)
from appliance.domain.tensor import FREE, TensorSpec
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.grpc.wire_pb import model_config_pb2 as config_pb
from appliance.telemetry.meter import BatchStatistics, Result, Stage, VersionStatistics


def tensor_metadata(spec: TensorSpec, batched: bool) -> pb.ModelMetadataResponse.TensorMetadata:
    """Name, datatype and shape, which leads with -1 where the model has a batch dimension."""
    shape = (FREE, *spec.shape) if batched else spec.shape
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype.wire, shape=shape)


def model_config(model: ModelVersion) -> config_pb.ModelConfig:
    """Everything the appliance knows of how ``model`` is served."""
    config = config_pb.ModelConfig(
        name=model.name,
        platform=model.platform,
        version_policy=_version_policy(model.policy),
        backend=model.backend,
        max_batch_size=model.max_batch_size,
        default_model_filename=model.model_file,
        input=[
            config_pb.ModelInput(
                name=spec.name, data_type=spec.datatype.config_name, dims=spec.shape, optional=spec.optional
            )
            for spec in model.inputs
        ],
        output=[_output(model, spec) for spec in model.outputs],
        instance_group=[
            config_pb.ModelInstanceGroup(
                name=model.name,
                kind=config_pb.ModelInstanceGroup.KIND_GPU
                if model.device == "cuda"
                else config_pb.ModelInstanceGroup.KIND_CPU,
                count=model.instance_count,
            )
        ],
        model_warmup=[_warmup(warmup) for warmup in model.warmups],
    )
    if model.batching is not None:
        config.dynamic_batching.CopyFrom(_batching(model.batching))
    for key, value in model.parameters.items():
        config.parameters[key].string_value = value
    return config


def version_statistics(version: VersionStatistics) -> pb.ModelStatistics:
    """The figures of one version; a request that failed counts once, however it did."""
    stages = version.stages
    failed = sum(count for result, count in version.results.items() if result is not Result.SUCCESS)
    return pb.ModelStatistics(
        name=version.name,
        version=str(version.version),
        last_inference=version.last_inference_ms,
        inference_count=version.inferences,
        execution_count=version.executions,
        inference_stats=pb.InferStatistics(
            success=_duration(stages[Stage.TOTAL]),
            fail=pb.StatisticDuration(count=failed, ns=version.failed_ns),
            queue=_duration(stages[Stage.QUEUE]),
            compute_input=_duration(stages[Stage.GATHER]),
            compute_infer=_duration(stages[Stage.RUN]),
            compute_output=_duration(stages[Stage.SCATTER]),
        ),
        batch_stats=[_batch(batch) for batch in version.batches],
    )


def _duration(histogram: HistogramValue) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=histogram.count, ns=histogram.sum_ns)


def _batch(batch: BatchStatistics) -> pb.InferBatchStatistics:
    return pb.InferBatchStatistics(
        batch_size=batch.rows,
        compute_input=pb.StatisticDuration(count=batch.count, ns=batch.gather_ns),
        compute_infer=pb.StatisticDuration(count=batch.count, ns=batch.run_ns),
        compute_output=pb.StatisticDuration(count=batch.count, ns=batch.scatter_ns),
    )


def _output(model: ModelVersion, spec: TensorSpec) -> config_pb.ModelOutput:
    return config_pb.ModelOutput(
        name=spec.name,
        data_type=spec.datatype.config_name,
        dims=spec.shape,
        label_filename=model.label_files.get(spec.name, ""),
    )


def _version_policy(policy: VersionPolicy) -> config_pb.ModelVersionPolicy:
    kind = config_pb.ModelVersionPolicy
    if policy.choice is VersionChoice.SPECIFIC:
        return kind(specific=kind.Specific(versions=policy.numbers))
    if policy.choice is VersionChoice.ALL:
        return kind(all=kind.All())
    return kind(latest=kind.Latest(num_versions=policy.count))


def _batching(batching: Batching) -> config_pb.ModelDynamicBatching:
    return config_pb.ModelDynamicBatching(
        preferred_batch_size=batching.preferred_batch_size,
        max_queue_delay_microseconds=batching.max_queue_delay_us,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_policy(batching.default_queue_policy),
        priority_queue_policy={
            level: _policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
    )


def _policy(policy: QueuePolicy) -> config_pb.ModelQueuePolicy:
    delay = policy.timeout_action is TimeoutAction.DELAY
    return config_pb.ModelQueuePolicy(
        timeout_action=config_pb.ModelQueuePolicy.DELAY if delay else config_pb.ModelQueuePolicy.REJECT,
        default_timeout_microseconds=policy.default_timeout_us,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _warmup(warmup: Warmup) -> config_pb.ModelWarmup:
    message = config_pb.ModelWarmup(name=warmup.name, batch_size=warmup.batch_size, count=warmup.count)
    for each in warmup.inputs:
        entry = config_pb.ModelWarmup.Input(data_type=each.spec.datatype.config_name, dims=each.spec.shape)
        if each.file:
            entry.input_data_file = PurePath(each.file).name
        elif each.random:
            entry.random_data = True
        else:
            entry.zero_data = True
        message.inputs[each.spec.name].CopyFrom(entry)
    return message
