"""A session that serves before all of its weights are there, and may be exchanged for a better one of its version.

The weights are read and verified beside its first runs, which the kernel lets wait for pages that are still to come. No
answer leaves before everything was read and found to be what it should be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from appliance.domain.errors import ApplianceError, LoadFailed, RunFailed
from appliance.domain.model import WeightsFile
from appliance.runtimes.runtime import Feed, Place, Produced, Region, Session
from appliance.runtimes.weights import read_ahead
from appliance.runtimes.wrapped import WrappedSession


class WeightsArrival:
    """Reads and verifies a file of weights in a thread of its own, which calls ``begin`` first, and ``progress`` with
    the bytes that were read, 0 at first. ``file`` None: there is nothing to read."""

    def __init__(
        self,
        file: WeightsFile | None,
        *,
        begin: Callable[[], None] = lambda: None,
        progress: Callable[[int], None] = lambda done_bytes: None,
    ) -> None:
        self.nbytes = 0 if file is None else file.size
        self.problem: Exception | None = None if file is None else LoadFailed("its weights were not read")
        self._begun_ns = self._ended_ns = time.monotonic_ns()
        self._thread: threading.Thread | None = None
        if file is None:
            return

        def read() -> None:
            begin()
            progress(0)
            try:
                read_ahead(file, verify=True, begin=begin, progress=progress)
                self.problem = None
            except (ApplianceError, OSError) as problem:
                self.problem = problem
            self._ended_ns = time.monotonic_ns()

        self._thread = threading.Thread(target=read, name="read-ahead", daemon=True)
        self._thread.start()

    def finish(self) -> Exception | None:
        """Wait for its end; gives what went wrong. Whatever ended the thread early went wrong."""
        if self._thread is not None:
            self._thread.join()
        return self.problem

    @property
    def took_ns(self) -> int:
        """How long it took."""
        return self._ended_ns - self._begun_ns


class EarlySession(WrappedSession):
    """Implements Session with ``session``, whose weights are on their way. Run by one thread, exchanged by another."""

    def __init__(self, session: Session, arrival: WeightsArrival) -> None:
        super().__init__(session)
        self._arrival: WeightsArrival | None = arrival
        self._exchanging = threading.Lock()
        self._final = False

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """Run at once, and give the answer when the weights are there and verified. Raises RunFailed when they are not
        what they should be, and as Session does."""
        with self._exchanging:
            produced = self._session.run(source, feeds, wanted, place)
        if self._arrival is not None:
            problem = self._arrival.finish()
            if problem is not None:
                raise RunFailed(str(problem)) from problem
            self._arrival = None
        return produced

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """None as long as the session may be exchanged: what was prepared would go on with the one before."""
        return self._session.prepared(source, feeds, wanted, place) if self._final else None

    def exchange(self, session: Session) -> None:
        """Run on ``session`` from the next run on, for good, and close the one before."""
        with self._exchanging:
            before, self._session, self._final = self._session, session, True
        before.close()

    def memory(self) -> int:
        """As of the session."""
        return self._session.memory()

    def close(self) -> None:
        """Give everything back."""
        self._session.close()
