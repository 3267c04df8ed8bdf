"""Read everything that installed versions need and tell what is damaged.

That changes nothing and needs no lock; only --rebuild writes.

What is damaged comes back by installing the same package again: good blobs are kept, damaged ones replaced. A catalog
that is lost, or cannot be believed, is made anew by --rebuild from the packages' own manifests.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from appliance.cli import package_policy, store_session
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.terminal import bytes_bar
from appliance.domain.quantity import bytes_text
from appliance.durable import Folder
from appliance.engine.versions.history import read_history
from appliance.package.trust import judge
from appliance.store.blobs import BlobShelf
from appliance.store.catalog_file import Rebuilt, rebuilt
from appliance.store.layout import SERVE
from appliance.store.rebuild import rebuild_catalog
from appliance.store.running import read_incumbents
from appliance.store.scrub import Inspection, blobs_of, inspect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    store_session.add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="compare names and sizes only, read no blob")
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="make the catalog anew, if it is lost or cannot be believed: what is whole is installed again, and what "
        "was served last is wanted",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check; ends with status 1 when something is damaged, or was left out of the catalog that was made anew."""
    made = _rebuild(arguments) if arguments.rebuild else None
    if made is not None and not arguments.json:
        _tell(made)
    found = _inspected(arguments)
    if arguments.json:
        anew = None if made is None else _rebuilt_document(made)
        print(json.dumps({**asdict(found), "rebuilt": anew}, indent=2))
    else:
        _show(found, arguments.quick)
    left_out = made is not None and made.left_out
    return Exit.REFUSED if found.findings or left_out else Exit.OK


def _inspected(arguments: argparse.Namespace) -> Inspection:
    catalog = store_session.catalog_of(arguments.state_dir)
    total = 0 if arguments.quick else sum(size for size, _ in blobs_of(catalog).values())
    with (
        store_session.looking(arguments.state_dir, "check the store") as folder,
        bytes_bar("check", total) as progress,
    ):
        return inspect(
            folder,
            lambda: store_session.catalog_of(arguments.state_dir),
            quick=arguments.quick,
            progress=progress,
        )


def _rebuild(arguments: argparse.Namespace) -> Rebuilt:
    """Every view is read as a whole; who signed it is judged by the keys that are trusted now."""
    state, config = arguments.state_dir, store_session.configured(arguments)
    if not state.is_dir():
        raise CommandFailed(f"'{state}' is no directory; give that of 'serve --state-dir'")
    keys = package_policy.trusted_keys(arguments.config, config)
    with store_session.told():

        def make(folder: Folder) -> Rebuilt:
            total = sum(found.size for found in BlobShelf(folder).listing().values())
            with bytes_bar("rebuild", total) as progress:
                return rebuilt(
                    folder,
                    trust_of=lambda manifest, signatures: judge(manifest, signatures, keys).word,
                    served=served_last(state),
                    now_ms=store_session.wall_ms(),
                    progress=progress,
                )

        return rebuild_catalog(state, make)


def served_last(state: Path) -> Mapping[str, int]:
    """The version of each model that the daemon served last, as far as its records tell."""
    proven = {each.name: each.version for each in read_incumbents(state)}
    with suppress(OSError):
        return {**proven, **{change.name: change.after for change in read_history(state / SERVE)}}
    return proven


def _tell(made: Rebuilt) -> None:
    for model, version in made.catalog.installed():
        wanted = "wanted" if version.version == model.wanted else "not wanted"
        print(printable(f"{model.name}/{version.version}: {wanted}, {version.trust}"))
    for digest, reason in made.left_out:
        print(printable(f"left out: view {digest[:12]} {reason}; install its package again"))
    print(
        "The catalog was made anew. Pins, trials and where a rollback leads are lost; 'appliance model want' and "
        "'appliance model pin' say them again.",
        flush=True,
    )


def _rebuilt_document(made: Rebuilt) -> dict[str, object]:
    installed = [
        {
            "name": model.name,
            "version": version.version,
            "wanted": version.version == model.wanted,
            "trust": version.trust,
        }
        for model, version in made.catalog.installed()
    ]
    left_out = [{"view": digest, "reason": reason} for digest, reason in made.left_out]
    return {"installed": installed, "left_out": left_out}


def _show(found: Inspection, quick: bool) -> None:
    looked = f"{found.versions} versions, {found.blobs} blobs, {bytes_text(found.bytes)}"
    how = "names and sizes" if quick else "every byte"
    if not found.findings:
        print(f"{looked}: no damage ({how} compared)")
        return
    print(f"{looked}: {len(found.findings)} damaged ({how} compared); install their packages again")
    for each in found.findings:
        print(printable(f"  {each.what} {each.place}: {each.text}; needed by {', '.join(each.versions)}"))
