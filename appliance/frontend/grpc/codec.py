"""From the bytes of an inference request to a checked plan with its tensors, and back to the bytes of the answer.

Heads come again and again: decoded and planned once, they are kept with what encodes their answers, for as long as
the engine's generation stands. Typed contents are part of a head and make it unlike any other, so such heads are not
kept. One owner: the front end, on the event loop's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import RequestPlan
from appliance.domain.validation import check_raw
from appliance.engine.port import Buffer, EnginePort
from appliance.frontend.grpc.envelope import Envelope, EnvelopeLimits
from appliance.frontend.grpc.request import DecodedHead, decode_head, typed_tensors
from appliance.frontend.grpc.response import ResponseForm
from appliance.frontend.grpc.template import EnvelopeReader

_KEPT_HEADS_MAX = 4096
_KEPT_HEAD_BYTES_MAX = 4096


class PlannedHead(NamedTuple):
    """A head that fits a model. ``head`` are its bytes when it is kept, else empty, and ``generation`` is that of the
    engine for which it was planned. ``sizes`` are the exact bytes of each input in the request's order (-1:
    BYTES, whose elements are counted).
    """

    plan: RequestPlan
    form: ResponseForm
    sizes: list[int]
    empty_final_response: bool
    head: bytes = b""
    generation: int = -1


class Intake(NamedTuple):
    """A request ready for the engine; ``tensors`` are raw bytes in the request's order."""

    planned: PlannedHead
    tensors: tuple[Buffer, ...]


class InferCodec:
    """Decodes requests against what the engine serves now."""

    def __init__(self, engine: EnginePort, limits: EnvelopeLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._reader = EnvelopeReader(limits)
        self._kept: OrderedDict[bytes, PlannedHead] = OrderedDict()
        self._generation = -1

    def open(self, message: Buffer) -> Envelope:
        """Take a message apart; raises InvalidRequest."""
        return self._reader.read(message)

    def intake(self, envelope: Envelope) -> Intake:
        """Check an opened message. Raises InvalidRequest, UnknownModel, NotReady or Unsupported, in the words that
        clients match on."""
        raw = envelope.raw
        planned = self._find(envelope.head)
        if planned is not None and raw:
            if [len(tensor) for tensor in raw] != planned.sizes:
                _check_tensors(planned.plan, raw)
            return Intake(planned, raw)
        decoded = decode_head(envelope.head, len(raw), self._limits)
        planned = self._plan(decoded)
        tensors: tuple[Buffer, ...] = raw if decoded.typed is None else typed_tensors(decoded.typed)
        _check_tensors(planned.plan, tensors)
        if raw and len(envelope.head) <= _KEPT_HEAD_BYTES_MAX:
            planned = planned._replace(head=bytes(envelope.head), generation=self._generation)
            self._keep(planned)
        return Intake(planned, tensors)

    def _find(self, head: bytes) -> PlannedHead | None:
        generation = self._engine.generation
        if generation != self._generation:
            self._kept.clear()
            self._generation = generation
            return None
        return self._kept.get(head)

    def _plan(self, decoded: DecodedHead) -> PlannedHead:
        head = decoded.head
        plan = self._engine.plan(head)
        sizes = [0] * len(head.inputs)
        for planned in plan.inputs:
            if planned.source >= 0:
                sizes[planned.source] = planned.nbytes
        return PlannedHead(plan, ResponseForm(plan), sizes, decoded.empty_final_response)

    def _keep(self, planned: PlannedHead) -> None:
        # Oldest first: on a hit nothing is moved, because a kept head that falls out costs one decoding.
        if len(self._kept) >= _KEPT_HEADS_MAX:
            self._kept.popitem(last=False)
        self._kept[planned.head] = planned


def _check_tensors(plan: RequestPlan, tensors: tuple[Buffer, ...]) -> None:
    """Hold the tensors to the plan, in number and in bytes."""
    announced = plan.head.inputs
    if len(tensors) < len(announced):
        raise InvalidRequest(
            f"unable to find data for input tensor '{announced[len(tensors)].name}' for model '{plan.model.name}' "
            f"in request: {len(announced)} inputs, but {len(tensors)} raw_input_contents"
        )
    if len(tensors) > len(announced):
        raise InvalidRequest(
            f"unexpected number of raw_input_contents for model '{plan.model.name}': "
            f"{len(announced)} inputs, but {len(tensors)} raw_input_contents"
        )
    for planned in plan.inputs:
        if planned.source >= 0:
            check_raw(plan, planned, tensors[planned.source])
