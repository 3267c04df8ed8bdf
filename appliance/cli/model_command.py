"""The ``appliance model`` commands: which there are. Each is a module of ``appliance/cli/model/``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from appliance.cli.command_table import CommandTable

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pack": "pack one version of a model into one file",
        "verify": "check packages and tell all that is wrong with them",
        "inspect": "show what a package holds",
        "import": "make a model directory from what other tools leave behind",
        "keygen": "make a key that signs packages",
        "sign": "add a signature to a package",
        "install": "put packages into the store and have them served",
        "uninstall": "take a version, or all of a model, out of the store",
        "want": "have an installed version served",
        "list": "show what is installed and served: state, memory, last use, costs",
        "history": "show what happened to versions here, and why",
        "rollback": "have the version served again that was wanted before",
        "trial": "let an installed version prove itself on real requests",
        "load": "have a running appliance load a model, by its control socket",
        "unload": "have a running appliance serve nothing of a model, by its control socket",
        "pin": "keep a version in the store, wanted or not",
        "unpin": "let a version be evicted or uninstalled again",
        "golden": "make a golden set: requests with the answers that are right",
        "bench": "measure a model: load, first answer, runs by batch size, memory",
        "optimise": "make INT8 and FP16 variants and hold them against the original",
    }
)
TABLE: Final = CommandTable(
    program="appliance model",
    about="Model packages: one signed file per version of a model.",
    package="appliance.cli.model",
    commands=COMMANDS,
    groups=MappingProxyType({}),
)
