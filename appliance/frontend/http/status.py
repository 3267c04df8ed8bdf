"""The HTTP status of every error, in one table, and the answers the protocol wants: JSON, and of errors
``{"error": text}``.

Pure but for building the response. Nothing below the front end knows a status code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from aiohttp import web

from appliance.domain import errors

CLIENT_CLOSED_REQUEST: Final = 499
"""The client is gone, so that only counters see it."""

STATUS: Final[Mapping[type[errors.ApplianceError], int]] = MappingProxyType(
    {
        errors.ApplianceError: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.CallerError: HTTPStatus.BAD_REQUEST,
        errors.InvalidRequest: HTTPStatus.BAD_REQUEST,
        errors.UnknownModel: HTTPStatus.NOT_FOUND,
        errors.Unsupported: HTTPStatus.NOT_IMPLEMENTED,
        errors.Forbidden: HTTPStatus.FORBIDDEN,
        errors.MessageTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        errors.Cancelled: CLIENT_CLOSED_REQUEST,
        errors.DeadlineExpired: HTTPStatus.GATEWAY_TIMEOUT,
        errors.CapacityError: HTTPStatus.TOO_MANY_REQUESTS,
        errors.QueueFull: HTTPStatus.TOO_MANY_REQUESTS,
        errors.AnswersFull: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.DeadlineUnreachable: HTTPStatus.TOO_MANY_REQUESTS,
        errors.QuotaExceeded: HTTPStatus.TOO_MANY_REQUESTS,
        errors.ModelAway: HTTPStatus.TOO_MANY_REQUESTS,
        errors.NotReady: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.Stopping: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.OperatorError: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.ConfigInvalid: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.AddressUnavailable: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.StoreUnavailable: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.StoreFull: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.StoreBusy: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.StoreRefused: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.CatalogLost: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.CatalogInvalid: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.CatalogNewer: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.ArtefactError: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.ModelInvalid: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.PackageInvalid: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.BlobMismatch: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.LoadFailed: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.WeightsDiffer: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.FormHasNoRoom: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.AssessmentFailed: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.WorkerError: HTTPStatus.INTERNAL_SERVER_ERROR,
        errors.WorkerDied: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.RunFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    }
)

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class HttpRefusal(errors.CallerError):
    """What HTTP itself refuses before any model is asked: a path, a method, an encoding, a body that never
    ends."""

    def __init__(self, status: HTTPStatus, text: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


def status_of(error: errors.ApplianceError) -> int:
    """The status of ``error``: its own, or that of the nearest class in the table."""
    if isinstance(error, HttpRefusal):
        return error.status
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def error_headers(error: errors.ApplianceError) -> dict[str, str]:
    """Headers that tell the client what to do: when to come back, and that the rest of a body is not
    wanted."""
    if isinstance(error, HttpRefusal):
        return dict(error.headers)
    if isinstance(error, errors.MessageTooLarge):
        return {"Connection": "close"}
    if isinstance(error, errors.CapacityError) and error.retry_after_ns >= 0:
        milliseconds = -(-error.retry_after_ns // 1_000_000)
        # Retry-After has whole seconds only; the second header carries what the scheduler really predicts
        return {
            "Retry-After": str(max(1, -(-milliseconds // 1_000))),
            "Retry-After-Ms": str(max(1, milliseconds)),
        }
    return {}


def plain_answer(status: str, text: str) -> bytes:
    """A whole answer with an error, to be written as it is, after which the connection ends."""
    body = json.dumps({"error": text}).encode()
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def error_response(error: errors.ApplianceError, text: str = "") -> web.Response:
    """The answer for ``error``; ``text`` replaces its own words (which may want a request id in front)."""
    return web.Response(
        status=status_of(error),
        headers=error_headers(error),
        body=json.dumps({"error": text or str(error)}).encode(),
        content_type="application/json",
    )


def json_response(value: object, headers: Mapping[str, str] = NO_HEADERS) -> web.Response:
    """200 with ``value`` as JSON."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return web.Response(body=body, content_type="application/json", headers=headers)
