"""What an RPC ends with when something was raised on its way: one rule for every front end."""

from __future__ import annotations

import logging
from typing import Final

from appliance.domain.errors import ApplianceError
from appliance.frontend.grpc.inference import Refused
from appliance.frontend.grpc.status import Code, Status, status_of

BROKEN: Final = "Internal error; the log of the server has its cause"
_LOG = logging.getLogger(__name__)


def status_for(error: Exception, rpc: str) -> Status:
    """The status of ``error``. One that is not ours is a defect: it goes to the log with its traceback, and the client
    of ``rpc`` is told no more than that."""
    try:
        if isinstance(error, Refused):
            return error.status
        if isinstance(error, ApplianceError):
            return status_of(error)
        _LOG.error("%s broke", rpc, exc_info=error)
        return Status(Code.INTERNAL, BROKEN)
    finally:
        # A task keeps its exception, whose frames keep the task and the message: the front end's memory would wait for
        # the cycle collector.
        error.__traceback__ = None
