"""A request and its answer as the engine sees them: descriptors, never tensor bytes of its own.

A front end decodes a message into a RequestHead, ``validation.plan_request`` checks it against a model version once and
gives a RequestPlan that can be cached for identical heads, and the engine takes the plan with the raw tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.domain.errors import ApplianceError
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype

Parameter = bool | int | str | float
NO_DEADLINE = 1 << 62
"""Deadline of a request that has none; later than any monotonic clock."""


class TensorHead(NamedTuple):
    """An input as the client announced it: name, datatype string, full shape (batch dimension included)."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class OutputHead(NamedTuple):
    """An output the client asked for; ``classification`` > 0 asks for that many top classes instead of the tensor."""

    name: str
    classification: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """Everything of a request but its id and its tensors' bytes. No ``outputs`` means all outputs.

    ``priority`` 0 is the model's default, 1 the most urgent. ``timeout_us`` 0 means none.
    """

    model_name: str
    model_version: str
    inputs: tuple[TensorHead, ...]
    outputs: tuple[OutputHead, ...] = ()
    priority: int = 0
    timeout_us: int = 0
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


class PlannedInput(NamedTuple):
    """One input in the model's order. ``source`` is its index in the request (-1: optional input left out);
    ``nbytes`` is exact for fixed-size datatypes and -1 for BYTES; ``elements`` counts elements."""

    name: str
    source: int
    datatype: Datatype
    shape: tuple[int, ...]
    nbytes: int
    elements: int


class PlannedOutput(NamedTuple):
    """One output to answer with: its position in the model's outputs, how many top classes (0: the tensor itself)."""

    position: int
    classification: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """A head that was checked against one model version; valid for every request with the same head.

    ``rows`` counts batch rows (1 for a model without a batch dimension). ``inputs`` and ``outputs`` are complete
    and ordered. ``merge_shape`` holds the shapes without the batch dimension: requests may share a batch when equal.
    """

    model: ModelVersion
    head: RequestHead
    rows: int
    inputs: tuple[PlannedInput, ...]
    outputs: tuple[PlannedOutput, ...]
    merge_shape: tuple[tuple[int, ...] | None, ...]


class OutputTensor(NamedTuple):
    """One output of an answer. ``data`` is raw wire bytes, often a view of shared memory: copy before release."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: bytes | memoryview


@dataclass(slots=True, kw_only=True)
class Answer:
    """The answer to one request. ``release`` gives the memory behind the outputs back; call it exactly once."""

    model: ModelVersion
    outputs: tuple[OutputTensor, ...]
    release: Callable[[], None]


Outcome = Answer | ApplianceError
"""What a request ends with."""
