"""Templates of requests that the native front end may serve by itself: those that were seen, checked and answered once.

A template is bytes: the head by which the next such request is recognised, where its tensors go, and the pieces of its
answer. It holds until requests for its version go elsewhere, or that leaves memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from appliance.domain.inference import Answer
from appliance.engine.fastpath.direct import DirectEngine, RequestTemplate
from appliance.engine.fastpath.templates import ConsideredHeads
from appliance.engine.port import EnginePort
from appliance.frontend.grpc.codec import PlannedHead
from appliance.frontend.grpc.response import closing

if TYPE_CHECKING:
    from edge_appliance_native import FastPath


class Texts(NamedTuple):
    """Tensors that are JSON: per input and output its format character of ``struct`` ("": it is binary; no members: all
    are)."""

    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()


BINARY: Final = Texts()


class TemplateMaker:
    """Owner: the event loop's thread."""

    def __init__(self, fast_path: FastPath, engine: EnginePort, direct: DirectEngine) -> None:
        self._fast_path = fast_path
        self._engine = engine
        self._direct = direct
        self._considered = ConsideredHeads(engine)

    def consider(self, planned: PlannedHead, answer: Answer) -> None:
        """Make a template for requests with the head of ``planned``, whose ``answer`` is not yet released, if there is
        none. An answer that another version gave, because the planned one failed, makes none."""
        head = planned.head
        if not head or answer.model is not planned.plan.model:
            return
        if not self._considered.is_due(head, planned.plan.model, planned.generation, self._engine.generation):
            return
        template = self._direct.template_of(planned.plan, [output.shape for output in answer.outputs])
        if template is None:
            return
        opening, described, *tensors = planned.form.parts(b"", answer)
        pieces = [b"", *map(bytes, tensors[1::2])]  # what stands before each tensor, but for the first one
        sizes = [len(output.data) for output in answer.outputs]
        end = closing(True) if planned.empty_final_response else b""
        keep(self._fast_path, head, template, bytes(opening), bytes(described), pieces, sizes, end)


def keep(
    fast_path: FastPath,
    head: bytes,
    template: RequestTemplate,
    opening: bytes,
    described: bytes,
    pieces: Sequence[bytes],
    sizes: Sequence[int],
    end: bytes = b"",
    texts: Texts = BINARY,
) -> None:
    """Keep a template for requests with ``head``, whose answers are ``opening``, the id, ``described``, and the outputs
    of ``sizes`` bytes, each behind its piece of ``pieces``; on a stream, or after outputs that are JSON, ``end``
    follows."""
    fast_path.add_template(
        head,
        template=template.plan,
        kind=template.kind,
        model=template.model,
        group=template.group,
        rows=template.rows,
        inputs=template.inputs,
        out_offset=template.out_offset,
        span=template.span,
        opening=opening,
        described=described,
        outputs=list(zip(pieces, template.outputs, sizes, strict=True)),
        closing=end,
        late_text=template.late_text,
        default_timeout_ns=template.default_timeout_ns,
        input_texts=texts.inputs,
        output_texts=texts.outputs,
    )
