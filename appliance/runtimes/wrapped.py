"""A session that stands before another: what both are alike in."""

from __future__ import annotations

from collections.abc import Callable

from appliance.runtimes.runtime import Port, Region, Session, Weights, batch_sizes, note_of, region_maker


class WrappedSession:
    """Tells of the session behind it what Session asks; how it runs is its own."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def inputs(self) -> tuple[Port, ...]:
        """As of the session."""
        return self._session.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """As of the session."""
        return self._session.outputs

    @property
    def measurable(self) -> bool:
        """As of the session."""
        return self._session.measurable

    @property
    def weights(self) -> Weights | None:
        """As of the session."""
        return self._session.weights

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """As of the session."""
        return batch_sizes(self._session)

    @property
    def pin(self) -> Callable[[int], Region] | None:
        """As of the session."""
        return region_maker(self._session)

    @property
    def note(self) -> str:
        """As of the session."""
        return note_of(self._session)
