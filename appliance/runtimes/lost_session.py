"""A session of a device that is gone and could not be made anew in its place: when that is tried again, as each try is
a whole load, and when this process is given up for it.

A device that is full costs nobody else anything: it is tried for as long as it takes. What fails for another reason,
try after try, may be this process's, and another one is started in its place. The daemon has the version loaded there
without captures: those that it shares a process with are started anew for it once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import Final

from appliance.domain.errors import DeviceFull, DeviceHasNoRoom, RunFailed
from appliance.process.life import give_up
from appliance.runtimes.device_limit import DeviceLimit
from appliance.runtimes.onnx_sessions import run_error

SECOND_NS: Final = 1_000_000_000
PAUSE_NS: Final = SECOND_NS
"""After the first try; it doubles with each more."""
PAUSE_NS_MAX: Final = 30 * SECOND_NS
TRIES_MAX: Final = 6
"""That fail for another reason than a full device: by their pauses half a minute."""


class LostSession:
    """Of the version called ``key``, whose session is held to ``limit``. Owner: what had the session."""

    def __init__(self, key: str, limit: DeviceLimit) -> None:
        self._key = key
        self._limit = limit
        self._told = ""
        self._kind = RunFailed
        self._again_ns = 0
        self._pause_ns = PAUSE_NS
        self._failed = 0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """For what makes the session anew. Raises RunFailed with why there is none: at once, while that is not tried
        again yet. Where it was tried too often the process gives up: no request is to blame for that, and all are run
        again in the next one, in which this version captures nothing."""
        if (left_ns := self._again_ns - monotonic_ns()) > 0:
            raise self._kind(f"{self._told}; the next try is in {-(-left_ns // SECOND_NS)} s")
        try:
            yield
        except Exception as problem:
            error = run_error(problem, self._limit)
            full = isinstance(problem, DeviceHasNoRoom) or isinstance(error, DeviceFull)
            words = str(error).removeprefix(f"{self._key}: ")
            self._told = _problem(words)
            self._kind = DeviceFull if full else RunFailed
            self._again_ns = monotonic_ns() + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, PAUSE_NS_MAX)
            self._failed += not full
            if self._failed >= TRIES_MAX:
                print(f"{self._key} is given up in this process: {words}", file=sys.stderr, flush=True)
                give_up()
            raise self._kind(self._told) from problem


def _problem(words: str) -> str:
    """What its requests are told for as long as there is no session."""
    return f"its session went with a capture and cannot be made anew: {words}"
