"""A source of models, as a port: read whole, or looked at again for what has changed and settled."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from appliance.repository.directory import RepositoryScan, ServableVersion
from appliance.store.catalog import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look found. ``scan`` is everything there is, None when nothing changed since the last time; ``unsettled``
    says that something is changing and is worth another look."""

    scan: RepositoryScan | None = None
    unsettled: bool = False


class Source(Protocol):
    """Where models come from. Calls read files and may take long; one at a time, from whatever thread."""

    def read(self) -> RepositoryScan:
        """Everything, as it is now. Raises OperatorError when it cannot be read at all."""

    def look(self) -> Look:
        """Whatever changed and was the same at the look before: what only half arrived is left for later. Raises
        OperatorError when it cannot be read at all."""

    def scan(self) -> RepositoryScan:
        """Everything as it was read last."""

    def model(self, name: str, config: bytes | None = None) -> RepositoryScan | None:
        """The model ``name`` as it is now, with ``config`` in the place of its config.pbtxt; None: there is none."""

    def standing_in(self, incumbents: Mapping[str, str]) -> Mapping[str, RepositoryScan]:
        """By name of a model whose wanted version is not the incumbent: the incumbent, where it is still there.
        ``incumbents`` are the identities of what was proven while it served, by name."""

    def wanted(self) -> Mapping[str, int]:
        """By name of a model of which other versions may be there: which one is wanted, by the last scan."""

    def way_back(self, name: str, incumbent: str) -> Sequence[ServableVersion]:
        """The versions that were wanted before the present one and can be read, the latest first, and after them the
        ``incumbent``, which is an identity."""

    def trials(self) -> Mapping[tuple[str, int], Trial]:
        """Versions of the last scan that shall first prove themselves, by name and version."""

    def directories(self) -> Collection[str]:
        """Directories in which a change can be seen, by the last look."""

    def close(self) -> None:
        """Nothing of it is used any more; no call follows."""
