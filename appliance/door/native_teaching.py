"""Teaches the native door the requests that it may serve by itself: those that were seen, checked and answered once.

What is taught is bytes: the head by which the next such request is recognised, where its tensors go, and the pieces of
its answer. It holds as long as the engine's generation does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.door.codec import PlannedHead
from appliance.engine.direct import DirectEngine
from appliance.engine.port import EnginePort
from appliance.inference import Answer

if TYPE_CHECKING:
    from edge_appliance_door import Grants

HEADS_MAX: Final = 4096


class Teacher:
    """Owner: the event loop's thread."""

    def __init__(self, grants: Grants, engine: EnginePort, direct: DirectEngine) -> None:
        self._grants = grants
        self._engine = engine
        self._direct = direct
        self._asked: set[bytes] = set()
        """Heads that were taught, or cannot be, in this generation."""
        self._generation = -1

    def consider(self, planned: PlannedHead, answer: Answer) -> None:
        """Teach requests with the head of ``planned``, whose ``answer`` is not yet released, if that was not done. What
        was planned before the present generation may be another version's by now."""
        if self._engine.generation != self._generation:
            self._generation = self._engine.generation
            self._asked.clear()
        head = planned.head
        if not head or planned.generation != self._generation:
            return
        if head in self._asked or len(self._asked) >= HEADS_MAX:
            return
        self._asked.add(head)
        taught = self._direct.teach(planned.plan, [output.shape for output in answer.outputs])
        if taught is None:
            return
        opening, described, *tensors = planned.form.parts(b"", answer)
        pieces = [b"", *map(bytes, tensors[1::2])]  # what stands before each tensor, but for the first one
        sizes = [len(output.data) for output in answer.outputs]
        self._grants.teach(
            head,
            plan=taught.plan,
            kind=taught.kind,
            model=taught.model,
            group=taught.group,
            rows=taught.rows,
            inputs=taught.inputs,
            out_offset=taught.out_offset,
            span=taught.span,
            opening=bytes(opening),
            described=bytes(described),
            outputs=list(zip(pieces, taught.outputs, sizes, strict=True)),
            late_text=taught.late_text,
            default_timeout_ns=taught.default_timeout_ns,
        )
