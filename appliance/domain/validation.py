"""Check a request head against a model version, once per distinct head.

Pure. The texts are those that clients of the protocol match on. Sizes are computed with checked integers before any
memory is taken; what a plan says about sizes is what the front ends then hold the raw bytes to.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Final

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import (
    PlannedInput,
    PlannedOutput,
    RequestHead,
    RequestPlan,
    TensorHead,
)
from appliance.domain.model import ModelVersion
from appliance.domain.steps import STEP_ELEMENTS, Steps
from appliance.domain.tensor import FREE, Datatype, TensorSpec, byte_size, element_count, split_bytes

BYTES_ELEMENTS_MAX: Final = 1 << 24
"""Most elements of a BYTES tensor: as many empty ones as the largest message has by default. They are walked one by
one, and in a worker each becomes an object."""


def plan_request(model: ModelVersion, head: RequestHead) -> RequestPlan:
    """The plan for ``head`` on ``model``; raises InvalidRequest naming what does not fit."""
    try:
        return _plan(model, head)
    except InvalidRequest as error:
        error.model = (model.name, model.version)
        raise


def _plan(model: ModelVersion, head: RequestHead) -> RequestPlan:
    sources = _match_inputs(model, head.inputs)
    inputs = tuple(
        _plan_input(model, spec, sources[spec.name], head.inputs)
        if spec.name in sources
        else PlannedInput(spec.name, -1, spec.datatype, (), 0, 0)
        for spec in model.inputs
    )
    rows = _batch_rows(model, inputs)
    _check_level(model, head.priority)
    skip = 1 if model.max_batch_size else 0
    return RequestPlan(
        model=model,
        head=head,
        rows=rows,
        inputs=inputs,
        outputs=_plan_outputs(model, head),
        merge_shape=tuple(planned.shape[skip:] if planned.source >= 0 else None for planned in inputs),
    )


def check_raw(plan: RequestPlan, planned: PlannedInput, raw: Sized) -> Steps[None] | None:
    """Hold the raw bytes of one input to the plan; raises InvalidRequest when they are too few, too many or, for
    BYTES, which are ``bytes`` or a memoryview, not that many whole elements: that takes the steps that it gives."""
    if planned.nbytes < 0:
        assert isinstance(raw, bytes | memoryview)
        return _check_bytes(plan, planned, raw)
    if len(raw) != planned.nbytes:
        raise _of(
            plan,
            f"input byte size mismatch for input '{planned.name}' for model '{plan.model.name}'. "
            f"Expected {planned.nbytes}, got {len(raw)}",
        )
    return None


def _check_bytes(plan: RequestPlan, planned: PlannedInput, raw: bytes | memoryview) -> Steps[None]:
    """Hold a raw BYTES tensor to its element count; what is beyond that is not looked at."""
    found = 0
    try:
        for _ in split_bytes(memoryview(raw)):
            found += 1
            if found % STEP_ELEMENTS == 0:
                yield
            if found > planned.elements:
                break
    except InvalidRequest as error:
        where = f"for inference input '{planned.name}' for model '{plan.model.name}'"
        raise _of(plan, f"{error} {where}") from error
    if found != planned.elements:
        raise _of(plan, string_count_text(plan.model.name, planned.name, found, planned.elements))


def string_count_text(model: str, name: str, found: int, expected: int) -> str:
    """What is wrong with a BYTES input of ``found`` elements where ``expected`` are."""
    where = f"for inference input '{name}' for model '{model}'"
    if found < expected:
        return f"expected {expected} string elements {where}, got {found}"
    return f"unexpected number of string elements {found} {where}, expecting {expected}"


def _of(plan: RequestPlan, text: str) -> InvalidRequest:
    """An error of a request for the plan's version."""
    error = InvalidRequest(text)
    error.model = (plan.model.name, plan.model.version)
    return error


def _match_inputs(model: ModelVersion, heads: Sequence[TensorHead]) -> dict[str, int]:
    known = {spec.name for spec in model.inputs}
    sources: dict[str, int] = {}
    for index, head in enumerate(heads):
        if head.name not in known:
            raise InvalidRequest(f"unexpected inference input '{head.name}' for model '{model.name}'")
        if head.name in sources:
            raise InvalidRequest(f"input '{head.name}' already exists in request for model '{model.name}'")
        sources[head.name] = index
    missing = [spec.name for spec in model.inputs if not spec.optional and spec.name not in sources]
    if missing:
        required = sum(not spec.optional for spec in model.inputs)
        most = len(model.inputs)
        count = f"{most} inputs" if required == most else f"number of inputs between {required} and {most}"
        raise InvalidRequest(
            f"expected {count} but got {len(heads)} inputs for model '{model.name}'. "
            f"Got input(s) {_names(sources)}, but missing required input(s) {_names(missing)}. "
            "Please provide all required input(s)."
        )
    return sources


def _names(names: Sequence[str] | dict[str, int]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _plan_input(
    model: ModelVersion, spec: TensorSpec, source: int, heads: Sequence[TensorHead]
) -> PlannedInput:
    head = heads[source]
    if head.datatype != spec.datatype.wire:
        raise InvalidRequest(
            f"inference input '{spec.name}' data-type is '{head.datatype}', but model '{model.name}' "
            f"expects '{spec.datatype.wire}'"
        )
    elements = element_count(head.shape)
    _check_shape(model, spec, head.shape)
    if spec.datatype is Datatype.BYTES and elements > BYTES_ELEMENTS_MAX:
        raise InvalidRequest(
            f"input '{spec.name}' for model '{model.name}' has {elements} string elements; at most "
            f"{BYTES_ELEMENTS_MAX} are accepted"
        )
    nbytes = -1 if spec.datatype is Datatype.BYTES else byte_size(spec.datatype, head.shape)
    return PlannedInput(spec.name, source, spec.datatype, head.shape, nbytes, elements)


def _check_shape(model: ModelVersion, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    batched = model.max_batch_size > 0
    expected = (FREE, *spec.shape) if batched else spec.shape
    fits = len(shape) == len(expected) and all(
        want in (FREE, have) for want, have in zip(expected, shape, strict=True)
    )
    if not fits:
        raise InvalidRequest(
            f"unexpected shape for input '{spec.name}' for model '{model.name}'. "
            f"Expected {_dims(expected)}, got {_dims(shape)}. "
            + ("NOTE: the first dimension is the batch dimension." if batched else "")
        )


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _batch_rows(model: ModelVersion, inputs: Sequence[PlannedInput]) -> int:
    if model.max_batch_size == 0:
        return 1
    first: PlannedInput | None = None
    for planned in inputs:
        if planned.source < 0:
            continue
        if first is None:
            first = planned
        elif planned.shape[0] != first.shape[0]:
            raise InvalidRequest(
                f"input '{planned.name}' batch size does not match other inputs for '{model.name}': "
                f"{planned.shape[0]} instead of {first.shape[0]} of input '{first.name}'"
            )
    rows = first.shape[0] if first else 1
    if rows > model.max_batch_size:
        raise InvalidRequest(
            f"inference request batch-size must be <= {model.max_batch_size} for '{model.name}', got {rows}"
        )
    return rows


def _check_level(model: ModelVersion, priority: int) -> None:
    if priority < 0:
        raise InvalidRequest(f"priority must not be negative, got {priority}")
    levels = model.batching.priority_levels if model.batching else 0
    if levels and priority > levels:
        raise InvalidRequest(
            f"priority {priority} is above the {levels} priority levels of model '{model.name}'"
        )


def _plan_outputs(model: ModelVersion, head: RequestHead) -> tuple[PlannedOutput, ...]:
    if not head.outputs:
        return tuple(PlannedOutput(index, 0) for index in range(len(model.outputs)))
    known = {spec.name: index for index, spec in enumerate(model.outputs)}
    planned: list[PlannedOutput] = []
    for wanted in head.outputs:
        index = known.get(wanted.name)
        if index is None:
            raise InvalidRequest(f"unexpected inference output '{wanted.name}' for model '{model.name}'")
        if any(index == earlier.position for earlier in planned):
            raise InvalidRequest(f"output '{wanted.name}' is requested twice for model '{model.name}'")
        if wanted.classification < 0:
            raise InvalidRequest(f"classification of output '{wanted.name}' must be at least 1")
        if wanted.classification and model.outputs[index].datatype is Datatype.BYTES:
            raise InvalidRequest(f"output '{wanted.name}' holds BYTES and cannot be classified")
        planned.append(PlannedOutput(index, wanted.classification))
    return tuple(planned)
