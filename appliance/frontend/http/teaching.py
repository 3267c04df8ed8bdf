"""Teaches whoever listens in the edge's place the requests that it may serve by itself: those that were read, checked
and answered here once.

Tensors may come and go as binary data or as JSON. What JSON is taught is everything but the id and the tensors in it;
BYTES in JSON, whose size is not known before they are read, stay with the edge.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.domain.inference import OutputTensor
from appliance.domain.tensor import Datatype
from appliance.engine.fastpath.front import HttpFront, Wording
from appliance.engine.fastpath.lessons import Lessons
from appliance.engine.port import EnginePort
from appliance.frontend.http.infer_request import JSON_DATA
from appliance.frontend.http.infer_response import frame, opening
from appliance.frontend.http.plan_cache import MAX_HEAD_BYTES, Planned


class Teacher:
    """Owner: the inference handler."""

    def __init__(self, front: HttpFront, engine: EnginePort) -> None:
        self._front = front
        self._engine = engine
        self._lessons = Lessons(engine.epoch)

    def head_of(self, target: str, text: bytes, planned: Planned) -> bytes:
        """What makes requests recognisable that are as ``planned`` and have the JSON ``text``; empty when they are not
        worth teaching."""
        if planned.request.repeatable:
            wanted = len(text) <= MAX_HEAD_BYTES
        else:
            wanted = all(datatype is None or datatype.code for datatype in _text_inputs(planned))
        return (self._front.head_of(target, text) or b"") if wanted else b""

    def consider(self, head: bytes, planned: Planned, outputs: Sequence[OutputTensor]) -> None:
        """Teach requests with ``head``, which are as ``planned`` and have such ``outputs``, if that was not done."""
        asked = planned.request
        texts = tuple(
            None if asked.binary_outputs.get(output.name, asked.binary_default) else output.datatype
            for output in outputs
        )
        if not all(datatype is None or datatype.code for datatype in texts):
            return
        if not self._lessons.is_due(head, planned.plan.model, planned.generation, self._engine.generation):
            return
        pieces = frame(outputs, asked.binary_outputs, asked.binary_default)
        wording = Wording(
            inputs=_text_inputs(planned),
            outputs=texts,
            opening=opening(planned.plan.model),
            pieces=tuple(piece.encode() for piece in pieces),
        )
        shapes, sizes = [output.shape for output in outputs], [len(output.data) for output in outputs]
        self._front.teach(head, planned.plan, shapes, sizes, wording)


def _text_inputs(planned: Planned) -> tuple[Datatype | None, ...]:
    """The datatypes of inputs that came as JSON, in the request's order; None for those that came as binary data."""
    datatypes = {planned_input.source: planned_input.datatype for planned_input in planned.plan.inputs}
    return tuple(
        datatypes[source] if size == JSON_DATA else None for source, size in enumerate(planned.request.sizes)
    )
