"""A directory of models, read once and without its daemon."""

from __future__ import annotations

from pathlib import Path

from appliance.config.repository import RepositoryConfig
from appliance.repository.directory import RepositoryScan
from appliance.sources.directory import DirectorySource


def scan(root: Path, config: RepositoryConfig) -> RepositoryScan:
    """All models under ``root``. Raises ConfigInvalid when the directory itself cannot be read or holds too many."""
    return DirectorySource(root, config).read()
