"""The ``appliance store`` commands: which there are. Each is a module of ``appliance/cli/store/``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from appliance.cli.command_table import CommandTable

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "check": "read everything again and tell what is damaged",
        "gc": "remove what no installed or running version needs",
        "usage": "show what takes how much space",
        "scrub": "look for bit rot in the background",
    }
)
TABLE: Final = CommandTable(
    program="appliance store",
    about="The store of model versions in a state directory.",
    package="appliance.cli.store",
    commands=COMMANDS,
    groups=MappingProxyType({}),
)
