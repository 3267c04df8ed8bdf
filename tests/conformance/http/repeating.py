"""The public client, sending each inference several times and insisting on the same answer, or the same error, as at
first: only the first of them asks the engine behind the native front end; the others are the front end's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from tritonclient.utils import InferenceServerException

TIMES: Final = 4

Infer = Callable[..., Any]


def repeating(infer: Infer) -> Infer:
    """``infer`` of the blocking client."""

    @wraps(infer)
    def several(*arguments: Any, **keywords: Any) -> Any:
        first, said = _outcome(infer, arguments, keywords)
        for _ in range(TIMES - 1):
            _, again = _outcome(infer, arguments, keywords)
            assert again == said, f"at first {said}, then {again}"
        if isinstance(first, InferenceServerException):
            raise first
        return first

    return several


def async_repeating(infer: Infer) -> Infer:
    """``infer`` of the client under asyncio."""

    @wraps(infer)
    async def several(*arguments: Any, **keywords: Any) -> Any:
        first = await infer(*arguments, **keywords)
        for _ in range(TIMES - 1):
            again = _said(await infer(*arguments, **keywords))
            assert again == _said(first), f"at first {_said(first)}, then {again}"
        return first

    return several


def _outcome(infer: Infer, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, object]:
    try:
        answer = infer(*arguments, **keywords)
    except InferenceServerException as error:
        return error, (error.status(), error.message())
    return answer, _said(answer)


def _said(answer: Any) -> object:
    """All that an answer says."""
    head = answer.get_response()
    outputs = {output["name"]: repr(answer.as_numpy(output["name"]).tolist()) for output in head["outputs"]}
    return head, outputs
