"""When to try again: longer after each failure, drawn at random over the whole span (full jitter), and, beyond that, no
more tries than a budget has, so that many boxes whose controller comes back do not come at once. Pure.

The method is that of "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015); the budget is as in gRPC's retry
throttling (proposal A6): a failure costs a token, a success gives a part of one back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BASE_S: Final = 5.0
LONGEST_S: Final = 1800.0
ASKED_S_MOST: Final = 86_400.0
TOKENS: Final = 10.0
SUCCESS_TOKENS: Final = 1.0
"""What a success gives back."""
TIRED_S: Final = 300.0
"""The span at least, once the budget is spent."""


class Backoff:
    """``uniform(a, b)`` draws a number between both. Owner: its caller."""

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self._failures = 0
        self._tokens = TOKENS

    def failed(self, asked_s: float = 0.0) -> float:
        """After how many seconds to try again; ``asked_s``: what the other side asked for at least, of which a day is
        heeded: one wrong answer is no reason to stay away for good."""
        self._failures += 1
        self._tokens = max(0.0, self._tokens - 1)
        span = min(LONGEST_S, BASE_S * 2.0 ** min(self._failures, 20))
        if self._tokens <= 0:
            span = max(span, TIRED_S)
        return min(asked_s, ASKED_S_MOST) + self._uniform(0.0, span)

    def succeeded(self) -> None:
        """It went well."""
        self._failures = 0
        self._tokens = min(TOKENS, self._tokens + SUCCESS_TOKENS)
