"""Callbacks for changes of what names mean, and whether there were any since the last time. Owner: the engine."""

from __future__ import annotations

from collections.abc import Callable


class Watchers:
    """Callbacks for the front ends and the daemon, called from turns."""

    def __init__(self) -> None:
        self._watchers: list[Callable[[], None]] = []
        self.changed = False

    def add(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` from now on; gives what ends that."""
        self._watchers.append(changed)

        def end() -> None:
            if changed in self._watchers:
                self._watchers.remove(changed)

        return end

    def tell(self) -> None:
        """Call all of them."""
        for changed in tuple(self._watchers):
            changed()
