"""The ``appliance`` command: which commands there are, and where each of them is.

Start-up is part of the manners of a command line, so nothing is imported before it is known to be needed. The tools
that make and measure models are named here and imported nowhere: a box that only serves needs none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from appliance.cli.command_table import CommandTable, Entry

MODEL: Final = CommandTable(
    program="appliance model",
    about="Model packages: one signed file per version of a model.",
    commands=MappingProxyType(
        {
            "pack": Entry("pack one version of a model into one file", "appliance.tools.commands.pack"),
            "verify": Entry(
                "check packages and tell all that is wrong with them", "appliance.cli.model.verify"
            ),
            "inspect": Entry("show what a package holds", "appliance.cli.model.inspect"),
            "import": Entry(
                "make a model directory from what other tools leave behind",
                "appliance.tools.commands.import_",
            ),
            "keygen": Entry("make a key that signs packages", "appliance.cli.model.sign:KEYGEN"),
            "sign": Entry("add a signature to a package", "appliance.cli.model.sign:SIGN"),
            "install": Entry(
                "put packages into the store and have them served", "appliance.cli.model.install"
            ),
            "uninstall": Entry(
                "take a version, or all of a model, out of the store",
                "appliance.cli.model.retention:UNINSTALL",
            ),
            "want": Entry("have an installed version served", "appliance.cli.model.want:WANT"),
            "list": Entry(
                "show what is installed and served: state, memory, last use, costs",
                "appliance.cli.model.list",
            ),
            "history": Entry("show what happened to versions here, and why", "appliance.cli.model.history"),
            "rollback": Entry(
                "have the version served again that was wanted before", "appliance.cli.model.rollout:ROLLBACK"
            ),
            "trial": Entry(
                "let an installed version prove itself on real requests", "appliance.cli.model.rollout:TRIAL"
            ),
            "load": Entry(
                "have a running appliance load a model, by its control socket",
                "appliance.cli.model.load:LOAD",
            ),
            "unload": Entry(
                "have a running appliance serve nothing of a model, by its control socket",
                "appliance.cli.model.load:UNLOAD",
            ),
            "pin": Entry("keep a version in the store, wanted or not", "appliance.cli.model.retention:PIN"),
            "unpin": Entry(
                "let a version be evicted or uninstalled again", "appliance.cli.model.retention:UNPIN"
            ),
            "golden": Entry(
                "make a golden set: requests with the answers that are right",
                "appliance.tools.commands.golden",
            ),
            "bench": Entry(
                "measure a model: load, first answer, runs by batch size, memory",
                "appliance.tools.commands.bench",
            ),
            "optimise": Entry(
                "make INT8 and FP16 variants and hold them against the original",
                "appliance.tools.commands.optimise",
            ),
        }
    ),
)
STORE: Final = CommandTable(
    program="appliance store",
    about="The store of model versions in a state directory.",
    commands=MappingProxyType(
        {
            "check": Entry("read everything again and tell what is damaged", "appliance.cli.store.check"),
            "gc": Entry("remove what no installed or running version needs", "appliance.cli.store.gc"),
            "usage": Entry("show what takes how much space", "appliance.cli.store.usage"),
            "scrub": Entry("look for bit rot in the background", "appliance.cli.store.scrub"),
        }
    ),
)
TABLE: Final = CommandTable(
    program="appliance",
    about="Edge inference appliance.",
    commands=MappingProxyType(
        {
            "serve": Entry("serve the models of a directory over gRPC and HTTP", "appliance.cli.serve"),
            "infer": Entry("send one request to a model and show the answer", "appliance.cli.infer"),
            "status": Entry("show what a running appliance serves", "appliance.cli.monitoring:STATUS"),
            "top": Entry("watch rates, latencies, queues and workers", "appliance.cli.monitoring:TOP"),
            "trace": Entry("show where the time of one traced request went", "appliance.cli.trace"),
            "model": Entry("make, check and install model packages", MODEL),
            "store": Entry("look after the store of model versions", STORE),
            "config": Entry("check a configuration file, or show the one in force", "appliance.cli.config"),
            "version": Entry("show the version", "appliance.cli.version"),
        }
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit status."""
    return TABLE.run(list(sys.argv[1:] if arguments is None else arguments))
