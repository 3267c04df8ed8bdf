"""Which shapes an engine is built for: one profile for each preferred batch size, and one for all that requests may
have. Pure.

The batch dimension ends at ``max_batch_size``. Other free dimensions have no end that anybody knows: the model's
parameter ENGINE_FREE_MAX has to say one, for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from appliance.domain.errors import LoadFailed
from appliance.domain.model import ModelVersion
from appliance.domain.session_options import ENGINE_FREE_MAX
from appliance.domain.tensor import FREE

Shape = tuple[int, ...]

PROFILES_MAX: Final = 4
"""Of one engine: each costs the device memory, and building time."""


class Limits(NamedTuple):
    """The shapes that one input may have, and the one that runs are the fastest with."""

    least: Shape
    usual: Shape
    most: Shape

    def holds(self, shape: Shape) -> bool:
        """Whether ``shape`` is one of them."""
        return len(shape) == len(self.least) and all(
            least <= size <= most for least, size, most in zip(self.least, shape, self.most, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Limits of each input, by its name."""

    inputs: Mapping[str, Limits]

    def holds(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether all inputs of a request are within it."""
        return all(self.inputs[name].holds(shape) for name, shape in shapes.items())

    @property
    def text(self) -> str:
        """The limits, for people."""
        return ", ".join(
            f"'{name}' {list(limits.least)} to {list(limits.most)}" for name, limits in self.inputs.items()
        )


def profiles_of(version: ModelVersion) -> tuple[Profile, ...]:
    """The profiles of the engine of ``version``, the narrowest first; the last one holds all. Raises LoadFailed where
    an input cannot be bounded, or may be left out."""
    if optional := [spec.name for spec in version.inputs if spec.optional]:
        raise LoadFailed(
            f"{version.key}: input '{optional[0]}' may be left out, which no engine of TensorRT can"
        )
    batched = version.max_batch_size > 0
    own = {spec.name: version.input_reshapes.get(spec.name, spec.shape) for spec in version.inputs}
    free_max = _free_max(version) if any(FREE in shape for shape in own.values()) else 1
    preferred = () if version.batching is None else version.batching.preferred_batch_size
    sizes = sorted({size for size in preferred if 0 < size <= version.max_batch_size})[-(PROFILES_MAX - 1) :]
    if not batched:
        return (_profile(own, (), (), (), free_max),)
    usual = sizes[-1] if sizes else version.max_batch_size
    whole = _profile(own, (1,), (usual,), (version.max_batch_size,), free_max)
    return (*(_profile(own, (size,), (size,), (size,), free_max) for size in sizes), whole)


def _profile(own: Mapping[str, Shape], least: Shape, usual: Shape, most: Shape, free_max: int) -> Profile:
    return Profile(
        inputs={
            name: Limits(
                least + _bounded(shape, 1),
                usual + _bounded(shape, free_max),
                most + _bounded(shape, free_max),
            )
            for name, shape in own.items()
        }
    )


def _bounded(shape: Shape, free: int) -> Shape:
    return tuple(free if size == FREE else size for size in shape)


def _free_max(version: ModelVersion) -> int:
    """What the model's parameters, which were checked, say. Raises LoadFailed."""
    if most := int(version.parameters.get(ENGINE_FREE_MAX, "0")):
        return most
    names = ", ".join(f"'{spec.name}'" for spec in version.inputs if FREE in spec.shape)
    raise LoadFailed(
        f"{version.key}: an engine of TensorRT needs to know how long the free dimensions of {names} can be: "
        f"say the most of them in config.pbtxt, as the parameter {ENGINE_FREE_MAX}"
    )


def first_that_holds(profiles: Sequence[Profile], shapes: Mapping[str, Shape]) -> int | None:
    """The number of the narrowest profile for a request; None where none is wide enough."""
    return next((number for number, profile in enumerate(profiles) if profile.holds(shapes)), None)
