"""Who pays for a worker that died at work: the request that it ran alone, and the client that sent it; a version only
when that cannot be the request's doing. Pure.

A client that may have cost a version a worker is suspect: what it asks runs alone, so that others do not die with it
and it will be known whose doing it was. One that did so again is held: for a time its requests for that version are
refused, first for ``hold_ms`` and each time for twice as long, at most for ``crash_window_s``. However many clients
there are, no version is to blame that has run anything through: one machine may have many addresses, and a new worker,
which is made to run the version before it serves, says by itself when that does not go any more. Only one that nothing
is known of is, where something else can serve in its place and cannot be asked the same. What another version says is
not decided here (``engine/requests/crashes``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

from appliance.core.processes.restart import SECOND_NS, RestartPolicy

ACCUSED_MAX: Final = 4096
"""Clients and versions that are remembered: of more, those that were blamed longest ago are forgotten."""
SUSPECT_NS: Final = 60 * SECOND_NS
"""How long clients are suspect: who does no harm in a minute did none before."""


@dataclass(slots=True)
class _Record:
    deaths: int = 0
    last_ns: int = 0
    until_ns: int = 0
    suspect_until_ns: int = 0


class Blamed(NamedTuple):
    """The client is held for ``hold_ns`` (0: it is not); ``version``: the version is to blame, too."""

    hold_ns: int
    version: bool


class Blame:
    """By version id and client, those blamed last at the end. Owner: ``Crashes``."""

    def __init__(self, config: RestartPolicy) -> None:
        self._config = config
        self.window_ns = config.crash_window_s * SECOND_NS
        self._records: dict[tuple[int, str], _Record] = {}

    def request_died(self, model: int, client: str, now_ns: int, *, untried: bool) -> Blamed:
        """A request of ``client`` ended a worker that ran nothing else. ``untried``: the version has run nothing
        through yet, and what else can serve in its place cannot be asked the same."""
        record = self._accuse(model, client)
        if record.last_ns < now_ns - self.window_ns:
            record.deaths = 0
        record.deaths += 1
        record.last_ns = now_ns
        record.suspect_until_ns = now_ns + SUSPECT_NS
        hold_ns = (self._config.hold_ms * 1_000_000) << min(record.deaths - 2, 20) if record.deaths > 1 else 0
        hold_ns = min(hold_ns, self.window_ns)
        record.until_ns = now_ns + hold_ns
        return Blamed(hold_ns, untried and self._deaths(model, now_ns) >= self._config.quarantine_after)

    def suspect(self, model: int, client: str, now_ns: int) -> None:
        """A request of ``client`` may have been what ended a worker."""
        self._accuse(model, client).suspect_until_ns = now_ns + SUSPECT_NS

    def clear(self, model: int) -> list[str]:
        """It is known whose request it was: the others were suspect for no more than being there. Gives these."""
        cleared = [key for key, record in self._records.items() if key[0] == model and not record.deaths]
        for key in cleared:
            del self._records[key]
        return [client for _, client in cleared]

    def _accuse(self, model: int, client: str) -> _Record:
        record = self._records.pop((model, client), None) or _Record()
        self._records[model, client] = record
        if len(self._records) > ACCUSED_MAX:
            del self._records[next(iter(self._records))]
        return record

    def _deaths(self, model: int, now_ns: int) -> int:
        """How many workers requests have cost a version of late."""
        since_ns = now_ns - self.window_ns
        return sum(
            record.deaths
            for (each, _), record in self._records.items()
            if each == model and record.last_ns >= since_ns
        )

    def held_ns(self, model: int, client: str, now_ns: int) -> int:
        """How long requests of ``client`` for a version are still refused; 0: they are not."""
        record = self._records.get((model, client)) if self._records else None
        return max(record.until_ns - now_ns, 0) if record is not None else 0

    def held_clients(self, now_ns: int) -> Counter[int]:
        """How many clients are held now, by version."""
        return Counter(model for (model, _), record in self._records.items() if now_ns < record.until_ns)

    def is_suspect(self, model: int, client: str, now_ns: int) -> bool:
        """Whether what ``client`` asks of a version is to run alone."""
        record = self._records.get((model, client)) if self._records else None
        return record is not None and now_ns < record.suspect_until_ns

    def forgive(self, model: int) -> None:
        """Forget whose requests a version's workers died with: it was the version."""
        self._records = {key: record for key, record in self._records.items() if key[0] != model}
