"""Names and versions to what serves them now. One owner: the engine.

Keeps every version the repository ever asked for with its state and reason, answers ``resolve``, and counts a
generation up whenever an answer may have changed, so that front ends can cache plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from appliance.core.rollout.catalog import CatalogProblem
from appliance.core.rollout.phase import ANSWERING, SERVING, Phase
from appliance.domain.errors import InvalidRequest, NotServed, UnknownModel
from appliance.domain.model import VersionState
from appliance.engine.port import IndexEntry
from appliance.engine.versions.served import Served, TrafficSplit
from appliance.engine.versions.wording import Said

MAX_VERSION = (1 << 63) - 1
WHERE_WHY: Final = "the repository index says why"


def not_ready(name: str, version: int, why: str = "") -> NotServed:
    """The error of a request for a version that does not serve now; ``why`` follows its words."""
    error = NotServed(f"Request for unknown model: '{name}' version {version} is not at ready state{why}")
    error.model = (name, version)
    return error


def late_text(model_name: str) -> str:
    """What a request is told that cannot be served in time, by the engine or by the front end."""
    return f"request for model '{model_name}' cannot be served before its deadline"


class _Meaning(NamedTuple):
    """Where requests for a name go: for no particular version, and for each that answers them; which of them are led
    elsewhere."""

    default: Served | None
    answering: tuple[Served, ...]
    led: tuple[TrafficSplit | None, ...]


NOTHING: Final = _Meaning(None, (), ())


class Routes:
    """The table of names. Each change gives all versions that served or serve a name whose requests go elsewhere than
    before."""

    def __init__(self) -> None:
        self._meanings: dict[str, _Meaning] = {}
        self._names: dict[str, dict[int, Served]] = {}
        self._problems: dict[tuple[str, str], CatalogProblem] = {}
        self._aside: dict[tuple[str, str], CatalogProblem] = {}
        self._default: dict[str, Served] = {}
        self.generation = 0

    def touch(self) -> list[Served]:
        """Something changed: forget cached answers, and find out which requests go elsewhere now."""
        self.generation += 1
        self._default.clear()
        before, self._meanings = self._meanings, {name: self._meaning(name) for name in self._names}
        moved: list[Served] = []
        for name in before.keys() | self._meanings.keys():
            then, now = before.get(name, NOTHING), self._meanings.get(name, NOTHING)
            if then != now:
                moved += dict.fromkeys((*then.answering, *now.answering))
        return moved

    def _meaning(self, name: str) -> _Meaning:
        answering = tuple(self._in(name, ANSWERING))
        return _Meaning(self.current(name), answering, tuple(served.trial.split for served in answering))

    def _in(self, name: str, phases: frozenset[Phase]) -> list[Served]:
        there = self._names.get(name, {}).values()
        return [served for served in there if served.phase in phases and not served.barred]

    def put(self, served: Served) -> list[Served]:
        """Make ``served`` the one for its name and version."""
        self._names.setdefault(served.model.name, {})[served.model.version] = served
        return self.touch()

    def remove(self, served: Served) -> list[Served]:
        """Forget ``served`` unless another took its place."""
        versions = self._names.get(served.model.name, {})
        if versions.get(served.model.version) is not served:
            return []
        del versions[served.model.version]
        if not versions:
            del self._names[served.model.name]
        return self.touch()

    def set_problems(self, problems: Iterable[CatalogProblem]) -> list[Served]:
        """Replace what the repository says it cannot offer."""
        self._problems = {(each.name, each.version): each for each in problems}
        return self.touch()

    def set_aside(self, aside: Iterable[CatalogProblem]) -> None:
        """Replace what is told besides, as unavailable."""
        self._aside = {(each.name, each.version): each for each in aside}

    def _is_broken(self, name: str) -> bool:
        return any(name == each for each, _ in self._problems)

    def is_aside(self, name: str) -> bool:
        """Whether something of that name is only told."""
        return any(name == each for each, _ in self._aside)

    def find(self, name: str, version: int) -> Served | None:
        """The entry for a name and version, in whatever state."""
        return self._names.get(name, {}).get(version)

    def all(self) -> Iterator[Served]:
        """Every entry, by name and version."""
        for name in sorted(self._names):
            versions = self._names[name]
            for version in sorted(versions):
                yield versions[version]

    def of(self, name: str) -> tuple[Served, ...]:
        """Entries of one name, ascending, none where it is only told of; raises UnknownModel when nothing of that name
        is known."""
        if name not in self._names and not self._is_broken(name) and not self.is_aside(name):
            raise UnknownModel(f"Request for unknown model: '{name}' is not found")
        versions = self._names.get(name, {})
        return tuple(versions[version] for version in sorted(versions))

    def resolve(self, name: str, version: str) -> Served:
        """What serves ``name`` now; raises UnknownModel, NotServed or InvalidRequest."""
        if not version:
            served = self._default.get(name)
            if served is None:
                served = self._default[name] = self._latest(name)
            return served
        self.of(name)
        number = _parse_version(version)
        found = self._names.get(name, {}).get(number)
        if found is None:
            told = self._problems.keys() | self._aside.keys()
            if (name, version) in told or (name, "") in told:
                broken = (name, version) in self._problems or (name, "") in self._problems
                raise not_ready(name, number, f"; {WHERE_WHY}" if broken else "")
            raise UnknownModel(f"Request for unknown model: '{name}' version {number} is not found")
        if found.phase not in ANSWERING or found.barred:
            failed = f"; it failed, and {WHERE_WHY}" if found.phase is Phase.FAILED else ""
            raise not_ready(name, number, _waiting([found]) or failed)
        return found

    def current(self, name: str) -> Served | None:
        """What serves requests for ``name`` that ask for no version; None: nothing."""
        serving = self._in(name, SERVING)
        current = [served for served in serving if not served.version.retiring] or serving
        return max(current, key=lambda served: served.model.version, default=None)

    def other(self, served: Served) -> Served | None:
        """What else serves under the name of ``served``; None: nothing."""
        others = [each for each in self._in(served.model.name, SERVING) if each is not served]
        return max(others, key=lambda each: each.model.version, default=None)

    def _latest(self, name: str) -> Served:
        known = self.of(name)
        current = self.current(name)
        if current is None:
            nothing = f"Request for unknown model: '{name}' has no available versions"
            # What was unloaded: to come back soon would be for nothing.
            if not known and not self._is_broken(name):
                raise UnknownModel(nothing)
            waiting = _waiting(known)
            error = NotServed(f"{nothing}{waiting or self._failed(name, known)}")
            error.model = (name, known[-1].model.version if known else 0)
            raise error
        return current

    def _failed(self, name: str, known: Sequence[Served]) -> str:
        """That nothing of the model can serve, in the words behind an error: not why, which may be long, and tell of
        files."""
        failed = [each.model.version for each in known if each.phase is Phase.FAILED]
        if failed:
            return f"; version {failed[-1]} failed, and {WHERE_WHY}"
        return f"; {WHERE_WHY}" if self._is_broken(name) else ""

    def index(self, ready_only: bool, said: Mapping[int, Said]) -> tuple[IndexEntry, ...]:
        """All versions known, by name and version. ``said``: what there is to say of each, by its id."""
        entries = [
            IndexEntry(
                name=served.model.name,
                version=str(served.model.version),
                state=served.state,
                reason=said[served.id].reason,
                outlook=said[served.id].outlook,
                waiting=said[served.id].waiting,
            )
            for served in self.all()
        ]
        known = {(entry.name, entry.version) for entry in entries}
        entries.extend(
            IndexEntry(
                name=name,
                version=version,
                state=VersionState.UNAVAILABLE,
                reason=each.reason,
                device=each.device,
            )
            for (name, version), each in {**self._aside, **self._problems}.items()
            if (name, version) not in known
        )
        entries.sort(key=lambda entry: (entry.name, len(entry.version), entry.version))
        return tuple(entry for entry in entries if not ready_only or entry.state is VersionState.READY)


def _waiting(versions: Iterable[Served]) -> str:
    """Why those do not serve that could, in the words behind an error."""
    known = [
        each
        for each in versions
        if each.barred or (each.state is VersionState.LOADING and each.version.waiting is not None)
    ]
    return "".join(f"; version {each.model.version} {each.reason}" for each in known)


def _parse_version(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_VERSION:
        return int(text)
    raise InvalidRequest(
        f"failed to get model version from specified version string '{text[:64]}': "
        "expected a whole number that fits in 63 bits"
    )
