"""The ``appliance model`` commands: which there are. Each is a module of ``appliance/cli/model/``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from appliance.cli.command_table import CommandTable

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "keygen": "make a key that signs packages",
    }
)
TABLE: Final = CommandTable(
    program="appliance model",
    about="Model packages: one signed file per version of a model.",
    package="appliance.cli.model",
    commands=COMMANDS,
    groups=MappingProxyType({}),
)
