"""Teaches whoever listens in the edge's place the requests that it may serve by itself: those that were read, checked
and answered here once.

Only heads whose tensors all come and go as binary data are taught: what would have to be made into text is the edge's.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.engine.front import HttpFront
from appliance.engine.lessons import Lessons
from appliance.engine.port import EnginePort
from appliance.http.infer_response import InferResponse, identity, opening
from appliance.http.plan_cache import MAX_HEAD_BYTES, Planned
from appliance.inference import OutputTensor


class Teacher:
    """Owner: the inference handler."""

    def __init__(self, front: HttpFront, engine: EnginePort) -> None:
        self._front = front
        self._engine = engine
        self._lessons = Lessons()

    def wants(self, planned: Planned, text: bytes) -> bool:
        """Whether requests with the JSON ``text`` may be worth teaching."""
        return len(text) <= MAX_HEAD_BYTES and planned.request.repeatable

    def consider(
        self,
        target: str,
        text: bytes,
        planned: Planned,
        request_id: str,
        outputs: Sequence[OutputTensor],
        answer: InferResponse,
    ) -> None:
        """Teach requests for ``target`` with the JSON ``text``, of which one was answered so, if that was not done."""
        asked = planned.request
        if not all(asked.binary_outputs.get(output.name, asked.binary_default) for output in outputs):
            return
        head = self._front.head_of(target, text)
        if head is None or not self._lessons.is_due(head, planned.generation, self._engine.generation):
            return
        begin = opening(planned.plan.model)
        rest = answer.parts[0][len(begin) + len(identity(request_id)) :]
        shapes, sizes = [output.shape for output in outputs], [len(output.data) for output in outputs]
        self._front.teach(head, planned.plan, shapes, sizes, begin, rest)
