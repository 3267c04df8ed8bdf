"""How a version does out there, for who made it and sees no box: on how many sites it serves, what it did there against
the version before, which sites stand out and why. What is demanded of it is judged for a script.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.fleet.compare_view import judgement_text, site_table, summary_table
from appliance.cli.fleet.session import Controller, read_profile
from appliance.cli.fleet.view import now_ms
from appliance.cli.numbers import natural, number, shown, version_number
from appliance.cli.terminal import print_text
from appliance.domain.manifest import is_name
from appliance.fleet.comparison import LEAST, MET, MISSED, Demand, is_comparison, judged_as_told

SPAN: Final = re.compile(r"([0-9]{1,5})([hd])")
UNITS_MS: Final = {"h": 3_600_000, "d": 86_400_000}
ALL: Final = 100.0
"""Of 100 sites, where it is not said on how many."""
TIMEOUT_S: Final = 120.0
"""A large fleet is added up while who asks waits."""
VERDICTS: Final = {MET: Exit.OK, MISSED: Exit.STOPPED}


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL[=VERSION]", help="default: the newest version that answered requests"
    )
    parser.add_argument(
        "--against",
        metavar="[MODEL=]VERSION",
        default="",
        help="another version, also of a model that had another name (default: the next lower one that answered, "
        "else the next higher one)",
    )
    parser.add_argument("--group", metavar="NAME", default="", help="only devices of this group")
    parser.add_argument("--device", metavar="NAME", default="", help="only this one")
    parser.add_argument(
        "--since",
        metavar="SPAN",
        type=_span_ms,
        default="7d",
        help="how far back, as 24h or 7d, begun with a quarter of a day (default: 7d)",
    )
    parser.add_argument(
        "--least",
        metavar="N",
        type=natural(1),
        default=LEAST,
        help=f"requests of each version without which a site is not compared (default: {LEAST})",
    )
    parser.add_argument(
        "--all", action="store_true", help="show all sites, not only the twenty that do worst"
    )
    demand = parser.add_argument_group("what is demanded, for a script")
    demand.add_argument(
        "--p99-ratio", metavar="R", type=_ratio, help="its p99 is at most R times that of the other version"
    )
    demand.add_argument(
        "--run-ratio",
        metavar="R",
        type=_ratio,
        help="the same of its runs alone: the model itself, without waiting for others",
    )
    demand.add_argument(
        "--failed-percent", metavar="P", type=_percent, help="at most P of 100 requests are not answered"
    )
    demand.add_argument(
        "--on",
        metavar="PERCENT",
        type=_share,
        help="on so many of 100 sites, with one of these (default: 100)",
    )
    parser.add_argument(
        "--page", metavar="FILE", type=Path, help="write a page with a chart, to be shown to others"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _run(arguments: argparse.Namespace) -> int:
    demand = _demand(arguments)
    controller = Controller(read_profile(), TIMEOUT_S)
    found = controller.get(_path(arguments), **_query(arguments))
    if not is_comparison(found):
        raise controller.stranger()
    judgement = judged_as_told(found["sites"], demand, arguments.least) if demand is not None else None
    if arguments.page is not None:
        from appliance.cli.fleet.compare_page import page

        try:
            arguments.page.write_text(page(found, judgement), encoding="utf-8")
        except OSError as error:
            raise CommandFailed(f"'{arguments.page}' cannot be written: {error.strerror}") from error
    if arguments.json:
        print(json.dumps({**found, "judgement": judgement}, indent=2))
    else:
        summary_table(found)
        print()
        site_table(found, everything=arguments.all)
        if judgement is not None:
            print_text("\n" + judgement_text(judgement))
    return VERDICTS.get(judgement["verdict"], Exit.OVERDUE) if judgement is not None else Exit.OK


def _path(arguments: argparse.Namespace) -> str:
    """Where it is asked. Raises CommandFailed."""
    model = arguments.model.partition("=")[0]
    if not is_name(model):
        raise CommandFailed(f"'{printable(arguments.model)}' is no MODEL or MODEL=VERSION")
    return f"/comparisons/{model}"


def _query(arguments: argparse.Namespace) -> dict[str, str | int]:
    """What is asked of it. Raises CommandFailed."""
    _, mark, version = arguments.model.partition("=")
    against_model, _, against = arguments.against.rpartition("=")
    if against_model and not is_name(against_model):
        raise CommandFailed(f"'{printable(arguments.against)}' is no [MODEL=]VERSION")
    query: dict[str, str | int] = {
        "version": _version(version) if mark else "",
        "against": _version(against) if against else "",
        "against_model": against_model,
        "group": arguments.group,
        "device": arguments.device,
        "since_ms": max(int(now_ms()) - arguments.since, 0),
        "least": arguments.least,
    }
    return query


def _version(text: str) -> int:
    try:
        return version_number(text)
    except argparse.ArgumentTypeError as error:
        raise CommandFailed(str(error)) from error


def _demand(arguments: argparse.Namespace) -> Demand | None:
    """What is demanded; None: nothing is. Raises CommandFailed."""
    asked = arguments.p99_ratio, arguments.run_ratio, arguments.failed_percent
    if asked != (None, None, None):
        return Demand(*asked, ALL if arguments.on is None else arguments.on)
    if arguments.on is not None:
        raise CommandFailed(
            "--on says on how many sites, but not what: add --p99-ratio, --run-ratio or --failed-percent"
        )
    return None


def _span_ms(text: str) -> int:
    if (found := SPAN.fullmatch(text)) is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no time; give it as 24h or 7d")
    return int(found[1]) * UNITS_MS[found[2]]


def _bounded(least: float, most: float) -> Any:
    def read(text: str) -> float:
        value = number(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:g} to {most:g}")
        return value

    return read


_ratio = _bounded(0.01, 100)
_percent = _bounded(0, 100)
_share = _bounded(1, 100)

COMPARE: Final = Command(
    about="""Show how a version of a model does on the devices of the fleet, against the version before it on the same
devices: requests, latency, what was not answered, energy, memory, time of load, golden set; which sites stand out, and
why. Quarters of days (UTC) are added up whole. With --p99-ratio, --run-ratio or --failed-percent the exit status says
whether that holds: 0 it does, 4 it does not, 5 too few sites have answered enough.""",
    add_arguments=_add,
    run=_run,
)
