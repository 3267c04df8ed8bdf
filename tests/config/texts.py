"""Configurations that are no files, read as those are: paths are left as they stand, as nothing is beside a text."""

from __future__ import annotations

import tomllib

from appliance.config.former import FORMER
from appliance.config.tree import ApplianceConfig
from appliance.domain.binding import bind


def parse(text: str) -> ApplianceConfig:
    """The tree that TOML says. Raises ConfigInvalid with everything that is wrong."""
    return bind(ApplianceConfig, tomllib.loads(text), "text", checked=False, former=FORMER)
