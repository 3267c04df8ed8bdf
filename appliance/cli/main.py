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
from appliance.cli.failure import ASKS, NOTHING_ELSE, Exit

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
            "keygen": Entry(
                "make a key that signs packages", "appliance.cli.model.sign:KEYGEN", NOTHING_ELSE
            ),
            "sign": Entry("add a signature to a package", "appliance.cli.model.sign:SIGN"),
            "install": Entry(
                "put packages into the store and have them served", "appliance.cli.model.install", ASKS
            ),
            "uninstall": Entry(
                "take a version, or all of a model, out of the store",
                "appliance.cli.model.retention:UNINSTALL",
            ),
            "want": Entry("have an installed version served", "appliance.cli.model.want:WANT", ASKS),
            "list": Entry(
                "show what is installed and served: state, memory, last use, costs",
                "appliance.cli.model.list",
                ASKS,
            ),
            "history": Entry("show what happened to versions here, and why", "appliance.cli.model.history"),
            "rollback": Entry(
                "have the version served again that was wanted before",
                "appliance.cli.model.rollout:ROLLBACK",
                ASKS,
            ),
            "trial": Entry(
                "let an installed version prove itself on real requests",
                "appliance.cli.model.rollout:TRIAL",
                ASKS,
            ),
            "load": Entry(
                "have a running appliance load a model, by its control socket",
                "appliance.cli.model.load:LOAD",
                ASKS,
            ),
            "unload": Entry(
                "have a running appliance serve nothing of a model, by its control socket",
                "appliance.cli.model.load:UNLOAD",
                ASKS,
            ),
            "pin": Entry("keep a version in the store, wanted or not", "appliance.cli.model.retention:PIN"),
            "unpin": Entry(
                "let a version be evicted or uninstalled again", "appliance.cli.model.retention:UNPIN"
            ),
            "resume": Entry(
                "let the fleet change models again that were changed by hand",
                "appliance.cli.model.retention:RESUME",
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
SYNC: Final = CommandTable(
    program="appliance sync",
    about="The agent: this box as a member of a fleet.",
    alone=Entry("run the agent", "appliance.cli.sync.agent:RUN"),
    commands=MappingProxyType(
        {
            "enrol": Entry("have this box belong to a fleet", "appliance.cli.sync.enrol", ASKS),
            "once": Entry(
                "one pass: hear, do what can be done, report", "appliance.cli.sync.agent:ONCE", ASKS
            ),
            "status": Entry(
                "show what is wanted, what is here, what waits", "appliance.cli.sync.status:STATUS"
            ),
            "explain": Entry("tell the same in words", "appliance.cli.sync.status:EXPLAIN"),
            "link": Entry(
                "say whether the link is free, metered or off", "appliance.cli.sync.link", NOTHING_ELSE
            ),
        }
    ),
)
BUNDLE: Final = CommandTable(
    program="appliance bundle",
    about="Bundles: what a box and its controller say to one another, carried by hand.",
    commands=MappingProxyType(
        {
            "export": Entry("write what is to be carried to the other side", "appliance.cli.bundle.export"),
            "import": Entry("take in what was carried here", "appliance.cli.bundle.import_"),
            "inspect": Entry(
                "show what a bundle holds and whether it is whole", "appliance.cli.bundle.inspect"
            ),
        }
    ),
)
ROOT: Final = CommandTable(
    program="appliance fleet root",
    about="The root of a fleet's trust: made, changed and signed with keys that are never online.",
    commands=MappingProxyType(
        {
            "keys": Entry("make the keys that the controller signs with", "appliance.cli.fleet.root:KEYS"),
            "make": Entry(
                "make a root, the first or the next, to be signed", "appliance.cli.fleet.root:MAKE"
            ),
            "sign": Entry("sign a root as one of its holders", "appliance.cli.fleet.root:SIGN"),
            "show": Entry("show what a root says and who has to sign still", "appliance.cli.fleet.root:SHOW"),
            "get": Entry(
                "write a controller's newest root into a file", "appliance.cli.fleet.root:GET", NOTHING_ELSE
            ),
            "publish": Entry("have boxes follow a root", "appliance.cli.fleet.root:PUBLISH"),
        }
    ),
)
FLEET: Final = CommandTable(
    program="appliance fleet",
    about="Many boxes, from an operator's desk.",
    commands=MappingProxyType(
        {
            "login": Entry("log in at a controller", "appliance.cli.fleet.change:LOGIN", ASKS),
            "devices": Entry("show devices and how they stand", "appliance.cli.fleet.devices:DEVICES", ASKS),
            "groups": Entry(
                "show groups and what is wanted in them", "appliance.cli.fleet.view:GROUPS", ASKS
            ),
            "facts": Entry("show what devices are made of", "appliance.cli.fleet.facts:FACTS", ASKS),
            "compare": Entry(
                "show how a version does on the devices, against another one",
                "appliance.cli.fleet.compare:COMPARE",
                ASKS | {Exit.STOPPED, Exit.OVERDUE},
            ),
            "releases": Entry("show what was released", "appliance.cli.fleet.view:RELEASES", ASKS),
            "release": Entry(
                "hand packages over to the controller", "appliance.cli.fleet.change:RELEASE", ASKS
            ),
            "want": Entry(
                "wish for a version in a group or on a device",
                "appliance.cli.fleet.change:WANT",
                ASKS | {Exit.STOPPED, Exit.OVERDUE},
            ),
            "rollout": Entry("have a version go out in waves", "appliance.cli.fleet.rollout:ROLLOUT", ASKS),
            "rollouts": Entry(
                "show what goes out in waves",
                "appliance.cli.fleet.rollout:ROLLOUTS",
                ASKS | {Exit.STOPPED, Exit.OVERDUE},
            ),
            "setting": Entry("change a setting of boxes", "appliance.cli.fleet.change:SETTING", ASKS),
            "logs": Entry("show records of devices", "appliance.cli.fleet.view:LOGS", ASKS),
            "drift": Entry("show what was decided at boxes", "appliance.cli.fleet.view:DRIFT", ASKS),
            "token": Entry("make a token for a box or a person", "appliance.cli.fleet.change:TOKEN", ASKS),
            "group": Entry("put a device into a group", "appliance.cli.fleet.change:GROUP", ASKS),
            "revoke": Entry("shut a device out", "appliance.cli.fleet.change:REVOKE", ASKS),
            "resume": Entry("go on after a restored backup", "appliance.cli.fleet.change:RESUME", ASKS),
            "audit": Entry("show who changed what", "appliance.cli.fleet.view:AUDIT", ASKS),
            "tokens": Entry("show the tokens of boxes and people", "appliance.cli.fleet.view:TOKENS", ASKS),
            "audit-check": Entry(
                "check that the audit log is whole", "appliance.cli.fleet.view:AUDIT_CHECK", ASKS
            ),
            "root": Entry("make, change and sign what all boxes trust", ROOT),
        }
    ),
)
CONTROLLER: Final = CommandTable(
    program="appliance controller",
    about="The controller of a fleet.",
    commands=MappingProxyType(
        {
            "init": Entry("make a controller in a directory", "appliance.cli.controller:INIT", NOTHING_ELSE),
            "serve": Entry(
                "serve it, to boxes and to people", "appliance.cli.controller:SERVE", NOTHING_ELSE
            ),
            "token": Entry("make a token where all are lost", "appliance.cli.controller:TOKEN", NOTHING_ELSE),
        }
    ),
)
IMAGE: Final = CommandTable(
    program="appliance image",
    about="The image that this machine runs, where it runs one.",
    commands=MappingProxyType(
        {
            "status": Entry("show what runs and what the next start takes", "appliance.cli.image.status"),
            "update": Entry("replace it by a newer release", "appliance.cli.image.update"),
            "rollback": Entry("have the next start take the one before", "appliance.cli.image.rollback"),
            "factory-reset": Entry("erase what this box keeps", "appliance.cli.image.factory_reset"),
            "check": Entry("demand an answer of every model: the boot gate", "appliance.cli.image.check"),
            "configure": Entry(
                "take a configuration that this box was given, unless it is wrong",
                "appliance.cli.image.configure",
            ),
            "settle": Entry(
                "tell that this start came to something (a unit of the image does)",
                "appliance.cli.image.settle",
            ),
        }
    ),
)
RUNTIME: Final = CommandTable(
    program="appliance runtime",
    about="Runtimes: what loads and runs models, one package for each vendor.",
    commands=MappingProxyType(
        {
            "list": Entry(
                "show the runtimes that are installed", "appliance.tools.commands.runtime:LIST", NOTHING_ELSE
            ),
            "check": Entry(
                "try a runtime: all that the port demands, and a worker in its jail",
                "appliance.tools.commands.runtime:CHECK",
            ),
        }
    ),
)
TABLE: Final = CommandTable(
    program="appliance",
    about="Edge inference appliance.",
    commands=MappingProxyType(
        {
            "serve": Entry(
                "serve the models of a directory or a store over gRPC and HTTP",
                "appliance.cli.serve",
                frozenset({Exit.BROKEN}),
            ),
            "infer": Entry("send one request to a model and show the answer", "appliance.cli.infer", ASKS),
            "status": Entry("show what a running appliance serves", "appliance.cli.monitoring:STATUS", ASKS),
            "top": Entry("watch rates, latencies, queues and workers", "appliance.cli.monitoring:TOP", ASKS),
            "trace": Entry("show where the time of one traced request went", "appliance.cli.trace"),
            "model": Entry("make, check and install model packages", MODEL),
            "store": Entry("look after the store of model versions", STORE),
            "runtime": Entry("list and check what runs models", RUNTIME),
            "fleet": Entry("look after many boxes", FLEET),
            "sync": Entry("have this box be what its fleet wants", SYNC),
            "bundle": Entry("carry documents, models and telemetry where no link is", BUNDLE),
            "controller": Entry("make and serve the controller of a fleet", CONTROLLER),
            "image": Entry("update, roll back or reset the image of this machine", IMAGE),
            "diagnose": Entry(
                "write one file with what is needed to understand this box",
                "appliance.cli.diagnose",
                NOTHING_ELSE,
            ),
            "config": Entry("check a configuration file, or show the one in force", "appliance.cli.config"),
            "version": Entry("show the version", "appliance.cli.version", NOTHING_ELSE),
        }
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit status."""
    return TABLE.run(list(sys.argv[1:] if arguments is None else arguments))
