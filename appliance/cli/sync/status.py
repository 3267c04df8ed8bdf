"""What is wanted of this box, what is here, what comes next and why it waits: as a table, or in words."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from appliance.cli.arguments import check_known
from appliance.cli.command_table import Command
from appliance.cli.failure import Exit, printable
from appliance.cli.sync import session
from appliance.cli.terminal import print_text
from appliance.domain.moment import moment
from appliance.domain.quantity import bytes_text
from appliance.sync.freshness import freshness
from appliance.sync.plan import Reason, Step, plan
from appliance.sync.reading import Reading, read_box
from appliance.sync.reporting import first_of, phase_of, waiting_words, words


def _add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``status``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    session.add_arguments(parser)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``explain``."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="only this one")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, as 'appliance sync status --json' does"
    )
    session.add_arguments(parser)


def _status(arguments: argparse.Namespace) -> int:
    """Look once and show."""
    found = _read(arguments)
    steps = plan(found.desired, found.observed)
    if arguments.json:
        print(json.dumps(_document(found, steps, _names(found)), indent=2))
        return Exit.OK
    from rich.text import Text

    from appliance.cli.text_table import Column, TextTable, output

    titles = ("model", "wanted", "here", "serving", "next")
    rows = []
    for name in _names(found):
        own = [step for step in steps if step.name == name]
        first = first_of(own)
        model = found.observed.catalog.model(name)
        cells = (
            name,
            _wished(found, name),
            ", ".join(str(each.version) for each in model.versions) if model else "-",
            str(found.observed.live.get(name) or "-"),
            phase_of(first),
            waiting_words(first.waits) if first and first.waits else "",
        )
        rows.append([Text(printable(cell)) for cell in cells])
    columns = tuple(Column(title=title, left=True) for title in titles)
    for line in _head(found):
        print_text(printable(line))
    output().print(TextTable(columns=columns, rows=rows, tail="why it waits"))
    return Exit.OK


def _explain(arguments: argparse.Namespace) -> int:
    """Tell it in words."""
    found = _read(arguments)
    steps = plan(found.desired, found.observed)
    names = _names(found)
    if arguments.model:
        check_known((arguments.model,), names)
        names = [arguments.model]
    if arguments.json:
        print(json.dumps(_document(found, steps, names), indent=2))
        return Exit.OK
    lines = _head(found)
    for name in names:
        lines += ["", *_story(name, found, [step for step in steps if step.name == name])]
    rest = [step for step in steps if not step.name]
    lines += [f"The box: {words(step)}; {waiting_words(step.waits)}." for step in rest]
    print_text("\n".join(map(printable, lines)))
    return Exit.OK


def _read(arguments: argparse.Namespace) -> Reading:
    with session.failures():
        return read_box(session.settings_of(arguments), session.CLOCK)


def _names(found: Reading) -> list[str]:
    wished = {wish.name for wish in found.desired.models} if found.desired else set()
    return sorted(wished | {model.name for model in found.observed.catalog.models})


def _wished(found: Reading, name: str) -> str:
    wish = found.desired.model(name) if found.desired else None
    if wish is None:
        return "-"
    said = [str(wish.wanted.version)] if wish.wanted else []
    said += [f"{wish.trial.version.version} ({wish.trial.mode})"] if wish.trial else []
    return ", ".join(said) or "only here"


def _head(found: Reading) -> list[str]:
    fresh = freshness(found.contact, session.instant())
    heard = "never" if fresh.heard_ms is None else f"{_ago(fresh.heard_ms)} ago"
    if fresh.heard_ms is not None and not fresh.exact:
        heard = f"at least {heard}"
    generation = found.desired.generation if found.desired else 0
    lines = [
        f"{found.device} of the fleet at {found.url}",
        f"wanted: generation {generation}, {fresh.word}; controller heard {heard}; the link is {found.link}",
        f"left of the month: {_left(found.left_bytes)}; waits to be told: {bytes_text(found.outbox_bytes)}",
        f"agent: {f'process {found.agent_pid}' if found.agent_pid else 'does not run'}",
    ]
    lines += [f"problem: {each}" for each in _problems(found)]
    return lines


def _problems(found: Reading) -> list[str]:
    not_heard = f"the controller was not heard: {found.trouble}" if found.trouble else ""
    return [each for each in (not_heard, found.progress.problem, found.damage) if each]


def _left(count: int) -> str:
    return "no bound" if count < 0 else bytes_text(count)


def _ago(ms: int) -> str:
    seconds = ms // 1000
    for unit, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def _story(name: str, found: Reading, steps: list[Step]) -> list[str]:
    model = found.observed.catalog.model(name)
    here = ", ".join(str(each.version) for each in model.versions) if model else "nothing"
    serving = found.observed.live.get(name)
    lines = [
        f"{name}: wanted by the fleet: {_wished(found, name)}; here: {here}; "
        + (f"version {serving} serves" if serving else "none is known to serve")
    ]
    hold = found.observed.catalog.hold(name)
    if hold is not None:
        since = moment(hold.since_ms)
        lines.append(
            f"  held by hand: {hold.what} by {hold.who or 'a person'}, {since}; 'appliance model resume {name}'"
        )
    lines += [f"  {words(step)}: {waiting_words(step.waits)}" for step in steps]
    if any(step.waits is not None and step.waits.reason is Reason.FAILED for step in steps):
        lines.append(
            f"  it is not tried again until another version of {name} is wished, or this one with --order"
        )
    if not steps:
        lines.append("  nothing is to be done")
    return lines


def _document(found: Reading, steps: tuple[Step, ...], names: Sequence[str]) -> dict[str, Any]:
    fresh = freshness(found.contact, session.instant())
    catalog = found.observed.catalog
    return {
        "device": found.device,
        "controller": found.url,
        "generation": found.desired.generation if found.desired else 0,
        "agent_pid": found.agent_pid,
        "freshness": fresh.word,
        "heard_ms_ago": fresh.heard_ms,
        "link": found.link,
        "budget_left_bytes": found.left_bytes,
        "outbox_bytes": found.outbox_bytes,
        "problems": _problems(found),
        "models": [
            {
                "name": name,
                "wanted": _wished(found, name),
                "installed": [each.version for each in model.versions] if model else [],
                "serving": found.observed.live.get(name, 0),
                "steps": step_documents(step for step in steps if step.name == name),
            }
            for name in names
            for model in (catalog.model(name),)
        ],
        "steps": step_documents(step for step in steps if not step.name),
        "holds": [{**asdict(hold), "what": hold.what.value} for hold in catalog.holds],
    }


def step_documents(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """For programs."""
    return [{"step": words(step), "waits": asdict(step.waits) if step.waits else None} for step in steps]


STATUS: Final = Command(
    about="""\
Show what the fleet wants of this box, what is here, what serves, what comes next and why it waits. Asks nobody: it
reads what the agent keeps on the disk.""",
    add_arguments=_add,
    run=_status,
)
EXPLAIN: Final = Command(
    about="""\
Tell in words what is wanted of this box, or of one model, what is here, what comes next and why it waits.""",
    add_arguments=_add_explain,
    run=_explain,
)
