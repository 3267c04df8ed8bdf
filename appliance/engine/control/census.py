"""Every version that is here: by its id, on its way to a name, or leaving. Owner: the roster."""

from __future__ import annotations

from appliance.core.rollout.version import Artifact
from appliance.domain.model import ModelVersion, VersionState
from appliance.engine.versions.routes import Served
from appliance.engine.versions.version_status import IS_LOADING, ON_TRIAL, STILL_PREVIOUS

Key = tuple[str, int]


class Census:
    """``served`` are all that have, or are about to get, a worker; ``incoming`` those among them whose name an older
    file serves meanwhile, ``failed`` those that were, and were given up; ``setbacks`` say why an older file serves
    although another is wanted, as it follows STILL_PREVIOUS; ``leaving`` are those that wait for their last requests.
    ``troubled`` says of models what is wrong with their files, ``notes`` of versions what is to be said while they
    serve as they are wanted."""

    def __init__(self) -> None:
        self.served: dict[int, Served] = {}
        self.incoming: dict[Key, Served] = {}
        self.failed: dict[Key, Served] = {}
        self.setbacks: dict[Key, str] = {}
        self.leaving: list[Served] = []
        self.troubled: dict[str, str] = {}
        self.notes: dict[Key, str] = {}
        self._next_id = 1

    def take_id(self) -> int:
        """An id never used before: of a version, a group or a worker."""
        self._next_id += 1
        return self._next_id

    def is_new(self, model: int) -> bool:
        """Whether the version with that id has not been open yet."""
        return model in self.served and _is_loading(self.served[model])

    @property
    def settled(self) -> bool:
        """Whether every version that is wanted serves, is on trial, waits for memory or was given up."""
        return not any(_is_loading(served) and not served.deferred for served in self.served.values())

    def settled_of(self, name: str) -> bool:
        """Whether that holds for every version of ``name``; one that waits for memory has to say why."""
        return not any(
            served.model.name == name and _is_loading(served) and not served.reason
            for served in self.served.values()
        )

    def held(self) -> list[ModelVersion]:
        """All that is here, seen or not: two packages that say to be the same version are two."""
        return [served.model for served in list(self.served.values())]

    def knows(self, identity: str) -> bool:
        """Whether a version is here that is ``identity``, or runs from a form of it."""
        return any(served.identity == identity for served in self.served.values())

    def reason_of(self, served: Served) -> str:
        """Why what stands in the routes is not READY, or what keeps it from serving the files that were asked for last,
        or its note. The form that a version is to run from is no file that was asked for."""
        if served.state is not VersionState.READY:
            return served.reason
        name, key = served.model.name, (served.model.name, served.model.version)
        new = self.incoming.get(key)
        if new is not None and new.artifact is Artifact.AS_PACKAGED:
            return f"{STILL_PREVIOUS} {new.reason or (ON_TRIAL if new.opened else IS_LOADING)}"
        if setback := self.setbacks.get(key):
            return f"{STILL_PREVIOUS} {setback}"
        if served.retiring and (trouble := self.troubled.get(name)):
            return f"serving what was loaded before; the files now have problems: {trouble}"
        return self.notes.get(key, "")

    def key_of(self, model: int) -> str | None:
        """What the version with that id is called."""
        served = self.served.get(model)
        return served.key if served is not None else None


def _is_loading(served: Served) -> bool:
    return served.state is VersionState.LOADING and not served.opened
