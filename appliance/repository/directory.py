"""A directory of models, read once: ``NAME/VERSION/model.onnx`` with or without ``NAME/config.pbtxt``.

Rules kept here: everything is looked at before anything is served, one broken model never hides another, all
problems of all models come back together. Entries that are no models (neither a config.pbtxt nor a numbered
directory inside) and names that begin with "." or "_" are passed over. Reads; never writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ConfigInvalid, Problem
from appliance.repository.model_directory import (
    BrokenVersion,
    ModelReading,
    ServableVersion,
    printable,
    read_model_directory,
)

__all__ = ["BrokenVersion", "RepositoryScan", "ServableVersion", "scan"]

MODELS_MAX: Final = 10_000
"""Model directories: all are listed on every look, and ten thousand are past what one box holds in memory."""
_PASSED_OVER: Final = (".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryScan:
    """A repository at one moment, by model name and ascending version. ``notes`` tell of settings that are
    accepted without effect; ``generation`` is that of the store's catalog that asked for them (0: nothing counts), and
    ``asked_ms`` by name and version when it did: any change of that is one more request for a version. ``orders`` are
    the versions that an operator wants whatever serves now, by name and version."""

    servable: tuple[ServableVersion, ...]
    broken: tuple[BrokenVersion, ...]
    notes: tuple[Problem, ...]
    generation: int = 0
    asked_ms: Mapping[tuple[str, int], int] = field(default_factory=dict)
    orders: frozenset[tuple[str, int]] = frozenset()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that is wrong, each problem once however many versions it breaks."""
        return tuple(dict.fromkeys(problem for broken in self.broken for problem in broken.problems))


def scan(root: Path, config: RepositoryConfig) -> RepositoryScan:
    """All models under ``root``. Raises ConfigInvalid when the directory itself cannot be read or holds too
    many."""
    real, names = listing(root)
    return merged(read_model_directory(real, name, config) for name in names)


def merged(readings: Iterable[ModelReading | None]) -> RepositoryScan:
    """All of these models as one scan; None is no model."""
    found = [reading for reading in readings if reading is not None]
    return RepositoryScan(
        servable=tuple(version for reading in found for version in reading.servable),
        broken=tuple(version for reading in found for version in reading.broken),
        notes=tuple(note for reading in found for note in reading.notes),
    )


def listing(root: Path) -> tuple[str, list[str]]:
    """The repository's real path and the names of what may be a model in it. Raises ConfigInvalid as ``scan``."""
    try:
        real = os.path.realpath(root, strict=True)
        with os.scandir(real) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(_PASSED_OVER) and (entry.is_symlink() or entry.is_dir())
            )
    except OSError as error:
        text = f"cannot be read: {error.strerror}; give a directory of models"
        raise ConfigInvalid([Problem(file=printable(str(root)), key="", text=text)]) from error
    if len(names) > MODELS_MAX:
        text = f"holds {len(names)} directories; the limit is {MODELS_MAX}"
        raise ConfigInvalid([Problem(file=printable(str(root)), key="", text=text)])
    return real, names
