"""Pack one version of a model into one file, NAME-VERSION.model, ready to be signed, checked and installed.

SOURCE is an ONNX file, the directory of a version (NAME/3), or the directory of a model, of which the highest version
is taken. The model comes apart into a graph and a file of weights, in the order in which inference uses them, and has
to give the same answers as before, bit for bit, and those of its golden set, as a box holds it to them. Taken along are
config.pbtxt, what it names (labels, warm-up data), the golden set and what --include names. The same source and options
give the same bytes.

Needs the package 'onnx', which serving does not: pip install 'onnx>=1.21' (the extra 'models').
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli import package_policy
from appliance.cli.arguments import add_output, free_target, text_of
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.model.golden_loss import loss_words
from appliance.cli.model.sign import add_keys, signers_of
from appliance.cli.numbers import version_number
from appliance.cli.terminal import bytes_bar
from appliance.domain.device import DeviceKind
from appliance.domain.quantity import counted
from appliance.store.full_disk import reason_of
from appliance.tools.commands.options import add_device, tell_left

if TYPE_CHECKING:
    from appliance.config.repository import RepositoryConfig
    from appliance.domain.manifest import LatencyPromise, Manifest, Measured
    from appliance.tools.evaluation.jobs import Equivalence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="SOURCE", type=Path, help="ONNX file, version or model directory")
    add_output(parser, "file or directory to write (default: NAME-VERSION.model)")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument("--name", help="name of the model (default: that of SOURCE)")
    parser.add_argument("--version", type=version_number, help="version (default: that of SOURCE, or 1)")
    parser.add_argument(
        "--minimum-version", metavar="N", type=version_number,
        help="lowest version of the model that a box serves any more once this package was installed there; it counts "
        "if a key signs that the box trusts",
    )  # fmt: skip
    parser.add_argument(
        "--allow-interface-change",
        action="store_true",
        help="have it go live although clients of what a box serves cannot talk to it; else it is held back there",
    )
    add_keys(parser)
    parser.add_argument("--licence", default="", metavar="TEXT", help="licence of the model, or @FILE")
    parser.add_argument(
        "--provenance", default="", metavar="TEXT", help="where the model comes from, or @FILE"
    )
    parser.add_argument(
        "--measured", type=Path, metavar="FILE",
        help="what it cost where it was measured: what 'appliance model bench SOURCE --json' printed, of its sizes the "
        "smallest",
    )  # fmt: skip
    parser.add_argument(
        "--promise",
        metavar="ROWS:P99_US",
        help="99 of 100 runs of so many rows take at most so many us, or a box does not serve it: written into the "
        "golden set of the package (default: what that says already)",
    )
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="PATH",
        help="a further file of the model's directory",
    )
    package_policy.add_repository(parser)
    parser.add_argument(
        "--no-proof",
        action="store_true",
        help="do not run it: neither compare the answers of both forms, nor try its golden set",
    )
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Pack, and tell what came of it."""
    if find_spec("onnx") is None:
        raise CommandFailed(f"needs the package 'onnx': {sys.executable} -m pip install 'onnx>=1.21'")
    from appliance.domain.errors import ApplianceError, ModelInvalid, PackageInvalid
    from appliance.tools.packaging.source import SourceAbsent

    try:
        return _pack(arguments)
    except (ModelInvalid, PackageInvalid) as error:
        problems = list(map(str, error.problems))
        status = Exit.USAGE if isinstance(error, SourceAbsent) else Exit.REFUSED
        raise CommandFailed(f"'{arguments.source}' cannot be packed:", status, lines=problems) from error
    except ApplianceError as error:
        raise CommandFailed(f"'{arguments.source}' cannot be packed: {error}", Exit.REFUSED) from error
    except BrokenPipeError:  # of standard output, which no file is to blame for
        raise
    except OSError as error:
        place = error.filename or arguments.output or "."
        raise CommandFailed(f"'{place}' cannot be written: {reason_of(error, place)}") from error


def _pack(arguments: argparse.Namespace) -> int:
    from appliance.domain.golden import holds_answers
    from appliance.domain.manifest_codec import encode
    from appliance.package.conformity import GRAPH_FILE
    from appliance.package.container import replacing, write_package
    from appliance.tools.evaluation.jobs import Equivalence, EquivalenceJob
    from appliance.tools.evaluation.process import check_equivalence
    from appliance.tools.packaging.packing import Labels, golden_beside, lay_out, open_from, promised_before
    from appliance.tools.packaging.source import find_source

    if arguments.no_proof and arguments.device:
        raise CommandFailed(
            "--device says where it is proven, and --no-proof does not prove it; leave one of them out"
        )
    signers = signers_of(arguments)
    settings = package_policy.repository_of(arguments.config)
    source = find_source(arguments.source, arguments.version, arguments.include, settings)
    labels = Labels(
        name=arguments.name or source.name,
        version=arguments.version or source.version,
        licence=_text(arguments.licence),
        provenance=_text(arguments.provenance),
        measured=_measured(arguments.measured),
        promise=_promise(arguments.promise),
        minimum_version=arguments.minimum_version,
        interface_change=arguments.allow_interface_change,
    )
    name = f"{labels.name}-{labels.version}.model"
    target = free_target(arguments.output, name, force=arguments.force)
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=target.parent) as folder:
        root = Path(folder)
        # External data makes it more bytes of weights, which the bar can stand.
        with bytes_bar("splitting", source.model.size) as advance:
            manifest = lay_out(source, labels, root, advance, settings)
        proof = Equivalence(unproven="not asked for")
        packed = root / labels.name / str(labels.version) / GRAPH_FILE
        if arguments.no_proof:  # else it is loaded, and refused where it cannot be
            _warn(manifest.key, packed, settings)
        else:
            job = EquivalenceJob(
                source=source.model.path,
                packed=str(packed.resolve()),
                device=arguments.device or "",
                repository=settings,
            )
            proof = check_equivalence(job)
        where = _where(proof, root / labels.name)
        wire = encode(manifest)
        signatures = None
        if signers:
            from appliance.package.trust import sign

            signatures = sign(wire, signers)
        with replacing(target) as out, bytes_bar("writing", manifest.total_bytes) as advance:
            write_package(out, manifest, signatures, open_from(root, manifest), advance)
    keyids = [signer.public_key.keyid for signer in signers]
    tell_left(os.path.basename(source.model.path), source.golden_of)
    _tell(arguments.json, target, manifest, wire, proof, where, keyids, promised_before(source))
    held = holds_answers((each.path, each.size) for each in manifest.files)
    if not held and (beside := golden_beside(source)):
        key = f"{labels.name}/{labels.version}"
        print(loss_words(key, f"version {beside[-1]} of its directory"), file=sys.stderr)
    return Exit.OK


def _warn(key: str, packed: Path, settings: RepositoryConfig) -> None:
    """Say that the runtime of this machine would not load it."""
    from appliance.tools.packaging.installed_runtime import too_new, warning_text
    from appliance.tools.packaging.packing import graph_of

    for problem in too_new(graph_of(packed, settings)):
        print(printable(warning_text(key, problem)), file=sys.stderr)


def _text(said: str) -> str:
    """A text as it was typed, or what the file behind an @ holds."""
    return text_of(Path(said[1:])) if said.startswith("@") else said


def _measured(file: Path | None) -> Measured | None:
    if file is None:
        return None
    from appliance.domain.errors import ConfigInvalid, system_reason
    from appliance.tools.evaluation.cost_file import read_cost

    try:
        return read_cost(file)
    except ConfigInvalid as error:
        raise CommandFailed("--measured has problems:", lines=map(str, error.problems)) from error
    except (OSError, ValueError) as error:
        raise CommandFailed(f"'{file}' cannot be read: {system_reason(error)}") from error


def _promise(said: str | None) -> LatencyPromise | None:
    if said is None:
        return None
    from appliance.domain.manifest import LatencyPromise

    rows, _, p99_us = said.partition(":")
    if not (rows.isascii() and rows.isdigit() and p99_us.isascii() and p99_us.isdigit()):
        raise CommandFailed(f"--promise '{said}' is not ROWS:P99_US, such as 1:8000")
    return LatencyPromise(rows=int(rows), p99_us=int(p99_us))


def _tell(
    json_wanted: bool,
    target: Path,
    manifest: Manifest,
    wire: bytes,
    proof: Equivalence,
    where: str,
    keyids: Sequence[str],
    before: LatencyPromise | None,
) -> None:
    from appliance.domain.digest import digest_of
    from appliance.domain.golden import holds_answers
    from appliance.domain.manifest import promise_text
    from appliance.domain.model import MIXED_ROWS

    about = {
        "file": str(target),
        "bytes": target.stat().st_size,
        "model": manifest.key,
        "manifest": digest_of(wire),
        "files": len(manifest.files),
        "tensors": len(manifest.tensors),
        "golden": holds_answers((each.path, each.size) for each in manifest.files),
        "proven_requests": proof.rounds,
        "proven_cases": proof.cases,
        "proven_on": proof.device,
        "unproven": proof.unproven,
        "rows_mix": proof.mixes,
        "signed_by": list(keyids),
        "promise": None if manifest.promise is None else asdict(manifest.promise),
        "promise_before": None if before is None else asdict(before),
    }
    if json_wanted:
        print(json.dumps(about, indent=2))
        return
    proven = f"{counted(proof.rounds, f'{proof.asked} request')} answered alike, bit for bit{where}"
    promise = promise_text(manifest.promise)
    if before not in (None, manifest.promise):
        promise += f", in the place of {promise_text(before)} in the golden set of the source"
    files = counted(len(manifest.files), "file")
    lines = (
        ("packed", printable(str(target))),
        ("size", f"{about['bytes']:,} bytes in {files}, {counted(len(manifest.tensors), 'tensor')}"),
        ("manifest", about["manifest"]),
        ("proof", proven if proof.rounds else f"none: {printable(proof.unproven)}"),
        ("golden", _golden_text(proof, where) if about["golden"] else "none: answers are held to nothing"),
        *((("batches", MIXED_ROWS),) if proof.mixes else ()),
        ("promise", promise),
        ("signed by", ", ".join(keyids) or "nobody; boxes refuse it unless they allow unsigned packages"),
    )
    for title, text in lines:
        print(f"{title:9}  {text}")
    sys.stdout.flush()


def _golden_text(proof: Equivalence, where: str) -> str:
    held = "boxes hold its answers to its golden set"
    if not proof.cases:
        return f"{held}, which was not tried here: {printable(proof.unproven)}"
    return f"{held}; {counted(proof.cases, 'case')} of it held here{where}"


def _where(proof: Equivalence, home: Path) -> str:
    """Where it was run, if a box may run it elsewhere. ``home`` is the model's directory, as it is packed."""
    from appliance.package.verification import asked_place
    from appliance.repository.model_directory import CONFIG_FILE

    config = home / CONFIG_FILE
    on_cpu = proof.device == DeviceKind.CPU.value
    where = "the processor" if on_cpu else proof.device
    if proof.device and config.exists() and asked_place(config.read_bytes(), home.name).auto:
        other = (
            "with a GPU that it can use tries it there" if on_cpu else "without one tries it on the processor"
        )
        return f", on {where}; a box {other} (KIND_AUTO)"
    if proof.device == proof.configured:
        return ""
    return f", on {where}, as --device says; a box tries it where config.pbtxt does ({proof.configured})"
