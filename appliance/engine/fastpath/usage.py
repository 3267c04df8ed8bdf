"""What the front end did by itself, taken into the accounts as if the engine had done it.

It tells late, in sums; figures that are asked for are those of this moment, because they are fetched first. Owner: the
leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.core.scheduling import events
from appliance.domain.exit_cause import ExitCause
from appliance.engine.environment import Shell
from appliance.engine.fastpath.direct import LeasingFrontEnd, Tally
from appliance.engine.fastpath.lanes import Lanes
from appliance.engine.fastpath.templates import Templates
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import Result
from appliance.workers.port import WorkerPort


class Usage:
    """Books what the front end tells, and gives what the scheduler is to know of it. ``versions`` are those that are
    here, by their ids."""

    def __init__(
        self,
        *,
        lanes: Lanes,
        templates: Templates,
        versions: Mapping[int, Served],
        workers: WorkerPort,
        shell: Shell,
    ) -> None:
        self._lanes = lanes
        self._templates = templates
        self._versions = versions
        self._workers = workers
        self._shell = shell

    def fetch(self, front_end: LeasingFrontEnd, lanes: Iterable[int]) -> list[events.FrontEndNews]:
        """Fetch all news, and the load of ``lanes`` and of those that there are news of: looking at all lanes of a box
        for every request would cost more than the request."""
        told, broken = front_end.news()
        self._trace(front_end)
        news: list[events.FrontEndNews] = []
        asked = set(lanes)
        for fields in told:
            tally = Tally._make(fields)
            self._book(tally, news)
            asked.add(tally.lane)
        known, busy = self._lanes.groups, self._lanes.busy
        for lane in asked & known.keys():
            # After what ran: a load that fell for no reason would look like idle time.
            requests, work_ns, _ = front_end.load(lane)
            (busy.add if requests else busy.discard)(lane)
            news.append(events.LeasedWork(lane, requests, work_ns))
        for lane in broken:
            self._workers.kill(lane, ExitCause.NONSENSE)
        return news

    def _trace(self, front_end: LeasingFrontEnd) -> None:
        """Write the traced requests: after the news, since what ends from then on is announced anew, and its trace is
        not left lying."""
        tracer = self._shell.tracer
        if tracer is None:
            return
        for trace in front_end.traces():
            if (served := self._versions.get(trace[0])) is not None:
                tracer.leased(served.model, trace)

    def _book(self, tally: Tally, news: list[events.FrontEndNews]) -> None:
        served = self._versions.get(tally.model)
        if served is None:
            return
        meter = served.meter
        meter.merge(tally.rows, tally.batches, tally.stages, self._shell.wall_ms())
        if tally.refused or tally.cancelled or tally.expired:
            meter.ended_many(Result.REFUSED, tally.refused)
            meter.ended_many(Result.CANCELLED, tally.cancelled)
            meter.ended_many(Result.EXPIRED, tally.expired)
        self._lanes.count(tally.lane, tally.requests)
        for request_id, stages_ns, client in tally.slow:
            self._shell.log.slow(
                model=served.model,
                request_id=request_id.decode(errors="replace"),
                client=client,
                stages_ns=stages_ns,
            )
        kind = self._templates.kind(tally.kind)
        if kind is None:
            return
        self._templates.ran(kind.kind)
        if tally.budget_ns:
            news.append(events.BudgetSeen(kind.batch_key, tally.budget_ns))
        for rows, count, gather_ns, run_ns, scatter_ns in tally.batches:
            spent_ns = (gather_ns + run_ns + scatter_ns) // count
            news.append(events.LeasedRan(tally.lane, kind.batch_key, rows, spent_ns, count))
