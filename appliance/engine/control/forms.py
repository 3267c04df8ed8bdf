"""Packed forms of versions: built one at a time by a worker that does nothing else, while nothing is on its way.

A form that was built is taken up as a swap of the version for itself: it has to prove itself like any other. That of a
version that stays is built once in the life of the process, and anew where the version ran from it and cannot any more;
one that fails later is marked, and not used again. One for which there is no room on the disk is tried again after a
pause that doubles. Owner: the rollouts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from appliance.engine.versions.served import Served
from appliance.workers.forms import refuse_forms
from appliance.workers.port import ExitCause, FormBuilt, WorkerPort, WorkerSettings

FIRST_PAUSE_NS: Final = 60_000_000_000
"""The forms of what a version replaced leave with the next look at the store, which is not long in coming."""
LONGEST_PAUSE_NS: Final = 24 * 3600 * 1_000_000_000


class Forms:
    """``settings`` are those of the n-th process; ``take_id`` gives ids never used before; ``wanted`` tells whether a
    version would change over to a form now, ``built`` is told of one whose form is there; ``at`` asks for ``tick`` at a
    time; ``report`` writes a log line."""

    def __init__(
        self,
        *,
        workers: WorkerPort,
        settings: Callable[[int], WorkerSettings],
        take_id: Callable[[], int],
        wanted: Callable[[Served], bool],
        built: Callable[[Served, int], None],
        at: Callable[[int], None],
        report: Callable[..., None],
    ) -> None:
        self._port = workers
        self._settings = settings
        self._take_id = take_id
        self._wanted = wanted
        self._built = built
        self._at = at
        self._report = report
        self._known: set[str] = set()
        self._queue: deque[Served] = deque()
        self._building: tuple[int, int, Served] | None = None
        """Worker, the model's id there, and the version; None: nothing is built now."""
        self._later: list[tuple[int, Served]] = []
        """What had no room, and when to try again."""
        self._pauses_ns: dict[str, int] = {}

    def consider(self, served: Served) -> None:
        """``served`` is proven: a form of it is worth building, unless it runs from one or was built before."""
        model = served.model
        identity = served.identity
        can = model.forms and model.digest and model.weights is not None
        if served.packed:
            self._known.discard(identity)  # should it be lost, it may be built anew
        elif can and identity not in self._known:
            self._known.add(identity)
            self._queue.append(served)

    def forget(self, identity: str) -> None:
        """The version is gone, and its forms may be, or it has no use for one now: if it comes again, so may a form."""
        self._known.discard(identity)
        self._pauses_ns.pop(identity, None)
        self._later = [(at, each) for at, each in self._later if each.identity != identity]

    def tick(self, now_ns: int) -> None:
        """Time passed: what had no room may have it now."""
        due = [served for at, served in self._later if at <= now_ns]
        if due:
            self._later = [(at, served) for at, served in self._later if at > now_ns]
            self._queue.extend(due)

    @property
    def waiting(self) -> bool:
        """Whether something could be built now."""
        return bool(self._queue) and self._building is None

    def build(self) -> None:
        """Build the next one that is still wanted, if there is one: nothing else is on its way."""
        while self._queue and not self._wanted(self._queue[0]):
            self.forget(self._queue.popleft().identity)
        if not self._queue:
            return
        served, worker, model = self._queue.popleft(), self._take_id(), self._take_id()
        self._building = (worker, model, served)
        self._report("building the packed form", model=served.key)
        self._port.start(worker, self._settings(0).building(served.model))
        self._port.build_form(worker, model, served.model)

    def ended(self, event: FormBuilt, now_ns: int) -> None:
        """A form is there, or why not."""
        if self._building is None or self._building[:2] != (event.worker, event.model):
            return
        served = self._building[2]
        self._building = None
        self._port.stop(event.worker)
        if event.failure:
            self._report("no packed form", model=served.key, reason=event.failure)
            if event.later:
                self._put_off(served, now_ns)
        else:
            self._report(
                "packed form built", model=served.key, bytes=event.nbytes, took_ms=event.ns // 1_000_000
            )
            self._built(served, now_ns)

    def _put_off(self, served: Served, now_ns: int) -> None:
        identity = served.identity
        pause_ns = self._pauses_ns.get(identity, FIRST_PAUSE_NS)
        self._pauses_ns[identity] = min(2 * pause_ns, LONGEST_PAUSE_NS)
        self._later.append((now_ns + pause_ns, served))
        self._at(now_ns + pause_ns)

    def exited(self, worker: int, detail: str) -> None:
        """A process is gone that belongs to no group."""
        if self._building is not None and self._building[0] == worker:
            self._report("no packed form", model=self._building[2].key, reason=detail)
            self._building = None

    def blame(self, served: Served, reason: str) -> bool:
        """A worker died with ``served``, which ran from a form or may have: that is not used again, and the version's
        own files are. True when it is not the version's fault therefore."""
        model = served.model
        if not model.forms or not model.digest or not refuse_forms(model.forms, model.digest, reason):
            return False
        self._report("packed form dropped", model=served.key, reason=reason)
        return True

    def refuse(self, served: Served, reason: str) -> None:
        """``served`` failed; if it ran from a form, that is not used again."""
        if served.version.is_packed:
            refuse_forms(served.model.forms, served.model.digest, reason)

    def stop(self) -> None:
        """The daemon ends. A form can be built anew, and nothing waits for one: what is there of it goes at the next
        start."""
        self._queue.clear()
        self._later.clear()
        if self._building is not None:
            worker, _, served = self._building
            self._building = None
            self._port.kill(worker, ExitCause.STOPPED)
            self._report("the packed form is left unbuilt", model=served.key, reason="the daemon ends")
