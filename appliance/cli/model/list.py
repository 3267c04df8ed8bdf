"""Show which versions are installed and served: in which state, in how much memory, when last asked, how they proved.

With --state-dir the store's catalog says what is installed and wanted; the appliance that serves from it, if it answers
at --url, says what became of it. Without it only that appliance is asked. Names may be given to see only these.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from appliance.cli import endpoint, package_policy, store_session
from appliance.cli.arguments import check_known
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.model.wait import told_by_holder
from appliance.cli.rollout_progress import TRIALS
from appliance.cli.snapshot import is_plain_watch, understood
from appliance.cli.status_source import StatusSource
from appliance.domain.moment import moment
from appliance.domain.quantity import bytes_text
from appliance.engine.versions.record_files import last_requests
from appliance.engine.versions.wording import with_next_try
from appliance.store.catalog import Catalog, InstalledVersion
from appliance.store.layout import SERVE

DOUBTFUL = ("unsigned", "withdrawn")
SAME = (
    "state",
    "residency",
    "reason",
    "last_inference_ms",
    "load_ms",
    "run_p50_us",
    "run_p99_us",
    "tries_left",
    "next_try_ms",
)
"""What the status document says of a version under the names that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedVersion:
    """A version as it is shown. ``wish`` is what the catalog wants of it; ``state`` and what follows are the running
    appliance's: "" and 0 where it does not know the version or was not asked. Times are milliseconds since 1970."""

    name: str
    version: int
    wish: str = ""
    trust: str = ""
    installed_at_ms: int = 0
    bytes: int = 0
    state: str = ""
    residency: str = ""
    reason: str = ""
    trial: str = ""
    memory_bytes: int = 0
    last_inference_ms: int = 0
    load_ms: float = 0.0
    run_p50_us: float = 0.0
    run_p99_us: float = 0.0
    tries_left: int = 0
    next_try_ms: int = 0

    @property
    def key(self) -> str:
        """See ModelSnapshot."""
        return f"{self.name}/{self.version}" if self.version else self.name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="models to show (default: all)")
    store_session.add_place(
        parser, "TOML file that says state_dir and where the appliance listens", required=False
    )
    endpoint.add_arguments(parser, config=False)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Ask once and show."""
    catalog = store_session.catalog_of(arguments.state_dir) if arguments.state_dir else Catalog()
    document, silence = _asked(arguments)
    last = last_requests(arguments.state_dir / SERVE) if arguments.state_dir else {}
    found = listing(catalog, document, package_policy.trust_of(arguments), last)
    check_known(arguments.names, {each.name for each in found})
    listed = [each for each in found if not arguments.names or each.name in arguments.names]
    if arguments.json:
        print(json.dumps({"answering": not silence, "versions": [asdict(each) for each in listed]}, indent=2))
    else:
        _show(listed)
        if silence:
            print(f"States are unknown: {silence}")
    return Exit.OK


def _asked(arguments: argparse.Namespace) -> tuple[Mapping[str, Any], str]:
    """The appliance's status, and why there is none, which is a failure only where nothing else is known."""
    source = StatusSource(arguments)
    if arguments.state_dir is None:
        return understood(source.fetch(), source.url, dict), ""
    try:
        return told_by_holder(source, arguments.state_dir, dict), ""
    except CommandFailed as failure:
        return {}, str(failure)


def listing(
    catalog: Catalog,
    document: Mapping[str, Any],
    trust_of: Callable[[InstalledVersion], str] = attrgetter("trust"),
    last: Mapping[str, int] = MappingProxyType({}),
) -> list[ListedVersion]:
    """What is installed and what is served as one list, by name and version. ``last``: when those that are not served
    were asked last."""
    memory = {worker["worker"]: worker["memory_bytes"] for worker in document.get("workers", ())}
    served = {(entry["name"], entry["version"]): entry for entry in document.get("models", ())}
    installed = (
        replace(each, last_inference_ms=last.get(f"{each.name}/{each.version}", 0))
        for each in _installed(catalog, trust_of)
    )
    found = {(each.name, each.version): each for each in installed}
    keys = sorted(found.keys() | served.keys())
    return [
        _completed(found.get(key) or ListedVersion(name=key[0], version=key[1]), served.get(key), memory)
        for key in keys
    ]


def _installed(catalog: Catalog, trust_of: Callable[[InstalledVersion], str]) -> Iterator[ListedVersion]:
    for model, version in catalog.installed():
        trial = model.trial if model.trial and model.trial.version == version.version else None
        said = {
            "wanted": version.version == model.wanted,
            "pinned": version.version in model.pins,
            "below the minimum": version.version < catalog.floor(model.name).minimum,
            f"{trial.mode.value} {trial.percent} %" if trial else "trial": trial is not None,
        }
        yield ListedVersion(
            name=model.name,
            version=version.version,
            wish=", ".join(word for word, is_so in said.items() if is_so),
            trust=trust_of(version),
            installed_at_ms=version.installed_at_ms,
            bytes=version.bytes,
        )


def _completed(
    listed: ListedVersion, entry: Mapping[str, Any] | None, memory: Mapping[int, int]
) -> ListedVersion:
    if entry is None:
        return listed
    trial, trust = entry.get("trial"), entry.get("trust", "")
    return replace(
        listed,
        trust=trust if trust.startswith(DOUBTFUL) else listed.trust or trust,
        trial="" if trial is None or is_plain_watch(trial) else trial["stage"],
        memory_bytes=sum(memory.get(worker, 0) for worker in entry["workers"]),
        **{name: entry[name] for name in SAME if name in entry},
    )


def _show(listed: list[ListedVersion]) -> None:
    from rich.text import Text

    from appliance.cli.text_table import Column, TextTable, output

    columns = (
        *(Column(title=title, left=True) for title in ("model", "is", "state")),
        Column(title="last asked", left=True, leaves=2),
        *(Column(title=title, leaves=leaves) for title, leaves in (("disk", 1), ("memory", 0), ("load", 3))),
        Column(title="p50", leaves=4),
    )
    rows = [[Text(printable(word)) for word in _words(each)] for each in listed]
    said = ((each.key, with_next_try(each.reason, each.next_try_ms)) for each in listed if each.reason)
    notes = [Text(printable(f"{key}: {reason}")) for key, reason in said]
    output().print(TextTable(columns=columns, rows=rows, notes=notes))


def _words(each: ListedVersion) -> tuple[str, ...]:
    doubtful = each.trust.partition(" ")[0] if each.trust.startswith(DOUBTFUL) else ""
    return (
        each.key,
        ", ".join(word for word in (each.wish, doubtful) if word) or "-",
        _state(each),
        _moment(each.last_inference_ms),
        bytes_text(each.bytes) if each.bytes else "-",
        bytes_text(each.memory_bytes) if each.memory_bytes else "-",
        f"{each.load_ms:,.0f} ms" if each.load_ms else "-",
        f"{each.run_p50_us / 1000:.2f} ms" if each.run_p50_us else "-",
    )


def _state(each: ListedVersion) -> str:
    """A version that serves is told by how much of it is in memory, one that answers requests on trial by that: it has
    been loaded."""
    state = each.residency if each.state == "READY" else ""
    state = state or ("" if each.trial in TRIALS else each.state.lower())
    return ", ".join(word for word in (state, each.trial) if word) or "-"


def _moment(at_ms: int) -> str:
    return moment(at_ms, "%m-%d %H:%MZ") if at_ms else "never"
