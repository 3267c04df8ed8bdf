"""The status of every error over gRPC and over HTTP, in one table, and when to come back. Pure.

An error has the statuses of the nearest class in the table. Nothing below the front ends knows a status.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.domain import errors

UNKNOWN_ID: Final = "<id_unknown>"
CLIENT_CLOSED_REQUEST: Final = 499
"""The client is gone, so that only counters see it."""


class Code(IntEnum):
    """Status codes as gRPC numbers them."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Statuses(NamedTuple):
    """Those of one error."""

    grpc: Code
    http: int


STATUSES: Final[Mapping[type[errors.ApplianceError], Statuses]] = MappingProxyType(
    {
        errors.ApplianceError: Statuses(Code.INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR),
        errors.CallerError: Statuses(Code.INVALID_ARGUMENT, HTTPStatus.BAD_REQUEST),
        errors.UnknownModel: Statuses(Code.NOT_FOUND, HTTPStatus.NOT_FOUND),
        errors.UnknownRegion: Statuses(Code.NOT_FOUND, HTTPStatus.NOT_FOUND),
        errors.RegionExists: Statuses(Code.ALREADY_EXISTS, HTTPStatus.CONFLICT),
        errors.Unsupported: Statuses(Code.UNIMPLEMENTED, HTTPStatus.NOT_IMPLEMENTED),
        errors.Forbidden: Statuses(Code.PERMISSION_DENIED, HTTPStatus.FORBIDDEN),
        errors.MessageTooLarge: Statuses(Code.RESOURCE_EXHAUSTED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
        errors.Cancelled: Statuses(Code.CANCELLED, CLIENT_CLOSED_REQUEST),
        errors.DeadlineExpired: Statuses(Code.DEADLINE_EXCEEDED, HTTPStatus.GATEWAY_TIMEOUT),
        errors.CapacityError: Statuses(Code.RESOURCE_EXHAUSTED, HTTPStatus.TOO_MANY_REQUESTS),
        errors.AnswersFull: Statuses(Code.RESOURCE_EXHAUSTED, HTTPStatus.SERVICE_UNAVAILABLE),
        errors.NotReady: Statuses(Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
        errors.OperatorError: Statuses(Code.FAILED_PRECONDITION, HTTPStatus.INTERNAL_SERVER_ERROR),
        errors.ArtefactError: Statuses(Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
        errors.WorkerDied: Statuses(Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    }
)


def statuses_of(error: errors.ApplianceError) -> Statuses:
    """Those of the nearest class in the table."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def inference_text(error: errors.ApplianceError, request_id: str, text: str) -> str:
    """What a client is told of its request, which failed with ``error`` in the words ``text``: the request is named in
    front, but where its model was not found, as Triton's clients compare the beginning of that."""
    if isinstance(error, errors.UnknownModel | errors.NotServed):
        return text
    return f"[request id: {request_id or UNKNOWN_ID}] {text}"


def retry_after_ms(error: errors.ApplianceError) -> int | None:
    """Milliseconds after which to send the request again (-1: not as things are), None where that is not known. Zero
    would invite the client back at once, so an unknown wait is told as the shortest there is."""
    if isinstance(error, errors.WorkerDied):
        return -1
    if not isinstance(error, errors.CapacityError):
        return None
    return -1 if error.retry_after_ns < 0 else max(1, -(-error.retry_after_ns // 1_000_000))
