"""How the tensors of a plan lie in a slot, and what the worker is told of them: worked out once per plan.

Requests come with the same plan again and again; what follows from the plan alone is not computed per request.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.domain.inference import RequestPlan
from appliance.domain.model import ModelVersion
from appliance.engine.versions.expectation import UNKNOWN, Expectation, Expectations, row_bytes
from appliance.workers.arena import aligned
from appliance.workers.port import Shape

LAYOUTS_KEPT = 256
"""Plans per version whose layout is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``shapes`` and ``sizes`` are per model input (``sizes`` empty when BYTES make them vary); ``wanted`` are the
    output positions to compute, ascending; ``input_span`` and ``output_span`` are bytes with alignment, UNKNOWN when
    they depend on the data. ``merging`` tells whether such requests may share a batch. ``expectation`` is there when
    nothing but the data leaves ``output_span`` open."""

    plan: RequestPlan
    shapes: tuple[Shape | None, ...]
    sizes: tuple[int, ...]
    input_span: int
    wanted: tuple[int, ...]
    output_span: int
    merging: bool
    expectation: Expectation | None


def layout_of(plan: RequestPlan, expectations: Expectations) -> Layout:
    """What follows from ``plan``, and what answers to it took so far."""
    fixed = all(planned.nbytes >= 0 for planned in plan.inputs)
    sizes = tuple(planned.nbytes for planned in plan.inputs) if fixed else ()
    output_span = _output_span(plan)
    return Layout(
        plan=plan,
        shapes=tuple(planned.shape if planned.source >= 0 else None for planned in plan.inputs),
        sizes=sizes,
        input_span=sum(map(aligned, sizes)) if fixed else UNKNOWN,
        wanted=tuple(sorted(planned.position for planned in plan.outputs)),
        output_span=output_span,
        merging=merges(plan.model),
        expectation=expectations.of(plan, sum(sizes)) if fixed and output_span == UNKNOWN else None,
    )


def merges(model: ModelVersion) -> bool:
    """Whether requests of ``model`` may share a batch."""
    return model.batching is not None and model.max_batch_size > 0


def _output_span(plan: RequestPlan) -> int:
    rows = [row_bytes(plan.model.outputs[planned.position]) for planned in plan.outputs]
    return UNKNOWN if UNKNOWN in rows else sum(aligned(size * plan.rows) for size in rows)
