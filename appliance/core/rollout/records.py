"""What is remembered of versions across restarts, as data: attempts, proofs, and one line for whatever happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from appliance.core.rollout.version import Artifact
from appliance.domain.assessment import Assessment
from appliance.domain.model import ModelVersion

MADE: Final[Mapping[Artifact, str]] = MappingProxyType({Artifact.PACKED: "#packed"})
"""What follows an identity in the records of what was made of a version."""


class Ending(StrEnum):
    """How the try of a version came out; RECALLED: it served without fault, and the one before it is wanted again;
    POSTPONED: it will be tried once more, later; WITHDRAWN: it served, and nothing of its model is wanted any more."""

    LIVE = "live"
    REFUSED = "refused"
    ROLLED_BACK = "rolled back"
    RECALLED = "recalled"
    ABANDONED = "abandoned"
    GIVEN_UP = "given up"
    POSTPONED = "postponed"
    WITHDRAWN = "withdrawn"


BLAMELESS: Final = frozenset({Ending.ABANDONED, Ending.RECALLED, Ending.WITHDRAWN})
"""Endings that say nothing of the version, only that another was wanted, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of history. ``before`` is the version that served until then (0: none; itself if it did so already and
    was watched), ``after`` the one that serves now (0: none). ``stage`` is how far the version came, ``took_ms`` how
    long the try lasted since its load began. ``at_ms`` is the wall clock's, for people only; ``artifact`` is what the
    version ran from, or was to. ``sequence`` counts the lines of this box, across restarts, so that a reader can go on
    where it ended; 0: it has no number yet."""

    at_ms: int
    name: str
    version: int
    identity: str
    ending: Ending
    before: int = 0
    after: int = 0
    stage: str = ""
    reason: str = ""
    took_ms: int = 0
    artifact: Artifact = Artifact.AS_PACKAGED
    sequence: int = 0


def have_served(changes: Iterable[Change]) -> frozenset[str]:
    """The identities of versions that went live, and did not fail when they were tried after that. They may have served
    for a moment only: a proof takes longer."""
    last = {
        change.identity: change.ending
        for change in changes
        if change.ending not in BLAMELESS and change.artifact is Artifact.AS_PACKAGED
    }
    return frozenset(identity for identity, ending in last.items() if ending is Ending.LIVE)


class Standing(NamedTuple):
    """How a version stands that is not proven: times that it was tried, and why it is not to be tried again (None: it
    may be). ``at_ms`` is when it was last tried or given up, by the wall clock (0: not known); ``again`` counts the
    tries that it was given because nothing else of its model served."""

    tries: int = 0
    rejected: str | None = None
    at_ms: int = 0
    again: int = 0


class Proof(NamedTuple):
    """What a version proved on this box: its assessment, and whether it then served for the watch time."""

    assessment: Assessment | None
    proven: bool


def record_key(identity: str, artifact: Artifact) -> str:
    """Under what name a version has its records, those of what was made of it apart."""
    return identity + MADE.get(artifact, "")


def of_record_key(key: str) -> tuple[str, Artifact]:
    """The identity and the artifact of a version that has its records under ``key``."""
    for artifact, ending in MADE.items():
        if key.endswith(ending):
            return key.removesuffix(ending), artifact
    return key, Artifact.AS_PACKAGED


class RecordsPort(Protocol):
    """What is remembered, to be read. A version is named by its key (see ``record_key``); a proof is of this box."""

    def standing(self, key: str) -> Standing:
        """How it stands."""

    def proof(self, key: str, model: ModelVersion) -> Proof | None:
        """What it proved."""

    def history(self, name: str) -> tuple[Change, ...]:
        """The lines of one model, or of all for "", oldest first, as many as are kept."""
