"""Requests for versions that are not in memory, as a port: what keeps them waits for the version, or says why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from appliance.domain.errors import ApplianceError
from appliance.engine.port import Buffer
from appliance.engine.requests.request import Request
from appliance.telemetry.meter import Result

Refusal = tuple[ApplianceError, Result]
"""Why a request is not taken, and how that is counted."""


class ColdStarts(Protocol):
    """What keeps requests until their versions are in memory."""

    def ask(self, request: Request, tensors: Sequence[Buffer] | None, now_ns: int) -> Refusal | None:
        """Have a request wait with its tensors, or say why not. ``tensors`` None: it has waited before, for another
        version, and they are where they were."""

    def cancel(self, request: Request, now_ns: int) -> bool:
        """End a request that was cancelled; False when it is not kept here."""
