"""Templates of requests, by which the native front end serves by itself what was read, checked and answered here once.

Tensors may come and go as binary data or as JSON. Of JSON the template is everything but the id and the tensors in it;
BYTES in JSON, whose size is not known before they are read, stay with the application.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from appliance.domain.inference import OutputTensor, RequestPlan
from appliance.domain.tensor import Datatype
from appliance.engine.fastpath.templates import ConsideredHeads
from appliance.engine.port import EnginePort
from appliance.frontend.http.infer_request import JSON_DATA
from appliance.frontend.http.infer_response import frame, opening
from appliance.frontend.http.plan_cache import MAX_HEAD_BYTES, Planned
from appliance.workers.port import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How requests bring their tensors, and how their answers are worded. ``inputs`` and ``outputs``, in the order of
    request and answer, name the datatype of each tensor that is JSON (None: it is binary). An answer is ``opening``,
    the id as a member of a JSON object where there is one, ``pieces`` with the elements of the outputs that are JSON
    between them, and the binary outputs."""

    inputs: tuple[Datatype | None, ...]
    outputs: tuple[Datatype | None, ...]
    opening: bytes
    pieces: tuple[bytes, ...]


class TemplateKeeper(Protocol):
    """Serves requests by itself that it has a template of. All calls come from the event loop's thread."""

    def head_of(self, target: str, text: bytes) -> bytes | None:
        """What makes a request recognisable that has this target and this JSON before its binary tensors, whatever its
        id is and whatever tensors are in that JSON; None: nothing does."""

    def keep(
        self,
        head: bytes,
        plan: RequestPlan,
        shapes: Sequence[Shape],
        sizes: Sequence[int],
        wording: Wording,
    ) -> None:
        """Requests with ``head`` are of ``plan``; their outputs have these shapes and sizes in bytes."""


class TemplateMaker:
    """Owner: the inference handler."""

    def __init__(self, keeper: TemplateKeeper, engine: EnginePort) -> None:
        self._keeper = keeper
        self._engine = engine
        self._considered = ConsideredHeads(engine)

    def head_of(self, target: str, text: bytes, planned: Planned) -> bytes:
        """What makes requests recognisable that are as ``planned`` and have the JSON ``text``; empty when they are not
        worth a template."""
        if planned.request.repeatable:
            wanted = len(text) <= MAX_HEAD_BYTES
        else:
            wanted = all(datatype is None or datatype.code for datatype in _text_inputs(planned))
        return (self._keeper.head_of(target, text) or b"") if wanted else b""

    def consider(self, head: bytes, planned: Planned, outputs: Sequence[OutputTensor]) -> None:
        """Make a template for requests with ``head``, which are as ``planned`` and have such ``outputs``, if there is
        none."""
        asked = planned.request
        texts = tuple(
            None if asked.binary_outputs.get(output.name, asked.binary_default) else output.datatype
            for output in outputs
        )
        if not all(datatype is None or datatype.code for datatype in texts):
            return
        if not self._considered.is_due(head, planned.plan.model, planned.generation, self._engine.generation):
            return
        pieces = frame(outputs, asked.binary_outputs, asked.binary_default)
        wording = Wording(
            inputs=_text_inputs(planned),
            outputs=texts,
            opening=opening(planned.plan.model),
            pieces=tuple(piece.encode() for piece in pieces),
        )
        shapes, sizes = [output.shape for output in outputs], [len(output.data) for output in outputs]
        self._keeper.keep(head, planned.plan, shapes, sizes, wording)


def _text_inputs(planned: Planned) -> tuple[Datatype | None, ...]:
    """The datatypes of inputs that came as JSON, in the request's order; None for those that came as binary data."""
    datatypes = {planned_input.source: planned_input.datatype for planned_input in planned.plan.inputs}
    return tuple(
        datatypes[source] if size == JSON_DATA else None for source, size in enumerate(planned.request.sizes)
    )
