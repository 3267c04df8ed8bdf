"""What a version is made of, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from appliance.core.rollout.phase import Phase, advance
from appliance.core.rollout.reasons import Setback, Untried, WaitReason
from appliance.domain.assessment import Assessment
from appliance.domain.model import ModelVersion


class Artifact(StrEnum):
    """What a version runs from: its files as they came, or what was made of them on this box. Blame for a made one is
    not the version's."""

    AS_PACKAGED = "as packaged"
    PACKED = "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpec:
    """``id`` is the version's towards scheduler and workers; ``fingerprint`` and ``identity`` are those of its
    CatalogVersion; ``moved``: it is what serves already, for another device."""

    id: int
    model: ModelVersion
    fingerprint: str
    identity: str = ""
    artifact: Artifact = Artifact.AS_PACKAGED
    moved: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Version:
    """A version that is here, or was."""

    spec: VersionSpec
    phase: Phase = Phase.QUEUED
    waiting: WaitReason | None = None
    """What it waits for before it can serve."""
    setback: Setback | None = None
    """Why it never will."""
    retiring: bool = False
    """It serves until what replaces it does."""
    deferred: bool = False
    """There was no memory to load it with the first ones."""
    assessment: Assessment | None = None
    """What it proved, here or earlier."""
    seeds: tuple[tuple[int, int], ...] = ()
    """Rows, and how long runs of so many took when it was loaded."""
    packed: bool = False
    """It runs from a form that was built on this box."""
    untried: Untried | None = None
    """Why it went live without the trial that is configured; None where it did not."""

    def enter(self, phase: Phase) -> None:
        """Go on to ``phase``; nothing else changes it."""
        self.phase = advance(self.phase, phase)

    def refresh(self, fingerprint: str) -> None:
        """Its files were replaced by the same."""
        self.spec = replace(self.spec, fingerprint=fingerprint)

    def drop_form(self, *, refused: bool) -> None:
        """It runs from no packed form; ``refused``: nor will it."""
        self.packed = False
        if refused:
            self.spec = replace(self.spec, artifact=Artifact.AS_PACKAGED)

    @property
    def id(self) -> int:
        """See VersionSpec."""
        return self.spec.id

    @property
    def model(self) -> ModelVersion:
        """See VersionSpec."""
        return self.spec.model

    @property
    def identity(self) -> str:
        """See VersionSpec."""
        return self.spec.identity

    @property
    def slot(self) -> tuple[str, int]:
        """Its name and number, which other files may have, too."""
        return self.spec.model.name, self.spec.model.version

    @property
    def is_packed(self) -> bool:
        """Whether it is there to run from its packed form."""
        return self.spec.artifact is Artifact.PACKED

    @property
    def is_copy(self) -> bool:
        """Whether it is what serves already, in another form or for another device: if it fails, that one has not."""
        return self.is_packed or self.spec.moved

    @property
    def is_held(self) -> bool:
        """Whether its answers were compared with golden ones."""
        return self.assessment is not None and self.assessment.cases > 0

    @property
    def run_times(self) -> dict[int, int]:
        """How long runs take by their rows, in ns, as far as that was measured when it was loaded."""
        return {**dict(self.seeds), **run_time_of(self.assessment)}


def run_time_of(proof: Assessment | None) -> dict[int, int]:
    """How long runs take of as many rows as were assessed, in ns; nothing where they were not."""
    return {proof.rows: proof.p50_ns} if proof is not None and proof.rows and proof.p50_ns else {}
