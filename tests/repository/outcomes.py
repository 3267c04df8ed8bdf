"""Short ways to say what a scan of one model must have come to."""

from __future__ import annotations

from appliance.domain.errors import Problem
from appliance.domain.model import ModelVersion
from appliance.repository.directory import RepositoryScan


def served(found: RepositoryScan) -> ModelVersion:
    """The only version, which must be servable."""
    assert found.problems == ()
    (version,) = found.servable
    return version.model


def only_problem(found: RepositoryScan) -> Problem:
    """The only problem, which must break everything."""
    assert found.servable == ()
    (problem,) = found.problems
    return problem
