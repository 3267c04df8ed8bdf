"""What clients rely on of a version: names, datatypes and shapes of its tensors, and how large a batch may be.

One version may take the place of another without a word to clients where every request for the other is one for it, and
its answers are such as the other gives. So inputs may only become wider, outputs may only become narrower; what is
added has to be optional. Shapes are as clients see them: with the batch dimension. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, TensorSpec

ALLOWED_PARAMETER = "allow_interface_change"
"""The parameter of a model by which its versions may have other inputs and outputs than what serves."""


def allows_change(model: ModelVersion) -> bool:
    """Whether the configuration of ``model`` says that its clients change along with it."""
    return model.parameters.get(ALLOWED_PARAMETER) == "true"


def allowance_problem(said: str) -> str:
    """What is wrong with ``said``, the value of ALLOWED_PARAMETER; "" when nothing is."""
    return "" if said in ("true", "false") else f"{ALLOWED_PARAMETER} must be 'true' or 'false'"


class Port(Enum):
    """Which way a tensor goes."""

    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChange:
    """A tensor that clients cannot use as before: it ``was`` (None: it was not there) and is ``now`` (None: it is not
    there)."""

    port: Port
    was: TensorSpec | None
    now: TensorSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """The largest batch is smaller; ``was`` 0: the first dimension was no batch, and not one that fits now."""

    was: int
    now: int


InterfaceChange = TensorChange | BatchChange


def interface_changes(new: ModelVersion, old: ModelVersion) -> tuple[InterfaceChange, ...]:
    """What keeps clients of ``old`` from talking to ``new``; nothing where they can."""
    return (*_input_changes(new, old), *_output_changes(new, old), *_batch_changes(new, old))


def _input_changes(new: ModelVersion, old: ModelVersion) -> Iterator[TensorChange]:
    there = _specs(new, new.inputs)
    for was in _specs(old, old.inputs).values():
        now = there.pop(was.name, None)
        if now is None or not _takes(now, was):
            yield TensorChange(port=Port.INPUT, was=was, now=now)
    for now in there.values():
        if not now.optional:
            yield TensorChange(port=Port.INPUT, was=None, now=now)


def _takes(now: TensorSpec, was: TensorSpec) -> bool:
    return (
        now.datatype is was.datatype
        and (now.optional or not was.optional)
        and len(now.shape) == len(was.shape)
        and all(wide in (FREE, narrow) for wide, narrow in zip(now.shape, was.shape, strict=True))
    )


def _output_changes(new: ModelVersion, old: ModelVersion) -> Iterator[TensorChange]:
    there, rows = _specs(new, new.outputs), _rows_carried_over(new, old)
    for was in _specs(old, old.outputs).values():
        now = there.get(was.name)
        if now is None or not _gives(now, was, rows):
            yield TensorChange(port=Port.OUTPUT, was=was, now=now)


def _gives(now: TensorSpec, was: TensorSpec, rows: int | None) -> bool:
    """Whether ``now`` is such as ``was``, where the first dimension of all inputs is ``rows`` if it was fixed and is
    free now: then a free first dimension of an output follows it. Else that stays as it is, for it may count rows."""
    if now.datatype is not was.datatype or len(now.shape) != len(was.shape):
        return False
    first = now.shape[:1] == was.shape[:1] or (now.shape[0] == FREE and was.shape[0] == rows)
    return first and all(
        wide in (FREE, narrow) for wide, narrow in zip(was.shape[1:], now.shape[1:], strict=True)
    )


def _rows_carried_over(new: ModelVersion, old: ModelVersion) -> int | None:
    there, was = _specs(new, new.inputs), _specs(old, old.inputs)
    firsts = {spec.shape[:1] for spec in was.values()}
    free = all(name in there and there[name].shape[:1] == (FREE,) for name in was)
    if len(firsts) != 1 or not free:
        return None
    return next((rows for rows in firsts.pop() if rows != FREE), None)


def _batch_changes(new: ModelVersion, old: ModelVersion) -> Iterator[BatchChange]:
    if not new.max_batch_size:
        return
    if old.max_batch_size:
        fits = new.max_batch_size >= old.max_batch_size
    else:
        firsts = {spec.shape[0] for spec in old.inputs if spec.shape}
        fits = len(firsts) <= 1 and all(0 <= rows <= new.max_batch_size for rows in firsts)
    if not fits:
        yield BatchChange(was=old.max_batch_size, now=new.max_batch_size)


def _specs(model: ModelVersion, specs: tuple[TensorSpec, ...]) -> dict[str, TensorSpec]:
    """By name, with shapes as clients see them."""
    if not model.max_batch_size:
        return {spec.name: spec for spec in specs}
    return {spec.name: replace(spec, shape=(FREE, *spec.shape)) for spec in specs}
