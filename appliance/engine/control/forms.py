"""Packed forms of versions: built one at a time by a worker that does nothing else, while nothing is on its way.

A form that was built is taken up as a swap of the version for itself: it has to prove itself like any other; one that
fails later is marked, and not used again. Which is built next, and when once more, ``core/processes/form_queue`` says.
Owner: the rollouts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from appliance.core.processes.form_queue import FormQueue
from appliance.domain.device import DeviceName
from appliance.domain.exit_cause import ExitCause
from appliance.engine.control.instance_group import Ids
from appliance.engine.environment import Shell
from appliance.engine.versions.served import Served
from appliance.engine.versions.shape_history import ShapeHistory
from appliance.engine.versions.wording import awaits_shapes_text, no_room_for_builder_text
from appliance.runtimes.runtime import is_for_requests
from appliance.workers.forms import refuse_forms
from appliance.workers.port import (
    FormBuilt,
    FormJudged,
    FormVerdict,
    ModelProgress,
    WorkerPort,
    WorkerStarted,
)
from appliance.workers.seal import kin_of, seal_problem
from appliance.workers.settings import WorkerTerms

LOOK_NS: Final = 60_000_000_000
"""Until it is looked whether there was a request that tells what an engine is to be for."""
TOLD_PARTS: Final = 4
"""How far a form is goes into the log by quarters."""


class Forms:
    """``processes`` are the settings of workers; ``ids`` gives those of a worker and of the model in it; ``history``
    says what shapes engines are for."""

    def __init__(
        self,
        *,
        workers: WorkerPort,
        processes: WorkerTerms,
        ids: Ids,
        history: ShapeHistory,
        shell: Shell,
    ) -> None:
        self._port = workers
        self._history = history
        self._processes = processes
        self._ids = ids
        self._pace = shell.pace
        self._log = shell.log
        self._queue: FormQueue[Served] = FormQueue()
        self._building: tuple[int, int, Served] | None = None
        """Worker, the model's id there, and the version; None: nothing is built now."""
        self._room_bytes = 0
        """What that may take of its device."""
        self._processes_of: dict[int, tuple[DeviceName, int]] = {}
        """Devices and numbers of processes that build, by their workers: until they have ended, whatever became of
        what they built."""
        self._quarters = 0
        """Of what is built now, as far as that was told."""
        self._kin: dict[str, tuple[str, ...]] = {}
        """Names of forms from which that of a version may be made, by its identity, until one was built or was not."""
        self._apart: set[str] = set()
        """Identities of versions whose builder died when it had forms of others: theirs are built from nothing."""
        self.spared: frozenset[str] = frozenset()
        """All of those, which are to stay whatever becomes of their own versions. Read from whatever thread."""

    def consider(self, served: Served) -> None:
        """``served`` is proven: a form of it is worth building, unless it runs from one or was built before."""
        model = served.model
        formed = model.weights is not None or model.has_engine
        if served.packed or (model.forms and model.digest and formed):
            problem = seal_problem(model.runtime)
            if not problem:
                self._queue.consider(served)
                if self._queue.waits(served.identity) and served.identity not in self._apart:
                    # the version before it leaves now, and its forms with it
                    self._spare(served.identity, kin_of(model))
            elif not served.unbuilt:
                self._leave_out(served, problem)
        self._pace.soon()  # what waited for the proof is looked at as well

    def forget(self, identity: str) -> None:
        """The version is gone, and its forms may be: if it comes again, so may a form."""
        self._queue.forget(identity)
        self._apart.discard(identity)
        self._spare(identity, ())
        if self._building is not None and self._building[2].identity == identity:
            self._leave_unbuilt("the version is gone")

    def tick(self, now_ns: int) -> None:
        """Time passed: what had no room may have it now."""
        self._queue.tick(now_ns)

    @property
    def next(self) -> Served | None:
        """The version whose form could be built now."""
        return self._queue.first if self._building is None else None

    def skip(self) -> None:
        """The next one has no use for a form now."""
        identity = self._queue.take().identity
        self._queue.forget(identity)
        self._spare(identity, ())

    @property
    def processes(self) -> tuple[tuple[DeviceName, int], ...]:
        """Devices and numbers of processes that build."""
        return tuple(each for each in self._processes_of.values() if each[1])

    def promised_bytes(self, device: DeviceName) -> int:
        """What of a device's memory is for the form that is built now."""
        here = self._building is not None and self._building[2].memory.device == device
        return self._room_bytes if here else 0

    def build(self, room_bytes: int | None = None, now_ns: int = 0) -> None:
        """Build the form of the next one, if one may be built: nothing else is on its way. ``room_bytes`` are for it on
        its device (0: there is no room, and may be later; None: nothing bounds it)."""
        served, worker, model = self._queue.take(), self._ids.take_id(), self._ids.take_id()
        if problem := seal_problem(served.model.runtime):
            self._leave_out(served, problem)
            return
        if (at_ns := self._awaits_shapes(served, now_ns)) > now_ns:
            self.goes_without(served, awaits_shapes_text())
            self._pace.at(self._queue.wait(served, at_ns))
            return
        if room_bytes == 0:
            self._leave_out(served, no_room_for_builder_text())
            self._pace.at(self._queue.put_off(served, now_ns))
            return
        self._building, self._quarters = (worker, model, served), 0
        self._room_bytes = room_bytes or 0
        self._log.event("building the packed form", model=served.key)
        alone = worker  # in a group that no request is for
        kin, sizes = self._kin.get(served.identity, ()), self._history.sizes(served.model)
        version = replace(served.in_force, kin=kin, free_sizes=sizes)
        device = served.memory.device
        self._processes_of[worker] = device, 0
        self._port.start(worker, alone, self._processes.settings(0, device).building(version, device))
        self._port.build_form(worker, model, version, self._room_bytes)

    def _awaits_shapes(self, served: Served, now_ns: int) -> int:
        """When it may be known what the engine of ``served`` is to be built for; 0: it is, or none can be proven."""
        if not is_for_requests(served.model) or not served.model.golden:
            return 0
        return self._history.settled_ns(served.model) or now_ns + LOOK_NS

    def started(self, event: WorkerStarted) -> None:
        """A process exists, that of a builder or another one."""
        if (known := self._processes_of.get(event.worker)) is not None:
            self._processes_of[event.worker] = known[0], event.pid

    def _spare(self, identity: str, names: tuple[str, ...]) -> None:
        self._kin.pop(identity, None)
        if names:
            self._kin[identity] = names
        self.spared = frozenset(name for kin in self._kin.values() for name in kin)

    def ended(self, event: FormBuilt, now_ns: int) -> Served | None:
        """A form is there, or why not; gives the version whose form is there."""
        if self._building is None or self._building[:2] != (event.worker, event.model):
            return None
        served = self._building[2]
        self._building = None
        self._spare(served.identity, ())
        self._port.stop(event.worker)
        if event.failure is None:
            took_ms = event.ns // 1_000_000
            served.unbuilt = ""
            self._log.event("packed form built", model=served.key, bytes=event.nbytes, took_ms=took_ms)
            return served
        self._leave_out(served, event.failure)
        if event.later:
            self._pace.at(self._queue.put_off(served, now_ns))
        return None

    def _leave_out(self, served: Served, reason: str) -> None:
        """``served`` gets no form: tell why."""
        self._log.event("no packed form", model=served.key, reason=reason)
        self.goes_without(served, reason)

    def goes_without(self, served: Served, reason: str) -> None:
        """``served`` serves without an engine, where its runtime has any: its notes tell why."""
        if served.model.has_engine:
            served.unbuilt = f"it has no engine, and runs without: {reason}"

    def try_later(self, served: Served, reason: str, now_ns: int) -> None:
        """The form of ``served`` is there, and had no room on its device: it is loaded again when there may be some."""
        self.goes_without(served, reason)
        self._pace.at(self._queue.put_off(served, now_ns))

    def told(self, event: FormJudged | ModelProgress, served: Served | None) -> None:
        """A worker says what is to become of a form of ``served``, or how far the one is that it builds."""
        if self._building is not None and self._building[:2] == (event.worker, event.model):
            served = self._building[2]
        if served is None:
            return
        if isinstance(event, ModelProgress):
            done = TOLD_PARTS * event.done_bytes // max(event.total_bytes, 1)
            if self._quarters < done < TOLD_PARTS:
                self._quarters = done
                self._log.event(
                    "the packed form is under way", model=served.key, percent=100 * done // TOLD_PARTS
                )
        elif event.verdict is not FormVerdict.PROVEN:
            self._log.event(f"packed form {event.verdict.value}", model=served.key, reason=event.reason)

    def exited(self, worker: int, detail: str) -> None:
        """A process is gone that belongs to no group."""
        self._processes_of.pop(worker, None)
        if self._building is None or self._building[0] != worker:
            return
        served = self._building[2]
        self._leave_out(served, detail)
        had_kin = served.identity in self._kin
        self._spare(served.identity, ())
        self._building = None
        if had_kin:  # what it was made from may have been the end of it
            self._apart.add(served.identity)
            self._queue.forget(served.identity)
            self._queue.consider(served)
            self._pace.soon()

    def blame(self, served: Served, reason: str, *, known: bool = True) -> bool:
        """A worker died with ``served``, which ran from a form or may have: that is not used again, and the version's
        own files are. True when it is not the version's fault therefore. Where it is not ``known`` to have been that
        form, as others were in the worker, one may be built anew."""
        model = served.model
        if _opened_none(served):
            return False
        if not model.forms or not model.digest:
            return False
        if not refuse_forms(model.forms, model.digest, reason, known=known):
            return False
        self._log.event("packed form dropped", model=served.key, reason=reason)
        return True

    def refuse(self, served: Served, reason: str, *, known: bool = True) -> None:
        """``served`` failed; if it ran from a form, that is not used again; see ``blame``. What is dropped is built
        once in the life of the process, too, so that what keeps failing costs each start of the daemon one build."""
        if served.version.is_packed and not _opened_none(served):
            refuse_forms(served.model.forms, served.model.digest, reason, known=known)

    def stop(self) -> None:
        """The daemon ends. A form can be built anew, and nothing waits for one: what is there of it goes at the next
        start."""
        self._queue.clear()
        self._leave_unbuilt("the daemon ends")

    def _leave_unbuilt(self, reason: str) -> None:
        if self._building is None:
            return
        worker, _, served = self._building
        self._building = None
        self._spare(served.identity, ())
        self._port.kill(worker, ExitCause.STOPPED)
        self._log.event("the packed form is left unbuilt", model=served.key, reason=reason)


def _opened_none(served: Served) -> bool:
    """Whether it can have failed of no engine: it runs from none, and none may be opened."""
    return not served.packed and bool(seal_problem(served.model.runtime))
