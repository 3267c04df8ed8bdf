"""Templates of requests that the native front end may serve by itself: those that were seen, checked and answered once.

A template is bytes: the head by which the next such request is recognised, where its tensors go, and the pieces of its
answer. It holds until requests for its version go elsewhere, or that leaves memory. Over HTTP, tensors may come and go
as binary data or as JSON. Of JSON the template is everything but the id and the tensors in it; BYTES in JSON, whose
size is not known before they are read, stay with the application.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from appliance.domain.inference import Answer, OutputTensor, RequestPlan
from appliance.domain.tensor import Datatype
from appliance.engine.fastpath.direct import DirectEngine
from appliance.engine.port import EnginePort
from appliance.frontend.grpc.request import Intake
from appliance.frontend.grpc.response import closing, response_parts
from appliance.frontend.http.infer_request import JSON_DATA, Planned
from appliance.frontend.http.infer_response import frame, opening
from appliance.frontend.native.heads import Heads

if TYPE_CHECKING:
    from edge_appliance_native import FastPath

HEAD_BYTES_MAX: Final = 4_096


class Wording(NamedTuple):
    """How answers are worded: ``opening``, the id, ``described``, and the outputs, each behind its piece of ``pieces``;
    on a stream, or after outputs that are JSON, ``closing`` follows. Of tensors that are JSON, ``inputs`` and
    ``outputs`` have the format character of ``struct`` ("": it is binary; no members: all are)."""

    opening: bytes
    described: bytes
    pieces: Sequence[bytes]
    closing: bytes = b""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()


class TemplateMaker:
    """Keeps templates in ``fast_path``, of what ``direct`` leases to it, for ``heads``. Owner: the event loop's
    thread."""

    def __init__(self, fast_path: FastPath, engine: EnginePort, direct: DirectEngine, heads: Heads) -> None:
        self._fast_path = fast_path
        self._engine = engine
        self._direct = direct
        self._heads = heads

    def _is_due(self, head: bytes, client: str, plan: RequestPlan, generation: int) -> bool:
        """Whether ``head``, planned in ``generation``, was not considered yet; then it is not again. What was planned
        in an older generation may be another version's by now."""
        return generation == self._engine.generation and self._heads.is_due(head, client, plan.model)

    def _keep(
        self, head: bytes, plan: RequestPlan, outputs: Sequence[OutputTensor], wording: Wording
    ) -> None:
        """Keep a template for requests with ``head``, whose outputs have the shapes and sizes of ``outputs``."""
        template = self._direct.template_of(plan, [output.shape for output in outputs])
        if template is None:
            return
        self._heads.keep(head, template.plan)
        sizes = [len(output.data) for output in outputs]
        self._fast_path.add_template(
            head,
            template=template.plan,
            kind=template.kind,
            model=template.model,
            group=template.group,
            rows=template.rows,
            inputs=template.inputs,
            out_offset=template.out_offset,
            span=template.span,
            opening=wording.opening,
            described=wording.described,
            outputs=list(zip(wording.pieces, template.outputs, sizes, strict=True)),
            closing=wording.closing,
            late_text=template.late_text,
            default_timeout_ns=template.default_timeout_ns,
            input_texts=wording.inputs,
            output_texts=wording.outputs,
        )


class GrpcTemplates(TemplateMaker):
    """Templates of inferences over gRPC."""

    def consider(self, intake: Intake, answer: Answer, client: str) -> None:
        """Make a template for requests with the head of ``intake``, which ``client`` brought and whose ``answer`` is
        not yet released, if there is none. An answer that another version gave, because the planned one failed, makes
        none."""
        head, plan = intake.head, intake.plan
        if any(output.classification for output in plan.head.outputs):
            return
        if not head or answer.model is not plan.model:
            return
        if not self._is_due(head, client, plan, intake.generation):
            return
        begun, described, *tensors = response_parts(b"", answer.model, answer.outputs)
        pieces = list(map(bytes, tensors[::2]))  # what stands before each tensor
        end = closing(True) if intake.empty_final_response else b""
        self._keep(head, plan, answer.outputs, Wording(bytes(begun), bytes(described), pieces, end))


class HttpTemplates(TemplateMaker):
    """Templates of inferences over HTTP. See Templates of the HTTP application."""

    def head_of(self, target: str, text: bytes, planned: Planned) -> bytes:
        """See Templates."""
        if planned.request.repeatable:
            wanted = len(text) <= HEAD_BYTES_MAX
        else:
            wanted = all(datatype is None or datatype.code for datatype in _text_inputs(planned))
        return (self._fast_path.http_head(target, text) or b"") if wanted else b""

    def consider(self, head: bytes, planned: Planned, outputs: Sequence[OutputTensor], client: str) -> None:
        """See Templates."""
        asked, plan = planned.request, planned.plan
        binary = [asked.binary_outputs.get(output.name, asked.binary_default) for output in outputs]
        texts = [None if raw else output.datatype for raw, output in zip(binary, outputs, strict=True)]
        if not all(datatype is None or datatype.code for datatype in texts):
            return
        if not self._is_due(head, client, plan, planned.generation):
            return
        described, *following = [
            piece.encode() for piece in frame(outputs, asked.binary_outputs, asked.binary_default)
        ]
        end = following.pop() if following else b""
        between = iter([b"", *following])  # before each output that is JSON, but for what all begins with
        wording = Wording(
            opening=opening(plan.model),
            described=described,
            pieces=[b"" if raw else next(between) for raw in binary],
            closing=end,
            inputs=_codes(_text_inputs(planned)),
            outputs=_codes(texts),
        )
        self._keep(head, plan, outputs, wording)


def _text_inputs(planned: Planned) -> list[Datatype | None]:
    """The datatypes of inputs that came as JSON, in the request's order; None for those that came as binary data."""
    datatypes = {planned_input.source: planned_input.datatype for planned_input in planned.plan.inputs}
    return [
        datatypes[source] if size == JSON_DATA else None for source, size in enumerate(planned.request.sizes)
    ]


def _codes(datatypes: Sequence[Datatype | None]) -> list[str]:
    """Format characters of ``struct``; empty for what is binary."""
    return ["" if datatype is None else datatype.code for datatype in datatypes]
