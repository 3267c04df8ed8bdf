"""What both protocols say about the server and its models: metadata, configuration, statistics, index.

Pure: values in, JSON values out, with the names of the public messages, so that gRPC makes its messages of them. Shapes
lead with -1 where a model has a batch dimension.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from appliance import __version__
from appliance.domain.model import (
    Batching,
    ModelVersion,
    QueuePolicy,
    TimeoutAction,
    VersionChoice,
    VersionPolicy,
    Warmup,
    WarmupInput,
)
from appliance.domain.protocol import EXTENSIONS, SYSTEM_SHARED_MEMORY
from appliance.domain.tensor import FREE, TensorSpec
from appliance.engine.port import IndexEntry
from appliance.telemetry.meter import BatchStatistics, Result, Stage, VersionStatistics
from appliance.telemetry.status_document import Json


def server_metadata(name: str, shared_memory: bool = False) -> dict[str, Json]:
    """Name, version and what is offered beyond the core protocol; ``shared_memory``: that of clients as well."""
    extensions = (*EXTENSIONS, SYSTEM_SHARED_MEMORY) if shared_memory else EXTENSIONS
    return {"name": name, "version": __version__, "extensions": list[Json](extensions)}


def model_metadata(model: ModelVersion, versions: Sequence[ModelVersion]) -> dict[str, Json]:
    """Tensors of one version, and all ``versions`` that are ready."""
    batched = model.max_batch_size > 0
    return {
        "name": model.name,
        "versions": [str(version.version) for version in versions],
        "platform": model.platform,
        "inputs": [_tensor(spec, batched) for spec in model.inputs],
        "outputs": [_tensor(spec, batched) for spec in model.outputs],
    }


def model_config(model: ModelVersion) -> dict[str, Json]:
    """Everything that is known of how ``model`` is served: a ModelConfig."""
    document: dict[str, Json] = {
        "name": model.name,
        "platform": model.platform,
        "version_policy": _config_version_policy(model.policy),
        "backend": model.backend,
        "max_batch_size": model.max_batch_size,
        "default_model_filename": model.model_file,
        "input": [
            {
                **_config_tensor(spec, model.input_reshapes),
                "format": model.formats.get(spec.name, "FORMAT_NONE"),
                "allow_ragged_batch": False,
                "optional": spec.optional,
            }
            for spec in model.inputs
        ],
        "output": [
            {
                **_config_tensor(spec, model.output_reshapes),
                "label_filename": model.label_files.get(spec.name, ""),
            }
            for spec in model.outputs
        ],
        "instance_group": [
            {
                "name": model.name,
                "kind": "KIND_GPU" if not model.on_cpu else "KIND_CPU",
                "count": model.instance_count,
            }
        ],
        "parameters": {key: {"string_value": value} for key, value in model.parameters.items()},
        "model_warmup": [_config_warmup(warmup) for warmup in model.warmups],
        "model_transaction_policy": {"decoupled": False},
        **json.loads(model.noted),
    }
    if model.batching is not None:
        document["dynamic_batching"] = _config_batching(model.batching)
    return document


def statistics_document(statistics: Iterable[VersionStatistics]) -> dict[str, Json]:
    """Counts and times per version. A request that failed counts once, however it did."""
    return {"model_stats": [_version_statistics(version) for version in statistics]}


def index_document(entries: Iterable[IndexEntry]) -> list[Json]:
    """Versions with their state and reason."""
    return [
        {"name": entry.name, "version": entry.version, "state": entry.state.value, "reason": entry.reason}
        for entry in entries
    ]


def _tensor(spec: TensorSpec, batched: bool) -> dict[str, Json]:
    shape = [FREE, *spec.shape] if batched else list(spec.shape)
    return {"name": spec.name, "datatype": spec.datatype.wire, "shape": list[Json](shape)}


def _config_tensor(spec: TensorSpec, reshapes: Mapping[str, Sequence[int]]) -> dict[str, Json]:
    document: dict[str, Json] = {
        "name": spec.name,
        "data_type": spec.datatype.config_name,
        "dims": list[Json](spec.shape),
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }
    if spec.name in reshapes:
        document["reshape"] = {"shape": list[Json](reshapes[spec.name])}
    return document


def _config_version_policy(policy: VersionPolicy) -> dict[str, Json]:
    if policy.choice is VersionChoice.SPECIFIC:
        return {"specific": {"versions": list[Json](policy.numbers)}}
    if policy.choice is VersionChoice.ALL:
        return {"all": {}}
    return {"latest": {"num_versions": policy.count}}


def _config_warmup(warmup: Warmup) -> dict[str, Json]:
    return {
        "name": warmup.name,
        "batch_size": warmup.batch_size,
        "inputs": {each.spec.name: _config_warmup_input(each) for each in warmup.inputs},
        "count": warmup.count,
    }


def _config_warmup_input(each: WarmupInput) -> dict[str, Json]:
    document: dict[str, Json] = {
        "data_type": each.spec.datatype.config_name,
        "dims": list[Json](each.spec.shape),
    }
    if each.file:
        document["input_data_file"] = PurePath(each.file).name
    else:
        document["random_data" if each.random else "zero_data"] = True
    return document


def _config_batching(batching: Batching) -> dict[str, Json]:
    return {
        "preferred_batch_size": list[Json](batching.preferred_batch_size),
        "max_queue_delay_microseconds": batching.max_queue_delay_us,
        "priority_levels": batching.priority_levels,
        "default_priority_level": batching.default_priority_level,
        "default_queue_policy": _config_policy(batching.default_queue_policy),
        "priority_queue_policy": {
            str(level): _config_policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
    }


def _config_policy(policy: QueuePolicy) -> dict[str, Json]:
    return {
        "timeout_action": "DELAY" if policy.timeout_action is TimeoutAction.DELAY else "REJECT",
        "default_timeout_microseconds": policy.default_timeout_us,
        "allow_timeout_override": policy.allow_timeout_override,
        "max_queue_size": policy.max_queue_size,
    }


def _version_statistics(statistics: VersionStatistics) -> dict[str, Json]:
    failed = sum(count for result, count in statistics.results.items() if result is not Result.SUCCESS)
    return {
        "name": statistics.name,
        "version": str(statistics.version),
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inferences,
        "execution_count": statistics.executions,
        "inference_stats": {
            "success": _stage(statistics, Stage.TOTAL),
            "fail": _duration(failed, statistics.failed_ns),
            "queue": _stage(statistics, Stage.QUEUE),
            "compute_input": _stage(statistics, Stage.GATHER),
            "compute_infer": _stage(statistics, Stage.RUN),
            "compute_output": _stage(statistics, Stage.SCATTER),
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "batch_stats": [_batch(batch) for batch in statistics.batches],
        "memory_usage": [],
    }


def _batch(batch: BatchStatistics) -> dict[str, Json]:
    return {
        "batch_size": batch.rows,
        "compute_input": _duration(batch.count, batch.gather_ns),
        "compute_infer": _duration(batch.count, batch.run_ns),
        "compute_output": _duration(batch.count, batch.scatter_ns),
    }


def _stage(statistics: VersionStatistics, stage: Stage) -> dict[str, Json]:
    histogram = statistics.stages[stage]
    return _duration(histogram.count, histogram.sum_ns)


def _duration(count: int, ns: int) -> dict[str, Json]:
    return {"count": count, "ns": ns}
