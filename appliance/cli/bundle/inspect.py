"""Show what a bundle holds and for whom, and read all of it to tell whether it is whole. Whom to trust is not asked
here: who imports it does that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.cli.bundle.opened import opened
from appliance.cli.failure import Exit, printable
from appliance.cli.terminal import bytes_bar
from appliance.domain.moment import moment
from appliance.domain.quantity import bytes_text, counted
from appliance.fleet.bundle import TO_BOXES
from appliance.fleet.documents import DocumentInvalid, decode
from appliance.transfer.bundle_reader import BundleReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="directory or file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Read it and show it."""
    with opened(arguments.bundle) as bundle:
        members = bundle.index.members
        with bytes_bar("reading", sum(each.size for each in members)) as advance:
            bundle.check(members, advance)
        found = as_json(bundle)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        _show(found)
    return Exit.OK


def as_json(bundle: BundleReader) -> dict[str, Any]:
    """What it holds, as a document."""
    index = bundle.index
    shared = [each for each in index.members if not each.device]
    return {
        "bundle": str(bundle.path),
        "kind": index.kind,
        "written_ms": index.written_ms,
        "signed": bool(bundle.signed.signature),
        "devices": [{"device": device, **_device(bundle, device)} for device in index.devices],
        "roots": len(index.of("root")),
        "streams": len(index.of("stream")),
        "stream_bytes": sum(each.size for each in shared if each.kind == "stream"),
        "bytes": sum(each.size for each in index.members),
        "files": [{"path": each.path, "bytes": each.size, "digest": each.digest} for each in index.members],
    }


def _device(bundle: BundleReader, device: str) -> dict[str, Any]:
    index = bundle.index
    if index.kind != TO_BOXES:
        telemetry = index.of("telemetry", device)
        return {
            "batches": len(telemetry),
            "telemetry_bytes": sum(each.size for each in telemetry),
            "report": bool(index.of("report", device)),
        }
    found: dict[str, Any] = {"generation": None, "models": []}
    for member in index.of("document", device):
        try:
            state = decode(bundle.read(member))
        except DocumentInvalid as error:
            found["problem"] = str(error)
        else:
            found["generation"] = state.generation
            found["models"] = [
                {"name": model.name, "versions": [each.version for each in model.versions()]}
                for model in state.models
            ]
    return found


def _show(found: dict[str, Any]) -> None:
    from rich.text import Text

    from appliance.cli.text_table import Column, TextTable, output

    to_boxes = found["kind"] == TO_BOXES
    *titles, tail = ("generation", "models") if to_boxes else ("batches", "telemetry", "report")
    columns = [Column(title="device", left=True), *(Column(title=title, left=True) for title in titles)]
    rows = [[Text(printable(word)) for word in _words(each, to_boxes)] for each in found["devices"]]
    output().print(TextTable(columns=columns, rows=rows, tail=tail))
    print(", ".join(_summary(found)))


def _words(device: dict[str, Any], to_boxes: bool) -> Iterator[str]:
    yield device["device"]
    if not to_boxes:
        yield from (
            str(device["batches"]),
            bytes_text(device["telemetry_bytes"]),
            "yes" if device["report"] else "-",
        )
        return
    yield str(device["generation"] or "-")
    models = (f"{each['name']}/{','.join(map(str, each['versions']))}" for each in device["models"])
    yield device.get("problem") or " ".join(models) or "-"


def _summary(found: dict[str, Any]) -> Iterator[str]:
    files = counted(len(found["files"]), "file")
    yield f"{found['kind'].replace('-', ' ')}, {bytes_text(found['bytes'])} in {files}"
    if found["streams"]:
        yield f"{counted(found['streams'], 'stream')} of {bytes_text(found['stream_bytes'])}"
    yield f"written {moment(found['written_ms'])}" if found["written_ms"] else "written nobody knows when"
    yield "signed" if found["signed"] else "not signed: its acknowledgements will not be believed"
