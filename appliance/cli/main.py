"""The ``appliance`` command: which sub-commands there are.

Start-up is part of the manners of a command line, so nothing is imported before it is known to be needed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from appliance.cli.command_table import CommandTable

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "serve": "serve the models of a directory over gRPC and HTTP",
        "infer": "send one request to a model and show the answer",
        "status": "show what a running appliance serves",
        "top": "watch rates, latencies, queues and workers",
        "trace": "show where the time of one traced request went",
        "model": "make, check and install model packages",
        "store": "look after the store of model versions",
        "config": "check a configuration file, or show the one in force",
        "version": "show the version",
    }
)
TABLE: Final = CommandTable(
    program="appliance",
    about="Edge inference appliance.",
    package="appliance.cli",
    commands=COMMANDS,
    groups=MappingProxyType({"model": "appliance.cli.model_command", "store": "appliance.cli.store_command"}),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit status."""
    return TABLE.run(list(sys.argv[1:] if arguments is None else arguments))
