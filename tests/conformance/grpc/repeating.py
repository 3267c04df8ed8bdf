"""Channels that send each inference several times and insist on the same answer, or the same error, as at first: only
the first of them asks the engine behind the native front end; the others are the front end's own.

Put between any client and its connection, so that public clients stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

TIMES: Final = 3
LARGE_BYTES: Final = 4 << 20
"""Larger requests are sent once: no slot holds them anyway."""

METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"


class Repeating(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Of blocking calls. A call that was only begun is left alone: its test minds what else runs beside it."""

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Send, and send again."""
        first = continuation(details, request)
        if not _is_small_inference(details.method, request) or not first.done():
            return first
        said = _outcome(first)
        for _ in range(TIMES - 1):
            again = _outcome(continuation(details, request))
            assert again == said, f"at first {said}, then {again}"
        return first


class AsyncRepeating(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """The same of calls under asyncio."""

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], details: Any, request: Any
    ) -> Any:
        """Send, and send again."""
        first = await continuation(details, request)
        if _is_small_inference(details.method.decode(), request):
            said = await _awaited(first)
            for _ in range(TIMES - 1):
                again = await _awaited(await continuation(details, request))
                assert again == said, f"at first {said}, then {again}"
        return first


def repeating(make: Callable[..., Any]) -> Callable[..., Any]:
    """``make`` for channels that repeat."""

    def made(*arguments: Any, **keywords: Any) -> Any:
        return grpc.intercept_channel(make(*arguments, **keywords), Repeating())

    return made


def async_repeating(make: Callable[..., Any]) -> Callable[..., Any]:
    """The same for channels under asyncio."""

    def made(*arguments: Any, **keywords: Any) -> Any:
        return make(*arguments, **{**keywords, "interceptors": [AsyncRepeating()]})

    return made


def _is_small_inference(method: str, request: Any) -> bool:
    size = len(request) if isinstance(request, bytes) else request.ByteSize()
    return method == METHOD and size < LARGE_BYTES


def _outcome(call: Any) -> tuple[object, ...]:
    if call.exception() is None:
        return ("OK", call.result())
    return (call.code().name, call.details())


async def _awaited(call: Any) -> tuple[object, ...]:
    try:
        return ("OK", await call)
    except grpc.aio.AioRpcError as error:
        return (error.code().name, error.details())
