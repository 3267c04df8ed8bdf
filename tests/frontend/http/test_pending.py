"""What a request that ended with an error leaves behind in the HTTP edge: nothing."""

from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

from appliance.domain.errors import ApplianceError, RunFailed
from appliance.engine.port import Submission
from appliance.frontend.http.inference import Exchange, Pending


class EngineDouble:
    """Takes one request."""

    def __init__(self) -> None:
        self.on_done: Any = None

    def submit(self, submission: Submission, tensors: object) -> int:
        self.on_done = submission.on_done
        return 1


async def _ended() -> weakref.ref[ApplianceError]:
    """An error that was raised as the outcome of a request, and whoever caught it is done with it."""
    engine = EngineDouble()
    connection = SimpleNamespace(take_attempts=lambda: 0, sender="", client="")
    exchange = Exchange(0, None, "", cast(Any, connection))
    pending = Pending(cast(Any, engine), cast(Any, Planned), (), exchange)
    error = RunFailed("made up")
    kept = weakref.ref[ApplianceError](error)
    engine.on_done(error)
    del error
    with contextlib.suppress(RunFailed):
        await pending.answer()
        raise AssertionError("it did not raise")
    return kept


class Planned:
    """As far as it is looked at."""

    plan = None


async def test_an_error_that_was_answered_is_let_go_at_once_and_not_by_the_cycle_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        kept = await _ended()
        assert kept() is None
    finally:
        gc.enable()
