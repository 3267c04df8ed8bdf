"""Model versions made up for tests of pure code."""

from __future__ import annotations

from appliance.domain.device_wish import ON_CPU, ON_CUDA, DeviceWish
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
from appliance.domain.tensor import Datatype, TensorSpec

EVERYTHING = ModelVersion(
    name="full",
    version=3,
    platform="onnxruntime_onnx",
    backend="onnxruntime",
    runtime="onnx",
    path="/srv/models/full/3/model.onnx",
    file_bytes=10,
    inputs=(
        TensorSpec(name="x", datatype=Datatype.FP32, shape=(-1, 4)),
        TensorSpec(name="s", datatype=Datatype.BYTES, shape=(1,), optional=True),
    ),
    outputs=(TensorSpec(name="y", datatype=Datatype.BF16, shape=(10,)),),
    max_batch_size=8,
    batching=Batching(
        preferred_batch_size=(2, 4),
        max_queue_delay_us=100,
        priority_levels=2,
        default_priority_level=1,
        default_queue_policy=QueuePolicy(max_queue_size=7),
        priority_queue_policy={2: QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=5)},
    ),
    instance_count=2,
    device=ON_CUDA,
    labels={"y": ("zero", "one")},
    label_files={"y": "classes.txt"},
    model_file="model.onnx",
    policy=VersionPolicy(choice=VersionChoice.SPECIFIC, numbers=(1, 3)),
    warmups=(
        Warmup(
            name="w",
            batch_size=2,
            count=3,
            inputs=(
                WarmupInput(spec=TensorSpec(name="x", datatype=Datatype.FP32, shape=(5, 4)), random=True),
                WarmupInput(
                    spec=TensorSpec(name="s", datatype=Datatype.BYTES, shape=(1,)),
                    file="/srv/models/full/warmup/s",
                ),
            ),
        ),
    ),
    parameters={"threads": "2"},
)
"""A version of which everything is said that a configuration can say."""


def make_version(
    name: str = "m",
    version: int = 1,
    *,
    inputs: tuple[TensorSpec, ...] = (TensorSpec(name="x", datatype=Datatype.FP32, shape=(4,)),),
    outputs: tuple[TensorSpec, ...] = (TensorSpec(name="y", datatype=Datatype.FP32, shape=(2,)),),
    max_batch_size: int = 8,
    batching: Batching | None = Batching(),  # noqa: B008  frozen
    file_bytes: int = 1000,
    instance_count: int = 1,
    device: DeviceWish = ON_CPU,
    parameters: dict[str, str] | None = None,
) -> ModelVersion:
    """A batchable model with one FP32 input ``x`` [4] and one output ``y`` [2], unless told otherwise."""
    return ModelVersion(
        name=name,
        version=version,
        platform="fake",
        backend="fake",
        runtime="fake",
        path="",
        file_bytes=file_bytes,
        inputs=inputs,
        outputs=outputs,
        max_batch_size=max_batch_size,
        batching=batching,
        instance_count=instance_count,
        device=device,
        parameters=parameters or {},
    )
