"""How the tensors of a plan lie in a slot, and what the worker is told of them: worked out once per plan.

Requests come with the same plan again and again; what follows from the plan alone is not computed per request.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.inference import RequestPlan
from appliance.model import ModelVersion
from appliance.tensor import Datatype, TensorSpec
from appliance.workers.arena import aligned
from appliance.workers.port import Shape

LAYOUTS_KEPT = 256
"""Plans per version whose layout is remembered."""

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``shapes`` and ``sizes`` are per model input (``sizes`` empty when BYTES make them vary); ``wanted`` are the
    output positions to compute, ascending; ``input_span`` and ``output_span`` are bytes with alignment, UNKNOWN when
    they depend on the data. ``merging`` tells whether such requests may share a batch."""

    plan: RequestPlan
    shapes: tuple[Shape | None, ...]
    sizes: tuple[int, ...]
    input_span: int
    wanted: tuple[int, ...]
    output_span: int
    merging: bool


def layout_of(plan: RequestPlan) -> Layout:
    """What follows from ``plan``."""
    fixed = all(planned.nbytes >= 0 for planned in plan.inputs)
    sizes = tuple(planned.nbytes for planned in plan.inputs) if fixed else ()
    return Layout(
        plan=plan,
        shapes=tuple(planned.shape if planned.source >= 0 else None for planned in plan.inputs),
        sizes=sizes,
        input_span=sum(map(aligned, sizes)) if fixed else UNKNOWN,
        wanted=tuple(sorted(planned.position for planned in plan.outputs)),
        output_span=_output_span(plan),
        merging=merges(plan.model),
    )


def merges(model: ModelVersion) -> bool:
    """Whether requests of ``model`` may share a batch."""
    return model.batching is not None and model.max_batch_size > 0


def row_bytes(spec: TensorSpec) -> int:
    """Bytes of one row (of everything, when the model is not batchable) of an output, UNKNOWN when not fixed."""
    if spec.datatype is Datatype.BYTES or any(dimension < 0 for dimension in spec.shape):
        return UNKNOWN
    size = spec.datatype.size
    for dimension in spec.shape:
        size *= dimension
    return size


def _output_span(plan: RequestPlan) -> int:
    rows = [row_bytes(plan.model.outputs[planned.position]) for planned in plan.outputs]
    return UNKNOWN if UNKNOWN in rows else sum(aligned(size * plan.rows) for size in rows)
