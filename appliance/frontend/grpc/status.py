"""The gRPC status of every error, in one table, and the words a client gets. Pure; no gRPC library here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.domain import errors

PUSHBACK: Final = "grpc-retry-pushback-ms"
BROKEN: Final = "Internal error; the log of the server has its cause"
_LOG = logging.getLogger(__name__)
UNKNOWN_ID: Final = "<id_unknown>"

# Clients refuse trailers above 8 KiB, where each byte of a text can take three, and the native front end sends half of
# that.
_TEXT_BYTES_MAX: Final = 2000
_FOREIGN_TEXT_BYTES_MAX: Final = 1000
_ID_CHARACTERS_MAX: Final = 64


class Code(IntEnum):
    """Status codes as gRPC numbers them."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


CODES: Final[Mapping[type[errors.ApplianceError], Code]] = MappingProxyType(
    {
        errors.ApplianceError: Code.INTERNAL,
        errors.CallerError: Code.INVALID_ARGUMENT,
        errors.InvalidRequest: Code.INVALID_ARGUMENT,
        errors.UnknownModel: Code.NOT_FOUND,
        errors.Unsupported: Code.UNIMPLEMENTED,
        errors.Forbidden: Code.PERMISSION_DENIED,
        errors.MessageTooLarge: Code.RESOURCE_EXHAUSTED,
        errors.Cancelled: Code.CANCELLED,
        errors.DeadlineExpired: Code.DEADLINE_EXCEEDED,
        errors.CapacityError: Code.RESOURCE_EXHAUSTED,
        errors.QueueFull: Code.RESOURCE_EXHAUSTED,
        errors.AnswersFull: Code.RESOURCE_EXHAUSTED,
        errors.DeadlineUnreachable: Code.RESOURCE_EXHAUSTED,
        errors.QuotaExceeded: Code.RESOURCE_EXHAUSTED,
        errors.ModelAway: Code.RESOURCE_EXHAUSTED,
        errors.NotReady: Code.UNAVAILABLE,
        errors.Stopping: Code.UNAVAILABLE,
        errors.OperatorError: Code.FAILED_PRECONDITION,
        errors.ConfigInvalid: Code.FAILED_PRECONDITION,
        errors.AddressUnavailable: Code.FAILED_PRECONDITION,
        errors.StoreUnavailable: Code.FAILED_PRECONDITION,
        errors.StoreFull: Code.FAILED_PRECONDITION,
        errors.StoreBusy: Code.FAILED_PRECONDITION,
        errors.StoreRefused: Code.FAILED_PRECONDITION,
        errors.CatalogLost: Code.FAILED_PRECONDITION,
        errors.CatalogInvalid: Code.FAILED_PRECONDITION,
        errors.CatalogNewer: Code.FAILED_PRECONDITION,
        errors.ArtefactError: Code.UNAVAILABLE,
        errors.ModelInvalid: Code.UNAVAILABLE,
        errors.PackageInvalid: Code.UNAVAILABLE,
        errors.BlobMismatch: Code.UNAVAILABLE,
        errors.LoadFailed: Code.UNAVAILABLE,
        errors.WeightsDiffer: Code.UNAVAILABLE,
        errors.FormHasNoRoom: Code.UNAVAILABLE,
        errors.AssessmentFailed: Code.UNAVAILABLE,
        errors.WorkerError: Code.INTERNAL,
        errors.WorkerDied: Code.UNAVAILABLE,
        errors.RunFailed: Code.INTERNAL,
    }
)


class Status(NamedTuple):
    """What an RPC ends with. ``metadata`` are trailers."""

    code: Code
    text: str
    metadata: tuple[tuple[str, str], ...] = ()


def status_of(error: errors.ApplianceError) -> Status:
    """The status of ``error``: that of the nearest class in the table."""
    text = _clipped(str(error))
    code = next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
    if isinstance(error, errors.CapacityError):
        if error.retry_after_ns < 0:
            return Status(code, text, ((PUSHBACK, "-1"),))  # gRFC A6: do not retry
        # Zero would invite the client back at once, so an unknown wait is told as the shortest there is.
        milliseconds = max(1, -(-error.retry_after_ns // 1_000_000))
        return Status(code, text, ((PUSHBACK, str(milliseconds)),))
    return Status(code, text)


def inference_status(error: errors.ApplianceError, request_id: str) -> Status:
    """The status of an inference's error, with the request named in front."""
    status = status_of(error)
    return status._replace(
        text=f"[request id: {request_id[:_ID_CHARACTERS_MAX] or UNKNOWN_ID}] {status.text}"
    )


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
        _LOG.error("%s broke", rpc, exc_info=error)
        return Status(Code.INTERNAL, BROKEN)
    finally:
        # A task keeps its exception, whose frames keep the task and the message: the front end's memory would wait for
        # the cycle collector.
        error.__traceback__ = None
