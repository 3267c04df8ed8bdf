"""One turn of the engine: takes in what workers said, steps the scheduler, does what it wants done.

Callbacks only enqueue; a turn drains everything that has come in since the last one. One owner: the engine.
"""

from __future__ import annotations

from appliance.core.scheduling import actions, events
from appliance.core.scheduling.scheduler import Scheduler
from appliance.engine.control.residence import Residence
from appliance.engine.control.roster import Roster
from appliance.engine.environment import Pace
from appliance.engine.fastpath.grants import Grants
from appliance.engine.requests.batches import Batches
from appliance.engine.requests.displaced import Displaced
from appliance.engine.requests.endings import Endings
from appliance.engine.requests.hangs import Hangs
from appliance.engine.requests.intake import Intake
from appliance.engine.requests.outcome import Ended, end_of
from appliance.engine.requests.request import Request
from appliance.workers import port as workers


class Turn:
    """The parts of an engine at work, in the order that a turn needs them."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        pool: workers.WorkerPort,
        pace: Pace,
        intake: Intake,
        roster: Roster,
        direct: Grants,
        endings: Endings,
        residence: Residence,
        displaced: Displaced,
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._pace = pace
        self._intake = intake
        self._requests = intake.requests
        self._detours = intake.detours
        self._roster = roster
        self._direct = direct
        self._endings = endings
        self._residence = residence
        self._displaced = displaced
        self._news: list[workers.PoolEvent] = []
        self._left_queued = 0
        self.batches = Batches()
        self._hangs = Hangs(self.batches, roster.groups.is_alone, pool.kill)

    @property
    def may_wait(self) -> bool:
        """Whether the next turn could dispatch something new, and no worker came back to older requests: then company
        for its batches is worth an instant."""
        return self._scheduler.unsettled and not (self._news and self._left_queued)

    def pool_event(self, event: workers.PoolEvent) -> None:
        """Something happened to a worker."""
        self._news.append(event)
        self._pace.news()

    def take(self, now_ns: int) -> None:
        """Take a turn."""
        finished, ended = self._take_news(now_ns)
        self._roster.tick(now_ns)
        self._residence.tick(now_ns)
        self._intake.step(now_ns)
        for action in self._scheduler.step(events.Settle(), now_ns):
            self.perform(action, now_ns)
        self._left_queued = self._scheduler.queued
        self._direct.look(now_ns)
        self._hangs.look(now_ns)
        for request, result in finished:
            self._endings.finish(request, result, now_ns)
        for worker in ended:
            self._endings.lost(worker)

    def ask_again(self) -> None:
        """Ask for another turn if something came in meanwhile."""
        if self._intake.inbox or self._news:
            self._pace.soon()

    def _take_news(self, now_ns: int) -> tuple[list[tuple[Request, workers.RunResult]], list[int]]:
        """What came back, and which workers have ended."""
        news, self._news = self._news, []
        finished: list[tuple[Request, workers.RunResult]] = []
        ended: list[int] = []
        for event in news:
            if type(event) is workers.RunFinished:
                self._intake.inbox.append(self.batches.back(event, finished))
            elif type(event) is workers.Fetched:
                request = self._endings.fetched(event)
                if request is not None:
                    finished.append((request, event.result))
            elif type(event) is workers.WorkerStarted:
                self._roster.worker_started(event)
            elif type(event) is workers.FormBuilt:
                self._roster.form_built(event, now_ns)
            elif type(event) is workers.WorkerExited:
                self._worker_exited(event, now_ns)
                ended.append(event.worker)
            else:
                self._residence.news(event, now_ns)
        return finished, ended

    def _worker_exited(self, event: workers.WorkerExited, now_ns: int) -> None:
        blamed, had = self._direct.worker_exited(event.worker)
        away = self._residence.exiting(event)
        self._roster.worker_exited(event, self.batches.model_of, blamed, had, now_ns)
        self._residence.exited(event, away, now_ns)
        self._intake.inbox += self.batches.lost(event.worker, event.batches)

    def perform(self, action: actions.Action, now_ns: int) -> None:
        """Do what the scheduler wants done."""
        if type(action) is actions.Dispatch:
            self._dispatch(action, now_ns)
        elif type(action) is actions.WakeAt:
            self._pace.at(action.at_ns)
        elif type(action) is actions.Grant or type(action) is actions.Revoke:
            self._direct.perform(action)
        elif isinstance(action, Ended | actions.Evicted):
            self._left(self._requests[action.request], action)

    def _left(self, request: Request, action: Ended | actions.Evicted) -> None:
        """It is queued no more, and has not run to its end."""
        if request.cancelled:
            self._endings.cancelled(request)
        elif isinstance(action, actions.Evicted):
            self._displaced.add(request)
        elif type(action) is not actions.Lost or not self._detours.elsewhere(request):
            self._endings.end(request, *end_of(request, action))

    def _dispatch(self, action: actions.Dispatch, now_ns: int) -> None:
        requests = tuple([self._requests[handle] for handle in action.requests])
        self._pool.dispatch(action.lane, self.batches.go(action, requests, now_ns))
