"""Versions that are to blame for a worker's end: how often, and whether it was their packed form. Owner: the
rollouts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from appliance.core.processes.restart import Restarts
from appliance.core.rollout import events as told
from appliance.core.rollout.attempt import Attempt
from appliance.domain.model import interchangeable
from appliance.engine.control.forms import Forms
from appliance.engine.environment import Pace
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Served
from appliance.workers.port import WorkerExited


class VersionBlame:
    """Implements ``Versions`` of ``requests/crashes``, and gives what the rollout is to be told. ``served`` are the
    versions that are here, ``attempts`` those of versions on their way, by id."""

    def __init__(
        self,
        *,
        served: Mapping[int, Served],
        routes: Routes,
        restarts: Restarts,
        forms: Forms,
        attempts: Mapping[int, Attempt],
        pace: Pace,
    ) -> None:
        self._served = served
        self._routes = routes
        self._restarts = restarts
        self._forms = forms
        self._attempts = attempts
        self._pace = pace
        self._waiting: deque[tuple[Served, str, bool]] = deque()
        self._doubted: set[int] = set()
        """Ids of versions of which it is not known whether their worker ended because of them."""
        self._events: list[told.Event] = []

    def served(self, model: int) -> Served | None:
        """The version with model id ``model``, if it is here."""
        return self._served.get(model)

    def replaceable(self, served: Served) -> bool:
        """Whether what it replaces, or shares requests with, could serve instead, and cannot be asked for the same."""
        attempt, other = self._attempts.get(served.id), self._routes.other(served)
        models = [attempt.before.model] if attempt is not None and attempt.before is not None else []
        models += [other.model] if other is not None else []
        return bool(models) and not any(interchangeable(served.model, model) for model in models)

    def blame(self, served: Served, detail: str, *, repeated: bool) -> None:
        """A worker ended because of a version, ``repeated``: once too often. Taken in with the next turn."""
        self._waiting.append((served, detail, repeated))
        self._pace.soon()

    def form_died(self, served: Served, event: WorkerExited, now_ns: int) -> bool:
        """A worker ended while it ran a version: whether that is tried without its packed form now, which was on trial
        or has had that once too often. A form is worth no more than speed, so that it goes before it is known which
        request it was."""
        if not served.packed or served.version.is_packed:
            return False
        repeated = self._restarts.crashed(served.id, now_ns)
        told_of = self._blamed(served, event.words, repeated=repeated)
        dropped = isinstance(told_of, told.FormDropped)
        if dropped:
            self._events.append(told_of)
        return dropped

    def loaded(
        self, served: Served, event: WorkerExited, now_ns: int, *, quick: bool, known: bool = True
    ) -> None:
        """A worker ended while it loaded a version; ``quick``: with a session that runs from no form; ``known``:
        nothing else can have ended it."""
        if quick:
            self._events.append(told.FormDropped(served.id, refused=False))
        self._doubted = {model for model in self._doubted if model in self._served} - {served.id}
        if not known:
            self._doubted.add(served.id)
        repeated = self._restarts.crashed(served.id, now_ns)
        self._events.append(self._blamed(served, event.words, repeated=repeated, loading=not quick))

    def knows(self, served: Served) -> bool:
        """Whether what ended the worker that loaded a version last, if anything did, is known to have been that
        version."""
        return served.id not in self._doubted

    def take(self, now_ns: int) -> list[told.Event]:
        """What the rollout is to be told."""
        while self._waiting:
            served, detail, repeated = self._waiting.popleft()
            repeated |= self._restarts.crashed(served.id, now_ns)
            self._events.append(self._blamed(served, detail, repeated=repeated))
        events, self._events = self._events, []
        return events

    def _blamed(self, culprit: Served, detail: str, *, repeated: bool, loading: bool = False) -> told.Event:
        """What a packed form did costs the form first: at once while it loads or the version is on trial, else when
        that would be given up. A version that changes over to its form has a trial of its own."""
        trying = culprit.id in self._attempts
        changing = trying and culprit.version.is_packed
        formed = not changing and (loading or (culprit.packed and (repeated or trying)))
        known = not loading or self.knows(culprit)
        if formed and self._forms.blame(culprit, detail, known=known):
            self._restarts.forgive(culprit.id)
            return told.FormDropped(culprit.id, refused=known)
        return told.Crashed(culprit.id, detail, repeated)
