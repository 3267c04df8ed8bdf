"""The models that stay where they are in memory, as residency asks for them: by asking in turn."""

from __future__ import annotations

from collections.abc import Callable


class InUse:
    """Those with requests in flight, or about to be replaced; ``stays`` say it of a model id."""

    def __init__(self, *stays: Callable[[int], bool]) -> None:
        self._stays = stays

    def __contains__(self, model: object) -> bool:
        return isinstance(model, int) and any(stays(model) for stays in self._stays)
