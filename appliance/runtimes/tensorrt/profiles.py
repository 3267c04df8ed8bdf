"""Which shapes an engine is built for: one profile for each preferred batch size, and one for all that requests may
have. Pure.

The batch dimension ends at ``max_batch_size``. Other free dimensions end where the model's parameter ENGINE_FREE_MAX
says, which is one size for all of them; else at the largest that requests had. No further: what a model can take is
known of those alone, and a profile with shapes that it cannot fails to build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from appliance.domain.errors import LoadFailed
from appliance.domain.free_sizes import FreeSizes
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
    free = _free_sizes(version, own)
    preferred = () if version.batching is None else version.batching.preferred_batch_size
    sizes = sorted({size for size in preferred if 0 < size <= version.max_batch_size})[-(PROFILES_MAX - 1) :]
    if not batched:
        return (_profile(own, (), (), (), free),)
    usual = sizes[-1] if sizes else version.max_batch_size
    whole = _profile(own, (1,), (usual,), (version.max_batch_size,), free)
    return (*(_profile(own, (size,), (size,), (size,), free) for size in sizes), whole)


def _profile(own: Mapping[str, Shape], least: Shape, usual: Shape, most: Shape, free: FreeSizes) -> Profile:
    return Profile(
        inputs={
            name: Limits(
                least + _bounded(shape, (1,) * len(free[name])),
                usual + _bounded(shape, free[name]),
                most + _bounded(shape, free[name]),
            )
            for name, shape in own.items()
        }
    )


def _bounded(shape: Shape, sizes: Shape) -> Shape:
    """The shape with ``sizes`` in the place of its free dimensions."""
    left = iter(sizes)
    return tuple(next(left) if size == FREE else size for size in shape)


def _free_sizes(version: ModelVersion, own: Mapping[str, Shape]) -> FreeSizes:
    """What the free dimensions of each input are at most. Raises LoadFailed where neither the model's parameters, which
    were checked, nor its requests say that."""
    counts = {name: shape.count(FREE) for name, shape in own.items()}
    if said := int(version.parameters.get(ENGINE_FREE_MAX, "0")):
        return {name: (said,) * count for name, count in counts.items()}
    seen = {name: version.free_sizes.get(name, ()) for name in own}
    if unknown := [f"'{name}'" for name, sizes in seen.items() if len(sizes) != counts[name]]:
        raise LoadFailed(
            f"{version.key}: an engine of TensorRT needs to know how long the free dimensions of {', '.join(unknown)} "
            f"can be: say the most of them in config.pbtxt, as the parameter {ENGINE_FREE_MAX}"
        )
    return {name: tuple(max(size, 1) for size in sizes) for name, sizes in seen.items()}


def first_that_holds(profiles: Sequence[Profile], shapes: Mapping[str, Shape]) -> int | None:
    """The number of the narrowest profile for a request; None where none is wide enough."""
    return next((number for number, profile in enumerate(profiles) if profile.holds(shapes)), None)
