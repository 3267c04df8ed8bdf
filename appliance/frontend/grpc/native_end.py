"""How a call of the native door ends with a status, whatever the status holds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from appliance.frontend.grpc.failure import BROKEN
from appliance.frontend.grpc.status import Code, Status

if TYPE_CHECKING:
    from edge_appliance_door import Door

_BROKEN_STATUS: Final = Status(Code.INTERNAL, BROKEN)
_LOG = logging.getLogger(__name__)


def end_call(door: Door, call: int, status: Status) -> None:
    """End ``call`` with ``status``, or with INTERNAL when the door cannot send that. Never raises: outcomes are told by
    the engine, which must not break over a text."""
    for each in (status, _BROKEN_STATUS):
        try:
            door.finish(call, each.code, each.text, each.metadata)
            return
        except Exception:  # noqa: BLE001  whatever it is, the client waits for an end
            _LOG.error("the door cannot send %r", each, exc_info=True)
