"""An engine with the version's CUDA session beside it, for a model that does not say how large its free dimensions can
be: the engine runs what it was built for, and the session everything else. Which of them ran makes no difference to
whoever asked, but in time."""

from __future__ import annotations

from collections.abc import Callable

from appliance.runtimes.runtime import Feed, Place, Produced, Region, Session, note_of
from appliance.runtimes.tensorrt.session import EngineSession
from appliance.runtimes.wrapped import WrappedSession


class EngineWithStandby(WrappedSession):
    """``engine`` before ``standby``; owns both."""

    _session: EngineSession

    def __init__(self, engine: EngineSession, standby: Session) -> None:
        super().__init__(engine)
        self._standby = standby

    @property
    def note(self) -> str:
        """What goes which way, and what is to be known of the standby."""
        way = f"its engine takes {self._session.limits}; all else runs in its CUDA session, kept beside it"
        return "; ".join(filter(None, (way, note_of(self._standby))))

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """Run whichever takes these shapes."""
        session: Session = self._session if self._session.holds(feeds) else self._standby
        return session.run(source, feeds, wanted, place)

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """Of the engine, which has no plan for what it does not take: runs of the standby overlap with none."""
        return self._session.prepared(source, feeds, wanted, place)

    def memory(self) -> int:
        """What both hold."""
        return self._session.memory() + self._standby.memory()

    def close(self) -> None:
        """Close both."""
        try:
            self._session.close()
        finally:
            self._standby.close()
