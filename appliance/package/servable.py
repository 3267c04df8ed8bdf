"""Whether what an installed version's files say is so, and whether a 'serve' could serve it: asked before the catalog
names it."""

from __future__ import annotations

from pathlib import Path

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import PackageInvalid, Problem
from appliance.domain.manifest import Manifest
from appliance.package.conformity import conformity_problems
from appliance.repository.model_directory import read_model_directory


def check_servable(root: Path, manifest: Manifest, repository: RepositoryConfig) -> None:
    """Raise PackageInvalid with everything that keeps the version, whose view is ``root``, from being served here, and
    everything that its manifest says and is not so."""
    place = root.resolve()
    problems = list(conformity_problems(place, manifest, repository))
    reading = read_model_directory(str(place), manifest.name, repository, only=manifest.version)
    problems += [problem for broken in (reading.broken if reading else ()) for problem in broken.problems]
    if problems:
        raise PackageInvalid(dict.fromkeys(problems))
    if reading is None or not reading.servable:
        raise PackageInvalid([Problem(file=manifest.key, key="", text="holds no model that could be served")])
