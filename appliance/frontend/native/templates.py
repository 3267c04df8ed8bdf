"""Teaches the native front end the requests that it may serve by itself: those that were seen, checked and answered
once.

What is taught is bytes: the head by which the next such request is recognised, where its tensors go, and the pieces of
its answer. It holds until requests for its version go elsewhere, or that leaves memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from appliance.domain.inference import Answer
from appliance.engine.fastpath.direct import DirectEngine, Taught
from appliance.engine.fastpath.lessons import Lessons
from appliance.engine.port import EnginePort
from appliance.frontend.grpc.codec import PlannedHead
from appliance.frontend.grpc.response import closing

if TYPE_CHECKING:
    from edge_appliance_door import Grants


class Texts(NamedTuple):
    """Tensors that are JSON: per input and output its format character of ``struct`` ("": it is binary; no members: all
    are)."""

    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()


BINARY: Final = Texts()


class Teacher:
    """Owner: the event loop's thread."""

    def __init__(self, grants: Grants, engine: EnginePort, direct: DirectEngine) -> None:
        self._grants = grants
        self._engine = engine
        self._direct = direct
        self._lessons = Lessons(engine.epoch)

    def consider(self, planned: PlannedHead, answer: Answer) -> None:
        """Teach requests with the head of ``planned``, whose ``answer`` is not yet released, if that was not done. An
        answer that another version gave, because the planned one failed, teaches nothing."""
        head = planned.head
        if not head or answer.model is not planned.plan.model:
            return
        if not self._lessons.is_due(head, planned.plan.model, planned.generation, self._engine.generation):
            return
        taught = self._direct.teach(planned.plan, [output.shape for output in answer.outputs])
        if taught is None:
            return
        opening, described, *tensors = planned.form.parts(b"", answer)
        pieces = [b"", *map(bytes, tensors[1::2])]  # what stands before each tensor, but for the first one
        sizes = [len(output.data) for output in answer.outputs]
        end = closing(True) if planned.empty_final_response else b""
        tell(self._grants, head, taught, bytes(opening), bytes(described), pieces, sizes, end)


def tell(
    grants: Grants,
    head: bytes,
    taught: Taught,
    opening: bytes,
    described: bytes,
    pieces: Sequence[bytes],
    sizes: Sequence[int],
    end: bytes = b"",
    texts: Texts = BINARY,
) -> None:
    """Teach requests with ``head``, whose answers are ``opening``, the id, ``described``, and the outputs of ``sizes``
    bytes, each behind its piece of ``pieces``; on a stream, or
    after outputs that are JSON, ``end`` follows."""
    grants.teach(
        head,
        plan=taught.plan,
        kind=taught.kind,
        model=taught.model,
        group=taught.group,
        rows=taught.rows,
        inputs=taught.inputs,
        out_offset=taught.out_offset,
        span=taught.span,
        opening=opening,
        described=described,
        outputs=list(zip(pieces, taught.outputs, sizes, strict=True)),
        closing=end,
        late_text=taught.late_text,
        default_timeout_ns=taught.default_timeout_ns,
        input_texts=texts.inputs,
        output_texts=texts.outputs,
    )
