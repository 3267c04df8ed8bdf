"""How large the free dimensions of a model's inputs have been, by the name of the input and in their order: what an
engine has to be built for where the model does not say how large they can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from appliance.domain.model import ModelVersion
from appliance.domain.session_options import ENGINE_FREE_MAX, FREE_MAX
from appliance.domain.tensor import FREE, TensorSpec

Shape = tuple[int, ...]
FreeSizes = Mapping[str, Shape]


def is_open_ended(version: ModelVersion) -> bool:
    """Whether it has free dimensions beside the batch, and does not say how large they can be."""
    free = any(FREE in spec.shape for spec in version.inputs)
    return free and not int(version.parameters.get(ENGINE_FREE_MAX, "0"))


def free_counts(specs: Iterable[TensorSpec]) -> Mapping[str, int]:
    """How many free dimensions each input has that has any."""
    return {spec.name: spec.shape.count(FREE) for spec in specs if FREE in spec.shape}


def sizes_of(specs: Iterable[TensorSpec], shapes: Iterable[Shape | None]) -> FreeSizes:
    """Of one request, whose ``shapes`` are without the batch dimension; nothing of an input that is left out, or is
    larger than any engine is built for."""
    found = {}
    for spec, shape in zip(specs, shapes, strict=True):
        if shape is not None and FREE in spec.shape:
            sizes = tuple(size for said, size in zip(spec.shape, shape, strict=True) if said == FREE)
            if max(sizes) <= FREE_MAX:
                found[spec.name] = sizes
    return found


def largest(one: FreeSizes, other: FreeSizes) -> FreeSizes:
    """The larger one of each; that of ``other`` where the two have not as many."""
    found = dict(one)
    for name, sizes in other.items():
        found[name] = _larger(found.get(name, ()), sizes)
    return found


def _larger(one: Sequence[int], other: Shape) -> Shape:
    return tuple(map(max, one, other)) if len(one) == len(other) else other
