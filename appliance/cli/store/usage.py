"""Show what each installed version takes, how much of that only it has, and what is left. Needs no lock.

A version is in use while a running 'serve' needs its files, whether it serves or not; 'appliance model list' says that.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from appliance.cli import package_policy, store_session
from appliance.cli.failure import Exit, printable
from appliance.domain.quantity import bytes_text
from appliance.store.census import StoreUsage, VersionUsage, census_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    store_session.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Measure once and show."""
    config = store_session.configured(arguments).store
    catalog = store_session.catalog_of(arguments.state_dir)
    with store_session.told(), census_of(arguments.state_dir, config) as census:
        usage = census.usage(catalog, package_policy.trust_of(arguments))
    if arguments.json:
        print(json.dumps(asdict(usage), indent=2))
    else:
        _show(usage)
    return Exit.OK


def _show(usage: StoreUsage) -> None:
    from rich.text import Text

    from appliance.cli.text_table import Column, TextTable, output

    columns = (
        *(Column(title=title, left=True) for title in ("model", "is")),
        Column(title="signed by", left=True, leaves=1),
        *(Column(title=title) for title in ("bytes", "only its own", "packed form")),
    )
    rows = [[Text(printable(word)) for word in _words(each)] for each in usage.versions]
    quota = bytes_text(usage.quota_bytes) if usage.quota_bytes else "none"
    total = (
        f"{usage.blobs} blobs, {bytes_text(usage.bytes)}, of that garbage "
        f"{bytes_text(usage.garbage_bytes)}; packed forms {bytes_text(usage.form_bytes)}; "
        f"quota {quota}; free on the disk "
        f"{bytes_text(usage.free_bytes)}, to be left free "
        f"{bytes_text(usage.free_floor_bytes)}"
    )
    notes = [Text(total), *([Text(printable(usage.unsaid))] if usage.unsaid else [])]
    output().print(TextTable(columns=columns, rows=rows, notes=notes))


def _words(each: VersionUsage) -> tuple[str, ...]:
    return (
        f"{each.name}/{each.version}",
        _flags(each),
        each.trust.removeprefix("key ")[:16],
        bytes_text(each.bytes),
        bytes_text(each.own_bytes),
        bytes_text(each.form_bytes) if each.form_bytes else "-",
    )


def _flags(each: VersionUsage) -> str:
    said = {
        "wanted": each.wanted,
        "pinned": each.pinned,
        "in use": each.in_use,
        "in use: not known": each.in_use is None,
    }
    return ", ".join(word for word, is_so in said.items() if is_so) or "installed"
