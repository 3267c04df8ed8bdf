"""Show what a package holds: what it says of itself, who signed it, where it asks to run, files, inputs and outputs,
operators, tensors, golden set. Weights are not read and nothing is judged; 'appliance model verify' does that. What is
found to be wrong all the same is told below, and the status says so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from appliance.cli import package_policy
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.numbers import natural
from appliance.cli.text_table import output
from appliance.domain.device_wish import capability_text
from appliance.domain.golden import GoldenSet
from appliance.domain.manifest import Manifest, TensorEntry, promise_text
from appliance.domain.quantity import bytes_text, counted
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.package.trust import Verdict
from appliance.package.verification import AskedPlace, Inspection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("package", metavar="PACKAGE", type=Path, help="file NAME-VERSION.model")
    package_policy.add_arguments(parser)
    parser.add_argument(
        "--tensors",
        type=natural(0),
        default=20,
        metavar="N",
        help="how many tensors, the largest first (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all tensors")


def run(arguments: argparse.Namespace) -> int:
    """Show it."""
    from appliance.domain.errors import PackageInvalid
    from appliance.package.verification import inspect_package

    try:
        found = inspect_package(arguments.package, package_policy.policy_of(arguments))
    except PackageInvalid as error:
        problems = list(map(str, error.problems))
        raise CommandFailed(f"'{arguments.package}' is no package:", Exit.REFUSED, lines=problems) from error
    except OSError as error:
        raise CommandFailed(f"'{arguments.package}' cannot be read: {error.strerror}") from error
    if arguments.json:
        print(json.dumps(as_json(found), indent=2))
    else:
        output().print(view(found, arguments.tensors))
    return Exit.REFUSED if found.problems else Exit.OK


_DIGEST_SHOWN = 16


def view(found: Inspection, tensors: int) -> RenderableType:
    """Everything, with the ``tensors`` largest tensors."""
    manifest = found.manifest
    parts: list[RenderableType] = [_facts(found), _files(manifest), _ports(manifest)]
    if found.graph is not None:
        parts.append(_operators(found.graph.operators))
    if manifest.tensors:
        parts.append(_tensors(manifest.tensors, tensors))
    if found.golden is not None and found.golden.cases:
        parts.append(_golden(found.golden))
    parts += [Text(f"{printable(str(problem))}", style="red") for problem in found.problems]
    return Group(*parts)


def as_json(found: Inspection) -> dict[str, Any]:
    """The same as plain JSON values, with all tensors."""
    graph, golden = found.graph, found.golden
    return {
        "bytes": found.size,
        "digest": found.digest,
        "manifest": asdict(found.manifest, dict_factory=_named),
        "signatures": [asdict(verdict) for verdict in found.trust.verdicts],
        "graph": None
        if graph is None
        else {
            "nodes": graph.nodes,
            "depth": graph.depth,
            "operators": [
                {"domain": domain, "operator": name, "count": count}
                for (domain, name), count in _by_count(graph.operators)
            ],
        },
        "golden": None
        if golden is None
        else {
            "cases": len(golden.cases),
            "tolerances": {name: asdict(each) for name, each in golden.tolerances.items()},
            "note": golden.note,
        },
        "device": None if found.place is None else _device(found.place),
        "problems": [asdict(problem) for problem in found.problems],
    }


def _device(place: AskedPlace) -> dict[str, Any]:
    """Where it asks to run, in the words of a config.pbtxt."""
    asked = place.device
    return {
        "kind": "auto" if place.auto else asked.kind.value,
        "gpus": list(asked.indexes),
        "min_compute_capability": capability_text(asked) or None,
        "gpu_uuids": list(asked.uuids),
    }


def _named(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a value, datatypes by their names on the wire."""
    return {key: value.wire if isinstance(value, Datatype) else value for key, value in pairs}


def _facts(found: Inspection) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for title, text in _fact_rows(found):
        table.add_row(title, Text(printable(text)))
    return table


def _fact_rows(found: Inspection) -> Iterator[tuple[str, str]]:
    manifest = found.manifest
    yield "model", f"{manifest.name}, version {manifest.version}"
    yield "package", f"{bytes_text(found.size)} (format {manifest.format})"
    yield "manifest", found.digest
    yield from (("signed by", _signature(verdict)) for verdict in found.trust.verdicts)
    if not found.trust.verdicts:
        yield "signed by", "nobody"
    opsets = ", ".join(f"{each.domain or 'ai.onnx'} {each.version}" for each in manifest.runtime.opsets)
    yield (
        "runtime",
        f"{manifest.runtime.name} {manifest.runtime.minimum} or later; operator sets: {opsets or 'none'}",
    )
    yield "device", "not known" if found.place is None else str(found.place)
    yield (
        "batching",
        f"up to {counted(manifest.max_batch_size, 'row')}" if manifest.max_batch_size else "none",
    )
    if manifest.minimum_version is not None:
        yield "minimum", f"no version below {manifest.minimum_version} is served where this was installed"
    if manifest.promise is not None:
        yield "promise", promise_text(manifest.promise)
    if (measured := manifest.measured) is not None:
        yield "measured", f"on {measured.on}: {bytes_text(measured.memory_bytes)} of memory"
        times = f"p50 {measured.p50_ns / 1e3:.0f} us, p99 {measured.p99_ns / 1e3:.0f} us"
        yield "", f"load {measured.load_ns / 1e6:.1f} ms, {counted(measured.rows, 'row')} {times}"
    if (variant := manifest.variant_of) is not None:
        yield "variant", f"{variant.kind} of {variant.name}/{variant.version}"
    yield "licence", manifest.licence or "not said"
    yield "provenance", manifest.provenance or "not said"


def _signature(verdict: Verdict) -> str:
    if verdict.right is None:
        return f"{verdict.keyid} (not trusted here)"
    return f"{verdict.keyid} ({'right' if verdict.right else 'WRONG'}, {verdict.label})"


def _table(title: str, *columns: str) -> Table:
    """The last column yields; those with sizes are to the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in ("bytes", "size", "uses", "offset") else "left",
            overflow="fold",
        )
    return table


def _files(manifest: Manifest) -> Table:
    table = _table("\nfiles", "path", "size", "bytes", "blake3")
    for entry in manifest.files:
        table.add_row(entry.path, bytes_text(entry.size), str(entry.size), entry.digest[:_DIGEST_SHOWN])
    return table


def _ports(manifest: Manifest) -> Table:
    table = _table("\ninputs and outputs", "", "name", "type", "shape")
    for side, ports in (("in", manifest.inputs), ("out", manifest.outputs)):
        for port in ports:
            table.add_row(
                side, Text(printable(port.name)), port.datatype.wire, _shape(port, manifest.max_batch_size)
            )
    return table


def _shape(port: TensorSpec, batch: int) -> Text:
    sizes = ["batch"] * bool(batch) + ["?" if size < 0 else str(size) for size in port.shape]
    return Text(f"[{', '.join(sizes)}]{' optional' if port.optional else ''}")


def _operators(operators: Mapping[tuple[str, str], int]) -> Table:
    table = _table(f"\noperators ({sum(operators.values())} nodes)", "operator", "domain", "uses")
    for (domain, name), count in _by_count(operators):
        table.add_row(Text(printable(name)), Text(printable(domain) or "ai.onnx"), str(count))
    return table


def _by_count(operators: Mapping[tuple[str, str], int]) -> list[tuple[tuple[str, str], int]]:
    return sorted(operators.items(), key=lambda item: (-item[1], item[0]))


def _tensors(tensors: Sequence[TensorEntry], count: int) -> Table:
    total = sum(entry.length for entry in tensors)
    table = _table(
        f"\ntensors ({len(tensors)}, {bytes_text(total)})",
        "name",
        "type",
        "shape",
        "size",
        "offset",
        "blake3",
    )
    ordered = sorted(tensors, key=lambda entry: (-entry.length, entry.name))
    for entry in ordered[:count]:
        table.add_row(
            Text(printable(entry.name)), entry.datatype, Text(str(list(entry.shape))), bytes_text(entry.length),
            str(entry.offset), entry.digest[:_DIGEST_SHOWN],
        )  # fmt: skip
    if len(ordered) > count:
        table.add_row(f"... {len(ordered) - count} more")
    return table


def _golden(golden: GoldenSet) -> Table:
    table = _table(f"\ngolden set ({len(golden.cases)} cases)", "output", "absolute", "relative")
    outputs = dict.fromkeys(tensor.name for case in golden.cases for tensor in case.outputs)
    for name in outputs:
        tolerance = golden.tolerance(name)
        table.add_row(Text(printable(name)), f"{tolerance.absolute:g}", f"{tolerance.relative:g}")
    return table
