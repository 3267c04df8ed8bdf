"""Every version that is here: by its id, on its way to a name, or leaving. Owner: the roster."""

from __future__ import annotations

from appliance.core.rollout.phase import SERVING, UNLOADED
from appliance.core.rollout.reasons import Outlook, Refusal
from appliance.core.rollout.version import Artifact
from appliance.domain.model import ModelVersion
from appliance.engine.versions.routes import Served
from appliance.engine.versions.wording import (
    STILL_PREVIOUS,
    Said,
    given_by_hand,
    setback_text,
    wait_text,
    waiting_word,
)

Key = tuple[str, int]


class Census:
    """``served`` are all that have, or are about to get, a worker; ``incoming`` those among them whose name an older
    file serves meanwhile, ``failed`` those that were, and were given up; ``setbacks`` say why an older file serves
    although another is wanted; ``leaving`` are those that wait for their last requests. ``troubled`` says of models
    what is wrong with their files, ``by_hand`` are the versions that somebody gave."""

    def __init__(self) -> None:
        self.served: dict[int, Served] = {}
        self.incoming: dict[Key, Served] = {}
        self.failed: dict[Key, Served] = {}
        self.setbacks: dict[Key, Refusal] = {}
        self.leaving: list[Served] = []
        self.troubled: dict[str, str] = {}
        self.by_hand: frozenset[Key] = frozenset()
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
            served.model.name == name and _is_loading(served) and served.waiting is None
            for served in self.served.values()
        )

    def held(self) -> list[ModelVersion]:
        """All that is here, seen or not: two packages that say to be the same version are two."""
        return [served.model for served in list(self.served.values())]

    def knows(self, identity: str) -> bool:
        """Whether a version is here that is ``identity``, or runs from a form of it."""
        return any(served.identity == identity for served in self.served.values())

    def said_of(self, served: Served) -> Said:
        """Why what stands in the routes is not READY, or what keeps it from serving the files that were asked for last.
        The form that a version is to run from is no file that was asked for."""
        if served.phase not in SERVING:
            return Said(served.reason, waiting=waiting_word(served.waiting))
        name, key = served.model.name, (served.model.name, served.model.version)
        new = self.incoming.get(key)
        if new is not None and new.artifact is Artifact.AS_PACKAGED:
            return _said_beside(new)
        if setback := self.setbacks.get(key):
            return Said(f"{STILL_PREVIOUS} {setback_text(setback)}", Outlook.SUCCESSOR_FAILED)
        if served.retiring and (trouble := self.troubled.get(name)):
            reason = f"serving what was loaded before; the files now have problems: {trouble}"
            return Said(reason, Outlook.FILES_BROKEN)
        return Said(given_by_hand(name), Outlook.BY_HAND) if key in self.by_hand else Said()

    def key_of(self, model: int) -> str | None:
        """What the version with that id is called."""
        served = self.served.get(model)
        return served.key if served is not None else None


def _is_loading(served: Served) -> bool:
    return served.phase in UNLOADED


def _said_beside(new: Served) -> Said:
    """What a version serves meanwhile for which ``new`` is on its way."""
    if new.waiting is not None:
        does, outlook = wait_text(new.waiting), Outlook.SUCCESSOR_WAITS
    elif new.opened:
        does, outlook = "is on trial", Outlook.SUCCESSOR_ON_TRIAL
    else:
        does, outlook = "is loading", Outlook.SUCCESSOR_LOADS
    return Said(f"{STILL_PREVIOUS} {does}", outlook, waiting_word(new.waiting))
