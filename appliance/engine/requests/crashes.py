"""What a worker died of, found out request by request: blame belongs to a request first, and to a version only where
another one answers what it died with, or where it has never run anything through (``core/processes/blame``).

A worker that ran one request alone died of that. Of several, each is tried again alone; where another version could
answer, they go there at once, and how they end there is the verdict. Owner: the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from appliance.core.processes.blame import SUSPECT_NS, Blame
from appliance.domain.errors import ApplianceError, InvalidRequest, QuotaExceeded, RunFailed, WorkerDied
from appliance.domain.exit_cause import ExitCause
from appliance.domain.inference import Answer, Outcome
from appliance.engine.environment import Shell
from appliance.engine.fastpath.leases import Leased, Leases
from appliance.engine.requests.request import Death, Request
from appliance.engine.requests.table import RequestTable
from appliance.engine.versions.served import Served
from appliance.workers.port import WorkerExited

BLAMELESS: Final = frozenset({ExitCause.STOPPED, ExitCause.ZYGOTE})
"""Ends of workers that have nothing to do with what they ran."""


class Versions(Protocol):
    """What knows of versions, and does with one what it is to blame for."""

    def served(self, model: int) -> Served | None:
        """The version with model id ``model``, if it is here."""

    def replaceable(self, served: Served) -> bool:
        """Whether something else could serve in its place, and cannot be asked for the same."""

    def blame(self, served: Served, detail: str, *, repeated: bool) -> None:
        """A worker ended because of a version; ``repeated``: once too often."""


class Crashes:
    """Whose requests workers die of is held, or suspect, by ``blame``; for as long the front end leaves what it asks of
    the version to the engine."""

    def __init__(
        self, blame: Blame, versions: Versions, table: RequestTable, leases: Leases, shell: Shell
    ) -> None:
        self._blame = blame
        self._versions = versions
        self._table = table
        self._leases = leases
        self._latest: dict[Served, Death] = {}
        """By version, the last one of its workers, as long as requests of it are open."""
        self._clock: Callable[[], int] = shell.clock
        self._log = shell.log

    def worker_died(self, event: WorkerExited, ran: Sequence[Request], leased: Leased) -> bool:
        """A worker died while it ``ran`` these, beside ``leased`` work. Whether they are not tried there again."""
        if event.cause in BLAMELESS:
            return False
        if not ran:
            served = self._versions.served(leased.model)
            if served is not None and blames(event.cause):
                # With a version before it, its requests come back to be tried alone, and that one's answer is asked.
                (self._suspect if served.trial.fallback is not None else self._died)(served, leased.clients)
            return False
        served = ran[0].served
        alone = len(ran) == 1 and (ran[0].attempts > 1 or (blames(event.cause) and not leased.had))
        asks = served.trial.fallback is not None
        if not (alone or asks or blames(event.cause)):
            return False
        if not alone:
            self._suspect(served, leased.clients)
        death = Death(served, event.words, len(ran), alone=alone)
        if (overtaken := self._latest.get(served)) is not None:
            overtaken.overtaken = True
            self._count(overtaken)
        self._latest[served] = death
        for request in ran:
            if request.past.death is not None:
                self._died_again(request, request.past.death)
            request.past.death = death
        return alone or asks

    def _died_again(self, request: Request, before: Death) -> None:
        """A worker died with it before, of the version that it has now or of another."""
        before.of_request = True
        self._ended(before)
        if before.served is not request.served:
            self._request_died(before.served, request.submission.account)

    def request_ended(self, request: Request, outcome: Outcome) -> None:
        """A request that was there when a worker died has ended."""
        death, request.past.death = request.past.death, None
        if death is None:
            return
        client = request.submission.account
        if isinstance(outcome, WorkerDied) and request.attempts > 1:
            death.of_request = True
            self._request_died(death.served, client)
        elif not isinstance(outcome, Answer | RunFailed | InvalidRequest):
            death.suspects.add(client)  # it did not run to its end
        elif request.served is not death.served and isinstance(outcome, Answer):
            death.answered = True
            if request.past.fell_from is death.served:
                request.past.fell_from = None
                death.fallen += 1
        self._ended(death)
        if death.open or death.of_request:
            return
        if death.suspects:
            self._died(death.served, [client] if death.alone else sorted(death.suspects), alone=death.alone)
        elif death.answered:
            self._versions.blame(death.served, death.detail, repeated=False)

    def _ended(self, death: Death) -> None:
        """One of its requests has. What another version answered counts when all have: the first ones would look like
        failures of their own, and a version be given up for a share of those and not for how its worker ended. Or
        when another worker of the version dies: one of the requests may wait for ever."""
        death.open -= 1
        if not death.open or death.overtaken:
            self._count(death)
        if not death.open and self._latest.get(death.served) is death:
            del self._latest[death.served]

    def _count(self, death: Death) -> None:
        self._table.fell_back(death.served, death.fallen)
        death.fallen = 0

    def _died(self, served: Served, clients: Sequence[str], *, alone: bool = False) -> None:
        """A worker died with a request of one of these, and nothing more will be known of it."""
        if alone or len(clients) == 1:
            self._request_died(served, clients[0])
        else:
            self._suspect(served, clients)

    def _suspect(self, served: Served, clients: Sequence[str]) -> None:
        now_ns = self._clock()
        for client in clients:
            self._blame.suspect(served.id, client, now_ns)
            self._leases.hold(client, served.id, now_ns + SUSPECT_NS)

    def refusal(self, request: Request) -> ApplianceError | None:
        """Why a request of a client that is held is not taken; None where it is, alone if its client is suspect."""
        blame, now_ns = self._blame, self._clock()
        served, client = request.served, request.submission.account
        left_ns = blame.held_ns(served.id, client, now_ns)
        request.past.suspect = blame.is_suspect(served.id, client, now_ns)
        return held(served, left_ns) if left_ns else None

    def held_clients(self) -> Counter[int]:
        """How many clients are held now, by the model id of the version that they are held for."""
        return self._blame.held_clients(self._clock())

    def _request_died(self, served: Served, client: str) -> None:
        now_ns = self._clock()
        hold_ns, version_blamed = self._blame.request_died(
            served.id,
            client,
            now_ns,
            untried=not served.has_run and self._versions.replaceable(served),
        )
        self._log.event(
            "a request ended a worker", model=served.key, client=client, held_ms=hold_ns // 1_000_000
        )
        self._leases.hold(client, served.id, now_ns + max(hold_ns, SUSPECT_NS))
        for other in self._blame.clear(served.id):
            self._leases.hold(other, served.id, 0)
        if hold_ns:
            for request in self._table.queued_of(served, client):
                self._table.withdraw(request)
        if version_blamed:
            self._blame.forgive(served.id)
            self._versions.blame(served, "requests end its workers", repeated=True)


def blames(cause: ExitCause) -> bool:
    """Whether a worker that ended so tells something of the one request that it had."""
    return cause not in BLAMELESS and cause not in (ExitCause.KILLED, ExitCause.GAVE_UP)


def held(served: Served, left_ns: int) -> QuotaExceeded:
    """The refusal of a request of a client that is held."""
    return QuotaExceeded(
        f"requests of this client ended workers of model '{served.model.name}' version {served.model.version}; "
        "others of it are refused for a while",
        left_ns,
    )
