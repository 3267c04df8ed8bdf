"""Model versions made up for tests of pure code."""

from __future__ import annotations

from appliance.model import Batching, ModelVersion
from appliance.tensor import Datatype, TensorSpec


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
    device: str = "cpu",
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
