"""What a turn is made of: taking in all that came, deciding, giving workers their work, and only then ending requests.

Workers are told first, so that they are busy again before answers are encoded. Owner: the engine.
"""

from __future__ import annotations

from appliance.domain.device_reading import DeviceState
from appliance.domain.exit_cause import ExitCause
from appliance.engine.control.hangs import Hangs
from appliance.engine.control.instance_group import Held
from appliance.engine.control.model_cache import ModelCache
from appliance.engine.control.rollouts import Rollouts
from appliance.engine.fastpath.leases import Leases
from appliance.engine.inbox import Inbox
from appliance.engine.requests.completion import Completion
from appliance.engine.requests.crashes import Crashes, blames
from appliance.engine.requests.dispatch import Batches, Dispatch
from appliance.engine.requests.mirroring import Mirroring
from appliance.engine.requests.request import Request
from appliance.workers import port as workers


class Turn:
    """The parts of an engine at work, in the order that a turn needs them."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        rollouts: Rollouts,
        cache: ModelCache,
        leases: Leases,
        dispatch: Dispatch,
        completion: Completion,
        mirroring: Mirroring,
        hangs: Hangs,
    ) -> None:
        self._inbox = inbox
        self._rollouts = rollouts
        self._cache = cache
        self._leases = leases
        self._dispatch = dispatch
        self._completion = completion
        self._mirroring = mirroring
        self._hangs = hangs
        self._news: list[workers.PoolEvent] = []
        self._left_queued = 0
        self._devices: tuple[DeviceState, ...] = ()

    @property
    def may_wait(self) -> bool:
        """Whether the next turn could dispatch something new, and no worker came back to older requests: then company
        for its batches is worth an instant."""
        return self._inbox.scheduler.unsettled and not (self._news and self._left_queued)

    def pool_event(self, event: workers.PoolEvent) -> None:
        """Take in at the next turn that something happened to a worker."""
        self._news.append(event)

    def devices_told(self, states: tuple[DeviceState, ...]) -> None:
        """Take in at the next turn how devices are."""
        self._devices = states

    def take(self, now_ns: int) -> None:
        """Take a turn."""
        finished, ended = self._take_news(now_ns)
        if self._devices:
            states, self._devices = self._devices, ()
            self._cache.devices_told(states, now_ns)
        self.take_mirrored()
        self._rollouts.tick(now_ns)
        self._cache.tick(now_ns)
        self._dispatch.step(now_ns)
        self._dispatch.settle(now_ns)
        self._left_queued = self._inbox.scheduler.queued
        self._leases.look(now_ns)
        self._hangs.look(now_ns)
        for request, result in finished:
            self._completion.finish(request, result, now_ns)
        for worker in ended:
            self._completion.lost(worker)

    def settle(self, now_ns: int) -> None:
        """End the turn: it is known now what serves."""
        self._dispatch.settle_displaced(self._cache, now_ns)

    def hand_out(self, now_ns: int) -> bool:
        """Give out the outcomes that turns left; whether there were any."""
        return self._completion.hand_out(now_ns)

    @property
    def crashes(self) -> Crashes:
        """To be asked only."""
        return self._dispatch.crashes

    @property
    def batches(self) -> Batches:
        """To be asked only."""
        return self._dispatch.batches

    @property
    def has_more(self) -> bool:
        """Whether something came in meanwhile, for another turn."""
        return bool(self._inbox or self._news)

    def take_mirrored(self) -> None:
        """Tell the rollout what became of mirrored requests."""
        report = self._mirroring.report()
        for served, difference in report.compared:
            self._rollouts.compared(served, difference)
        for served in report.died:
            self._rollouts.version_blame.blame(
                served, "its worker died with a request that was answered", repeated=False
            )
        self._rollouts.count_mirrored(report.mirrored, report.left_out)

    def _take_news(self, now_ns: int) -> tuple[list[tuple[Request, workers.RunResult]], list[int]]:
        """What came back, and which workers have ended."""
        news, self._news = self._news, []
        finished: list[tuple[Request, workers.RunResult]] = []
        ended: list[int] = []
        for event in news:
            if type(event) is workers.RunFinished:
                self._inbox.put(self._dispatch.batches.back(event, finished))
            elif type(event) is workers.Fetched:
                request = self._completion.fetched(event)
                if request is not None:
                    finished.append((request, event.result))
            elif type(event) is workers.WorkerStarted:
                self._rollouts.worker_started(event)
                self._rollouts.forms.started(event)
            elif type(event) is workers.FormBuilt:
                self._rollouts.form_built(event, now_ns)
            elif type(event) is workers.WorkerExited:
                self._worker_exited(event, now_ns)
                ended.append(event.worker)
            else:
                self._cache.news(event, now_ns)
        return finished, ended

    def _others_could(self, worker: int) -> bool:
        """Whether something else could run what a worker had: the version before, or the version without its form."""
        members = self._rollouts.groups.members(worker)
        return any(served.packed or served.trial.fallback is not None for served in members)

    def _worker_exited(self, event: workers.WorkerExited, now_ns: int) -> None:
        batches = self._dispatch.batches
        ran = batches.ran(event.batches)
        asked = ran[0].served if ran else None
        if event.cause is ExitCause.GAVE_UP and not self._rollouts.groups.may_give_up(event.worker, asked):
            event = event._replace(cause=ExitCause.DIED)
        at_work = self._rollouts.load_to_blame(event, running=bool(ran)) is None
        last = at_work and not ran and blames(event.cause) and not self._others_could(event.worker)
        leased = self._leases.worker_exited(event.worker, last=last)
        away = self._cache.exiting(event)
        served = asked or self._rollouts.served(leased.model)
        if served is not None and at_work:
            at_work = not (
                blames(event.cause) and self._rollouts.version_blame.form_died(served, event, now_ns)
            )
        final = at_work and self._dispatch.crashes.worker_died(event, ran, leased)
        held = Held(running=bool(ran), leased=leased.had, final=final, asked=served)
        self._rollouts.worker_exited(event, held, now_ns)
        self._cache.exited(event, away, now_ns)
        self._inbox.extend(batches.lost(event.worker, event.batches))
