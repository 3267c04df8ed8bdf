"""Inputs to run a version with: golden cases, their rows repeated, or seeded random values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import NamedTuple

import numpy as np

from appliance.domain.errors import ArtefactError, DeviceFull, InvalidRequest, RunFailed
from appliance.domain.golden import GoldenCase, tensor_data
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, Datatype, TensorSpec, element_count, encode_bytes, split_bytes


class Tensor(NamedTuple):
    """An input: full shape and raw wire bytes."""

    datatype: Datatype
    shape: tuple[int, ...]
    raw: bytes


Inputs = Mapping[str, Tensor]


def golden_inputs(tensors: memoryview, case: GoldenCase) -> Inputs:
    """The inputs of a case."""
    return {
        each.name: Tensor(each.datatype, each.shape, bytes(tensor_data(tensors, each)))
        for each in case.inputs
    }


def random_inputs(
    version: ModelVersion, rows: int, shapes: Mapping[str, tuple[int, ...]], seed: int
) -> Inputs:
    """Values that depend on the seed only: normally distributed numbers, integers 0 and 1 (valid in vocabularies and
    masks), strings of eight digits. Raises ArtefactError for a free dimension that ``shapes`` does not fix."""
    if unsaid := [
        spec for spec in version.inputs if not spec.optional and FREE in shapes.get(spec.name, spec.shape)
    ]:
        raise ArtefactError(
            f"how long free dimensions are is not said; give --shape {' --shape '.join(map(_wished, unsaid))} with a "
            f"number for each N"
        )
    generator = np.random.default_rng(seed)
    return {
        spec.name: _random_tensor(spec, rows if version.max_batch_size else 0, shapes, generator)
        for spec in version.inputs
        if not spec.optional
    }


@contextmanager
def random_values() -> Iterator[None]:
    """For runs on random values: a model that fails them is asked for what it answers. Raises ArtefactError."""
    try:
        yield
    except DeviceFull:
        raise
    except (InvalidRequest, RunFailed) as error:
        raise ArtefactError(
            f"the model fails random values: {error}; make a golden set of requests that it answers "
            "('appliance model golden SOURCE --case FILE', or --input)"
        ) from error


def with_rows(version: ModelVersion, inputs: Inputs, rows: int) -> Inputs:
    """The inputs with their rows repeated or cut to ``rows``; as they are where the model takes no batches."""
    if version.max_batch_size == 0:
        return inputs
    return {name: _with_rows(tensor, rows) for name, tensor in inputs.items()}


def rows_of(version: ModelVersion, inputs: Inputs) -> int:
    """How many rows the inputs have; 1 where the model takes no batches or no inputs."""
    if version.max_batch_size == 0:
        return 1
    return next((tensor.shape[0] for tensor in inputs.values()), 1)


def _wished(spec: TensorSpec) -> str:
    """What is to be said of its shape, N where it is free, as a shell takes it."""
    return quote(f"{spec.name}={','.join('N' if size == FREE else str(size) for size in spec.shape)}")


def _random_tensor(
    spec: TensorSpec, rows: int, shapes: Mapping[str, tuple[int, ...]], generator: np.random.Generator
) -> Tensor:
    inner = shapes.get(spec.name, spec.shape)
    if len(inner) != len(spec.shape) or any(
        want not in (FREE, have) for want, have in zip(spec.shape, inner, strict=True)
    ):
        raise ArtefactError(
            f"input '{spec.name}' has shape {list(spec.shape)}; {list(inner)} does not fit it"
        )
    shape = (rows, *inner) if rows else inner
    return Tensor(spec.datatype, shape, _random_bytes(spec.datatype, element_count(shape), generator))


def _random_bytes(datatype: Datatype, count: int, generator: np.random.Generator) -> bytes:
    if datatype is Datatype.BYTES:
        return encode_bytes(f"{number:08d}".encode() for number in generator.integers(0, 10**8, count))
    if datatype is Datatype.BF16:
        wide = generator.standard_normal(count).astype(np.float32).view(np.uint32)
        return (wide >> 16).astype("<u2").tobytes()
    if datatype in (Datatype.FP16, Datatype.FP32, Datatype.FP64):
        return generator.standard_normal(count).astype(f"<f{datatype.size}").tobytes()
    return generator.integers(0, 2, count).astype(f"<u{datatype.size}").tobytes()


def _with_rows(tensor: Tensor, rows: int) -> Tensor:
    there = tensor.shape[0]
    if there == rows:
        return tensor
    shape = (rows, *tensor.shape[1:])
    if tensor.datatype is Datatype.BYTES:
        elements: Sequence[memoryview] = list(split_bytes(memoryview(tensor.raw)))
        wanted = element_count(shape)
        return Tensor(
            tensor.datatype,
            shape,
            encode_bytes(bytes(elements[index % len(elements)]) for index in range(wanted)),
        )
    size = len(tensor.raw) // there * rows
    return Tensor(tensor.datatype, shape, (tensor.raw * -(-rows // there))[:size])
