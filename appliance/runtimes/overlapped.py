"""A run that a device does by itself: begun, looked after, waited for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress

from appliance.runtimes.device_copies import DeviceCopies


class BegunRun:
    """An OverlappedRun on the stream of ``copies``. ``begin`` begins all of it, ``again`` waits for it as well;
    ``failed`` is told of what the device ended with. Kept for as long as it is under way."""

    def __init__(
        self,
        copies: DeviceCopies,
        again: Callable[[], None],
        begin: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Raise CudaFailed."""
        self._again = again
        self._begin = begin
        self._failed = failed
        self._copies = copies
        self._event = copies.cuda.event()
        weakref.finalize(self, copies.cuda.end_event, self._event).atexit = False

    def __call__(self) -> None:
        """Begin it and wait for it."""
        self._again()

    def begin(self) -> None:
        """Begin it. Where that fails, nothing of it is under way any more: others get the memory that it would write
        to."""
        try:
            self._begin()
            self._copies.cuda.record(self._event, self._copies.stream)
        except Exception as problem:
            with suppress(Exception):
                self._copies.cuda.finish(self._copies.stream)
            self._failed(problem)
            raise

    def ended(self) -> bool:
        """Whether it has ended."""
        return self._copies.cuda.happened(self._event)

    def finish(self) -> None:
        """Wait for it."""
        try:
            self._copies.cuda.await_event(self._event)
        except Exception as problem:
            self._failed(problem)
            raise
