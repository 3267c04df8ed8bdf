"""What a directory of models was found to hold: ``NAME/VERSION/model.onnx`` with or without ``NAME/config.pbtxt``.

Values only. Everything is looked at before anything is served, one broken model never hides another, all problems of
all models come back together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from appliance.domain.device_wish import ON_CPU, DeviceWish
from appliance.domain.errors import Problem
from appliance.domain.model import ModelVersion

REASON_CHARACTERS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ServableVersion:
    """A version to serve. ``fingerprint`` changes when a file that the worker reads does; everything else
    that matters is in ``model``."""

    model: ModelVersion
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenVersion:
    """A version that cannot be served; ``version`` is "" when the problems concern the whole model. ``device`` is what
    it asks for, the processor where that cannot be told."""

    name: str
    version: str
    problems: tuple[Problem, ...]
    device: DeviceWish = ON_CPU

    @property
    def reason(self) -> str:
        """The problems in one line, as far as they fit in one; the log has each. Files are named from the version's
        directory."""
        said = "; ".join(str(replace(each, file=self._from_here(each.file))) for each in self.problems)
        return said if len(said) <= REASON_CHARACTERS_MAX else f"{said[:REASON_CHARACTERS_MAX]}..."

    def _from_here(self, file: str) -> str:
        for place in (f"{self.name}/{self.version}", self.name):
            if file == place:
                return ""
            if file.startswith(f"{place}/"):
                return file.removeprefix(f"{place}/")
        return file


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryScan:
    """What was read of a repository at one moment, or of one model in it, by name and ascending version. ``notes`` tell
    of settings that are accepted without effect; ``auto`` is whether KIND_AUTO says where any of them runs.
    ``generation`` is that of the store's catalog that asked for them (0: nothing counts), and ``asked_ms`` by name and
    version when it did: any change of that is one more request for a version. ``orders`` are the versions that an
    operator wants whatever serves now, by name and version, ``interface_changes`` those of which clients change along;
    ``uninstalled`` are the digests of packages that may still serve, and are not to any more."""

    servable: tuple[ServableVersion, ...] = ()
    broken: tuple[BrokenVersion, ...] = ()
    notes: tuple[Problem, ...] = ()
    auto: bool = False
    generation: int = 0
    asked_ms: Mapping[tuple[str, int], int] = field(default_factory=dict)
    orders: frozenset[tuple[str, int]] = frozenset()
    interface_changes: frozenset[tuple[str, int]] = frozenset()
    uninstalled: frozenset[str] = frozenset()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that is wrong, each problem once however many versions it breaks."""
        return tuple(dict.fromkeys(problem for broken in self.broken for problem in broken.problems))


def merged(readings: Iterable[RepositoryScan | None]) -> RepositoryScan:
    """All of these models as one scan; None is no model."""
    found = [reading for reading in readings if reading is not None]
    return RepositoryScan(
        servable=tuple(version for reading in found for version in reading.servable),
        broken=tuple(version for reading in found for version in reading.broken),
        notes=tuple(note for reading in found for note in reading.notes),
        auto=any(reading.auto for reading in found),
    )
