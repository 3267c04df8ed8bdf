"""The model cache: carries out what the accountant for memory (``core/memory``) decides, and tells it what came of it.

A version is looked after from the moment it serves; it stays READY for clients whether or not it is in memory. One that
is not RESIDENT is closed for the scheduler, and the front end forgets its request templates, so that every request for
it comes here. One whose weights are evicted keeps its workers and its place in them; COLD ends them. For versions on
their way to serving memory is reserved. Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from appliance.core.memory import actions, events
from appliance.core.memory.accountant import Accountant
from appliance.core.memory.actions import Action, RefuseReservation, Reply, StartCold
from appliance.core.memory.budget import (
    AbsentDevice,
    Budget,
    ResidencyPolicy,
    WaitsForDevice,
    WaitsForProcess,
)
from appliance.core.memory.footprint import Residency
from appliance.core.rollout.phase import LEAVING, SERVING, Phase
from appliance.domain.device import CPU, DeviceName
from appliance.domain.device_reading import DeviceState
from appliance.domain.errors import CapacityError
from appliance.engine.control.cache_moves import Cached, CacheMoves
from appliance.engine.control.cache_report import CacheReport, CacheTally
from appliance.engine.control.devices import Devices, Drains
from appliance.engine.control.rollouts import Rollouts
from appliance.engine.control.sizes import Costs, Sizes
from appliance.engine.environment import Shell
from appliance.engine.fastpath.leases import Leases
from appliance.engine.port import Tensor
from appliance.engine.requests.outcome import result_of, unserved
from appliance.engine.requests.request import Request
from appliance.engine.requests.waiting_room import CountedRefusal, WaitingRoom, refusal
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import Result
from appliance.telemetry.snapshot import ResidencyFigures
from appliance.workers.port import PoolEvent, WorkerExited, WorkerPort

HOST: Final = CPU
"""The device through whose memory versions are loaded for devices that have no budget."""
SEEN_NS: Final = 2_000_000_000
"""Devices are looked at each second, and a look takes its time."""
SAMPLE_NS: Final = 1_000_000_000
"""How often it is looked how much models are used, and what they take."""


class ResidencyTerms(NamedTuple):
    """What residency goes by: ``budgets`` are what models and their workers may take of each device; ``free_bytes``
    tells what the machine has left of one, ``costs`` what models cost before; ``devices`` are those that have a state,
    at the start, and are told of from then on."""

    config: ResidencyPolicy = ResidencyPolicy()
    budgets: tuple[Budget, ...] = (Budget(HOST, 1 << 62),)
    free_bytes: Callable[[DeviceName], int] = lambda device: 1 << 62
    costs: Costs | None = None
    devices: tuple[DeviceState, ...] = ()


class ModelCache:
    """Implements ColdStarts, MemoryPort and Tenants."""

    def __init__(
        self,
        *,
        terms: ResidencyTerms,
        routes: Routes,
        rollouts: Rollouts,
        workers: WorkerPort,
        leases: Leases,
        room: WaitingRoom,
        shell: Shell,
    ) -> None:
        budgets = (*terms.budgets, *(Budget(each.device.called, each.budget_bytes) for each in terms.devices))
        limits = {budget.device: budget.bytes for budget in budgets}
        self._terms = terms
        self._routes = routes
        self._rollouts = rollouts
        self._leases = leases
        self._room = room
        self._shell = shell
        self._memory = Accountant(terms.config, budgets)
        self._sizes = Sizes(terms.config.evict_weights, limits, terms.costs)
        self._devices = Devices(self._memory, terms.devices)
        self._drains = Drains(self._devices, rollouts, self, shell)
        self._tally = CacheTally()
        self._report = CacheReport(
            config=terms.config,
            memory=self._memory,
            sizes=self._sizes,
            routes=routes,
            tally=self._tally,
            log=shell.log,
        )
        self._moves = CacheMoves(
            config=terms.config,
            rollouts=rollouts,
            workers=workers,
            sizes=self._sizes,
            tally=self._tally,
            shell=shell,
        )
        self._cached = self._moves.cached
        self._weighed_ns = 0

    # --- requests

    def ask(self, request: Request, tensors: Sequence[Tensor] | None, now_ns: int) -> CountedRefusal | None:
        """See ColdStarts."""
        served = request.served
        self._drains.clear([served], now_ns)
        if served.id not in self._cached or request.is_mirrored:
            return unserved(served), Result.UNAVAILABLE
        self._sample(now_ns)
        self._tally.count(misses=tensors is not None)
        asked = events.Asked(served.id, request.handle, request.deadline_ns, request.memory.nbytes)
        answer, *others = self._memory.step(asked, now_ns)
        assert isinstance(answer, actions.Wait | actions.Refuse), "what is in memory is open"
        refused: CountedRefusal | None = None
        if isinstance(answer, actions.Refuse):
            self._tally.count(refused=1)
            refused = self._refusal(served, answer), Result.REFUSED
        elif tensors is not None and (unstored := self._room.store(request, tensors)) is not None:
            others += self._memory.step(events.Withdrawn(served.id, request.handle), now_ns)
            refused = unstored, result_of(unstored)
        elif (deadline_ns := self._room.enter(request)) is not None:
            self._shell.pace.at(deadline_ns)
        self._perform(others, now_ns)
        return refused

    def cancel(self, request: Request, now_ns: int) -> bool:
        """See ColdStarts."""
        if not self._room.cancel(request):
            return False
        self._tell(events.Withdrawn(request.served.id, request.handle), now_ns)
        return True

    def _refusal(self, served: Served, action: actions.Refuse) -> CapacityError:
        limit = self._memory.limit_beside(served.memory.device, served.id)
        return refusal(served.model.name, action, self._sizes.footprint(served).bytes, limit)

    # --- time

    def tick(self, now_ns: int) -> None:
        """Look at what time has brought: deadlines, models that have drained, loads that wait for room."""
        for request in self._room.expire(now_ns):
            self._tell(events.Withdrawn(request.served.id, request.handle), now_ns)
        if draining := self._moves.draining:
            idle = [model for model in draining if not self._running(model)]
            self._tell_all(self._moves.drain(idle, now_ns), now_ns)
        gone = [events.Gone(model) for model in self._memory.leaving() if self._has_left(model)]
        if gone:
            self._tell(events.Changed(tuple(gone)), now_ns)
        if now_ns >= self._memory.due_ns:
            self._tell(events.Settle(), now_ns)
        due_ns = self._weighed_ns + SAMPLE_NS
        if now_ns >= due_ns:
            self._weighed_ns = now_ns
            self._sample(now_ns)
            stays = {each.model for each in self._memory.models() if each.stays}
            self._tell_all(self._moves.grown(stays), now_ns)
        elif self._cached:  # it may be the last request for long that has made them grow
            self._shell.pace.at(due_ns)
        if self._room:
            self._shell.pace.at(self._room.next_deadline_ns)

    def _has_left(self, model: int) -> bool:
        """Whether a version that served takes no memory any more; what serves again is told of by ``look``."""
        served = self._rollouts.served(model)
        return served is None or served.phase not in SERVING | LEAVING

    def _sample(self, now_ns: int) -> None:
        """Tell how much models were used that need not ask."""
        for model, cached in self._cached.items():
            answered = cached.served.meter.answered
            more = answered - cached.answered
            if more > 0:
                cached.answered = answered
                self._memory.step(events.Used(model, more), now_ns)

    # --- which versions serve

    def look(self, now_ns: int) -> None:
        """See which versions serve now, as the routes have changed. Told at once, for what one leaves another one
        has."""
        there = {served.id: served for served in self._routes.all()}
        news: list[events.Told] = []
        for cached in list(self._cached.values()):
            served = cached.served
            if there.get(served.id) is not served or served.phase not in SERVING:
                news.append(self._remove(cached, now_ns))
        arriving = [each for each in there.values() if each.id not in self._cached and self._settles(each)]
        news += self._ends({served.id for served in arriving})
        news += [self._add(served) for served in arriving]
        news += [self._retained(cached.served) for cached in self._cached.values()]
        self._tell(events.Changed(tuple(news)), now_ns)
        for model in self._sizes.known():
            if self._rollouts.served(model) is None:
                self._sizes.forget(model)
        self._report.look(there.values(), self._serving())

    def _settles(self, served: Served) -> bool:
        """Whether a version is to be looked after from now on."""
        serves = served.phase in SERVING and self._device(served) is not None and not served.memory.barred
        there = served.opened or served.memory.residency is not Residency.RESIDENT
        return serves and there and self._sizes.knows(served.id)

    def _device(self, served: Served) -> DeviceName | None:
        """The device on which it is looked after; None: that has no budget."""
        device = served.memory.device
        return device if device in self._memory.devices else None

    def _ends(self, arriving: set[int]) -> Iterator[events.Told]:
        """What became of versions that were on their way, or are to leave."""
        for model in self._memory.outside() - arriving:
            served = self._rollouts.served(model)
            if served is None or served.phase in SERVING | {Phase.FAILED}:
                yield events.Gone(model)
            elif served.phase in LEAVING:
                yield self._left(served)

    def _left(self, served: Served) -> events.Told:
        if served.phase not in LEAVING:
            return events.Gone(served.id)
        heir = self._routes.current(served.model.name)
        size_bytes = self._sizes.bytes_now(served)
        if heir is None or heir.memory.device != served.memory.device:
            return events.Left(served.id, size_bytes)
        heir_bytes = self._sizes.footprint(heir).bytes if self._sizes.knows(heir.id) else 0
        return events.Left(served.id, size_bytes, heir.id, heir_bytes)

    def _add(self, served: Served) -> events.Added:
        self._moves.add(served)
        footprint, costs_ns = self._sizes.footprint(served), self._sizes.costs_ns(served)
        return events.Added(served.id, served.memory.device, served.memory.residency, footprint, *costs_ns)

    def _retained(self, served: Served) -> events.Retained:
        """What is wished of it: by the operator, and for as long as a version is tried beside it."""
        config, name = self._terms.config, served.model.name
        keep_warm_ns = int(config.keep_warm_s.get(name, 0) * 1e9)
        held = served.trial.split is not None
        return events.Retained(served.id, name in config.pins, keep_warm_ns, held)

    def _remove(self, cached: Cached, now_ns: int) -> events.Told:
        self._moves.remove(cached, now_ns)
        self._room.displace(cached.served.id)
        return self._left(cached.served)

    # --- versions on their way

    def reserve(self, served: Served, before: Served | None, now_ns: int) -> Reply:
        """Have memory be kept to load a version that is on its way to serving, in the place of ``before``."""
        need_bytes = self._sizes.guessed(served).bytes
        lack = self._lacks_process(served, before, now_ns)
        homeless = lack or self._find_home(served, need_bytes, now_ns) or self._stays_slow(served, before)
        if homeless is not None:
            self._shell.pace.at(now_ns + SAMPLE_NS)
            return RefuseReservation(served.id, homeless, now_ns + SAMPLE_NS)
        device = self._device(served) or HOST
        replaces = before.id if before is not None else None
        replies = self._tell(events.ReservationWanted(served.id, device, need_bytes, replaces), now_ns)
        (reply,) = [each for each in replies if not isinstance(each, StartCold)]
        return reply

    def _lacks_process(self, served: Served, before: Served | None, now_ns: int) -> WaitsForProcess | None:
        """Why a version that is to have a worker of its own gets none now. What it was promised of memory others may
        have meanwhile, of whom one may have been promised the last process."""
        groups = self._rollouts.groups
        if not served.model.own_worker:
            return None
        promised = [each for each in groups.promised() if self._memory.home(each.id) is not None]
        lack = groups.lack(served, before, promised)
        if lack is not None and self._memory.home(served.id) is not None:
            self._tell(events.Gone(served.id), now_ns)
        return lack

    def rests(self, served: Served, now_ns: int) -> bool:
        """Whether a version that is known to serve begins COLD, because memory has no room for it at the start."""
        config, name, size = self._terms.config, served.model.name, self._sizes.guessed(served)
        if name in config.pins or config.keep_warm_s.get(name):
            return False
        homeless = self._find_home(served, size.bytes, now_ns)
        device = self._device(served)
        if homeless is not None or device is None:
            return False
        offer = events.ColdStartOffered(served.id, device, size)
        rests = bool(self._tell(offer, now_ns))
        if rests:
            self._sizes.assumed(served)
        return rests

    def _find_home(
        self, served: Served, need_bytes: int, now_ns: int
    ) -> AbsentDevice | WaitsForDevice | None:
        """Choose the device of a version that has none yet, or one that takes none any more; gives why there is
        none."""
        if served.model.on_cpu:
            return None
        home = self._memory.home(served.id)
        if home is not None and served.id not in self._memory.unfit() and not self._devices.fault(home):
            return None
        if home is not None:
            self._tell(events.Gone(served.id), now_ns)
        chosen = self._devices.choose(served, need_bytes)
        if not isinstance(chosen, DeviceName):
            return chosen
        served.memory.device = chosen
        return None

    def _stays_slow(self, served: Served, before: Served | None) -> WaitsForDevice | None:
        """Why a copy that is to be loaded away from the slowed device of ``before`` is not loaded yet: there is room on
        that one alone."""
        device = served.memory.device
        if before is None or not served.version.spec.moved or device != before.memory.device:
            return None
        slow = self._devices.slow(device)
        return WaitsForDevice(faults=((device, slow),)) if slow else None

    def rest(self, served: Served) -> None:
        """Have a version begin COLD."""
        self._moves.rest(served)

    # --- what is to be done

    def _tell(self, event: events.Event, now_ns: int) -> list[Reply | StartCold]:
        return self._perform(self._memory.step(event, now_ns), now_ns)

    def _tell_all(self, told: Iterable[events.Event], now_ns: int) -> None:
        for event in told:
            self._tell(event, now_ns)

    def _perform(self, decided: Iterable[Action], now_ns: int) -> list[Reply | StartCold]:
        """Do what is to be done; gives what was decided of versions on their way."""
        replies: list[Reply | StartCold] = []
        for action in decided:
            match action:
                case actions.Load():
                    self._moves.load(self._cached[action.model], now_ns)
                case actions.PageIn():
                    self._tell_all(self._moves.page_in(self._cached[action.model], now_ns), now_ns)
                case actions.EvictWeights():
                    if not self._declines(action.model, now_ns):
                        self._moves.evict(self._cached[action.model])
                case actions.Unload():
                    if not self._declines(action.model, now_ns):
                        self._moves.unload(self._cached[action.model])
                case actions.Release():
                    self._release(action)
                case actions.Refuse():
                    self._refuse(action)
                case actions.WakeAt():
                    self._shell.pace.at(action.at_ns)
                case actions.CheckUse(device, models):
                    idle = frozenset(model for model in models if not self._running(model))
                    replies += self._tell(events.UseChecked(device, idle), now_ns)
                case actions.MeasureFree(device):
                    free = events.FreeMeasured(device, self._terms.free_bytes(device))
                    replies += self._tell(free, now_ns)
                case actions.Serve() | actions.Wait():
                    raise AssertionError("it is answered where it asks")
                case _:
                    replies.append(action)
        return replies

    def _declines(self, model: int, now_ns: int) -> bool:
        """Whether a request has come in for a model that is to leave."""
        if self._running(model):
            self._tell(events.Declined(model), now_ns)
            return True
        return False

    def _release(self, action: actions.Release) -> None:
        self._room.proceed(action.requests)
        # They are counted once more when they are answered, and were when they asked.
        self._cached[action.model].answered += len(action.requests)
        self._shell.pace.soon()

    def _refuse(self, action: actions.Refuse) -> None:
        error = self._refusal(self._cached[action.model].served, action)
        if self._room.refuse(action.request, error):
            self._tally.count(refused=1)
            self._shell.pace.soon()

    # --- what workers say

    def news(self, event: PoolEvent, now_ns: int) -> None:
        """Take in what happened to versions in workers."""
        self._tell_all(self._moves.news(event, now_ns), now_ns)

    def exiting(self, event: WorkerExited) -> list[Served]:
        """Versions that an ending worker held or was to hold, and that are not open; for ``exited``."""
        return self._moves.exiting(event)

    def exited(self, event: WorkerExited, held: Sequence[Served], now_ns: int) -> None:
        """Take in that a process is gone; what was given up because of this is not brought back."""
        given_up = [each for each in held if each.phase not in SERVING]
        for served in given_up:
            if served.id in self._cached:
                self._tell(self._remove(self._cached[served.id], now_ns), now_ns)
        self._tell_all(self._moves.exited(event, held, now_ns), now_ns)

    # --- devices

    def devices_told(self, states: Iterable[DeviceState], now_ns: int) -> None:
        """This is how devices are now: budgets change, and versions leave those that have a fault."""
        if news := self._devices.take(states):
            self._tell(events.Changed(tuple(news)), now_ns)
        self._drains.look(now_ns)

    def said_bytes(self, held: Iterable[Served]) -> int:
        """What the sessions of versions in one process take together, as that said when they were loaded."""
        return sum(self._sizes.session_bytes(served) for served in held)

    def pause_ns(self, device: DeviceName) -> int:
        """See MemoryPort."""
        return SEEN_NS if self._devices.watched(device) else 0

    def needs(self, served: Served) -> int:
        """See Tenants."""
        return self._sizes.expected(served).bytes

    def take_out(self, versions: Sequence[Served], now_ns: int) -> None:
        """See Tenants."""
        news: list[events.Told] = []
        for served in versions:
            cached = self._cached.get(served.id)
            news.append(self._remove(cached, now_ns) if cached is not None else events.Gone(served.id))
            self._rollouts.put_out(served, now_ns)
            served.memory.residency = Residency.COLD
            served.memory.returning = served.memory.quick = False
        self._tell(events.Changed(tuple(news)), now_ns)

    def settle(self, served: Served, device: DeviceName, now_ns: int) -> None:
        """See Tenants."""
        served.memory.barred, served.memory.device = "", device
        self._rollouts.touch()
        self.look(now_ns)

    def bar(self, served: Served, why: str) -> None:
        """See Tenants."""
        served.memory.barred = why
        self._rollouts.touch()

    # --- small things

    def _serving(self) -> list[Served]:
        """Versions that are looked after."""
        return [cached.served for cached in self._cached.values()]

    def _running(self, model: int) -> bool:
        """Whether it has something in flight, or is about to change where it runs."""
        cached = self._cached.get(model)
        if cached is None:
            return False
        in_flight = (
            cached.served.requests.live > self._room.counts.get(model, 0) or self._leases.in_flight(model) > 0
        )
        return in_flight or self._moves.changing(cached.served)

    def room_bytes(self, served: Served) -> int:
        """See MemoryPort."""
        device = self._device(served)
        if served.model.on_cpu or device is None:
            return 0
        free_bytes = self._memory.free_beside(device, served.id) - self._rollouts.forms.promised_bytes(device)
        return self._sizes.room_bytes(served, free_bytes)

    def form_room_bytes(self, served: Served) -> int | None:
        """See MemoryPort."""
        device = self._device(served)
        if served.model.on_cpu or device is None:
            return None
        return self._sizes.form_room_bytes(served, self._memory.free_beside(device, served.id))

    def memory_of(self, served: Served) -> tuple[int, int]:
        """See MemoryPort."""
        there = served.placed.group >= 0 and self._sizes.knows(served.id)
        return (self._sizes.bytes_now(served), self._sizes.weights_now(served)) if there else (0, 0)

    def figures(self) -> ResidencyFigures:
        """For people, as of now."""
        return self._report.figures(self._serving())
