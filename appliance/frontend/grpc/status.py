"""What an RPC ends with: a status, the words a client gets, and trailers. Pure; no gRPC library here."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from appliance.domain import errors
from appliance.frontend.statuses import Code, inference_text, retry_after_ms, statuses_of

PUSHBACK: Final = "grpc-retry-pushback-ms"
BROKEN: Final = "Internal error; the log of the server has its cause"
_LOG = logging.getLogger(__name__)

# Clients refuse trailers above 8 KiB, where each byte of a text can take three, and the native front end sends half of
# that.
_TEXT_BYTES_MAX: Final = 2000
_FOREIGN_TEXT_BYTES_MAX: Final = 1000
_ID_CHARACTERS_MAX: Final = 64


class Status(NamedTuple):
    """What an RPC ends with. ``metadata`` are trailers."""

    code: Code
    text: str
    metadata: tuple[tuple[str, str], ...] = ()


def status_of(error: errors.ApplianceError) -> Status:
    """The status of ``error``."""
    wait_ms = retry_after_ms(error)  # gRFC A6: below zero, do not retry
    metadata = () if wait_ms is None else ((PUSHBACK, str(wait_ms)),)
    return Status(statuses_of(error).grpc, _clipped(str(error)), metadata)


def inference_status(error: errors.ApplianceError, request_id: str) -> Status:
    """The status of an inference's error, in whose text the request is named."""
    status = status_of(error)
    return status._replace(text=inference_text(error, request_id[:_ID_CHARACTERS_MAX], status.text))


def _clipped(text: str) -> str:
    encoded = text.encode(errors="replace")  # a file's name may hold what no encoding has
    most = _TEXT_BYTES_MAX if text.isascii() else _FOREIGN_TEXT_BYTES_MAX
    if len(encoded) <= most:
        return encoded.decode()
    kept = most // 2
    return encoded[:kept].decode(errors="ignore") + " [...] " + encoded[-kept:].decode(errors="ignore")


class Refused(Exception):
    """An inference that ends without tensors; ``status`` is what the client gets."""

    def __init__(self, status: Status, request_id: str = "") -> None:
        super().__init__(status.text)
        self.status = status
        self.request_id = request_id


def status_for(error: Exception, rpc: str) -> Status:
    """The status of ``error``. One that is not ours is a defect: it goes to the log with its traceback, and the client
    of ``rpc`` is told no more than that."""
    try:
        if isinstance(error, Refused):
            return error.status
        if isinstance(error, errors.ApplianceError):
            return status_of(error)
        _LOG.error("%s met a defect", rpc, exc_info=error)
        return Status(Code.INTERNAL, BROKEN)
    finally:
        # A task keeps its exception, whose frames keep the task and the message: the front end's memory would wait for
        # the cycle collector.
        error.__traceback__ = None
