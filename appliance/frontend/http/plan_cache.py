"""Heads that were read and planned before, so that an equal one is neither parsed nor checked again.

Bounded in entries and in the size of a head; a plan is used only while nothing changed that could change it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from appliance.domain.inference import RequestPlan
from appliance.frontend.http.infer_request import InferHead

MAX_HEAD_BYTES: Final = 4_096
MAX_ENTRIES: Final = 1_024

Key = tuple[str, str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A head, its plan, and the engine's generation when that was made."""

    request: InferHead
    plan: RequestPlan
    generation: int


class PlanCache:
    """The most recently used plans of one engine generation. Owner: the inference handler."""

    def __init__(self) -> None:
        self._generation = -1
        self._entries: OrderedDict[Key, Planned] = OrderedDict()

    def get(self, key: Key, generation: int) -> Planned | None:
        """The plan kept for ``key``, if nothing changed since."""
        if generation != self._generation:
            self._entries.clear()
            self._generation = generation
            return None
        planned = self._entries.get(key)
        if planned is not None:
            self._entries.move_to_end(key)
        return planned

    def put(self, key: Key, planned: Planned) -> None:
        """Keep ``planned`` if it is worth it."""
        if planned.generation != self._generation or len(key[2]) > MAX_HEAD_BYTES:
            return
        if not planned.request.repeatable:
            return
        self._entries[key] = planned
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)
