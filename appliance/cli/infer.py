"""Send one request to a model over gRPC and show the answer.

An input is NAME=VALUES: JSON (nested lists, numbers, texts), words between commas, @FILE.npy, or @PICTURE, which is
fitted to the height, width and channels that the model takes. NAME= may be left out for a model with one input.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.cli.answer import as_json
from appliance.cli.array import Array, encode, fit_shape, parse_values, read_npy, zeros
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.oip_client import InputTensor, OipClient, Question, Signature
from appliance.cli.picture import SUFFIXES, read_picture
from appliance.tensor import TensorSpec

DEFAULT_URL = "127.0.0.1:8001"
DEFAULT_CLASSES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--version", default="", metavar="V", help="model version (default: the server's choice)"
    )
    parser.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]VALUES|@FILE", help="once for each input"
    )
    parser.add_argument("--zeros", action="store_true", help="fill inputs that are not given with zeros")
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NAME",
        help="ask for this output only; may be repeated",
    )
    parser.add_argument(
        "--classes",
        type=_natural,
        metavar="N",
        help=f"show the N best classes (default: {DEFAULT_CLASSES} for outputs with labels; 0: show values)",
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, metavar="HOST:PORT", help=f"gRPC address (default {DEFAULT_URL})"
    )
    parser.add_argument(
        "--timeout-ms", type=_positive, default=10_000.0, metavar="MS", help="deadline (default 10000)"
    )
    parser.add_argument("--priority", type=_natural, default=0, metavar="P", help="1 is the most urgent")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Ask once and show what came back."""
    with OipClient(arguments.url, arguments.timeout_ms / 1_000) as client:
        signature = client.signature(arguments.model, arguments.version)
        inputs = build_inputs(signature.inputs, arguments.input, zero_fill=arguments.zeros)
        classes = wanted_classes(signature, arguments.output, arguments.classes)
        reply = client.ask(
            Question(
                model=arguments.model,
                version=arguments.version,
                inputs=inputs,
                classes=classes,
                priority=arguments.priority,
            )
        )
    if arguments.json:
        print(json.dumps(as_json(reply, classes)))
    else:
        from rich.console import Console

        from appliance.cli.answer_view import show

        show(Console(), reply, classes)
    return Exit.OK


def build_inputs(
    specs: Sequence[TensorSpec], words: Sequence[str], *, zero_fill: bool
) -> tuple[InputTensor, ...]:
    """The inputs as typed, converted to what the model takes. Raises CommandFailed."""
    given = _by_name(specs, words)
    known = {spec.name: spec for spec in specs}
    if zero_fill:
        filled = {name: None for name in known if name not in given}
        return tuple(_tensor(known[name], text) for name, text in {**given, **filled}.items())
    if not given:
        takes = ", ".join(f"{spec.name} {spec.datatype.wire} {list(spec.shape)}" for spec in specs)
        raise CommandFailed(
            f"no input is given; the model takes {takes}. Give each with --input, or use --zeros"
        )
    return tuple(_tensor(known[name], text) for name, text in given.items())


def wanted_classes(signature: Signature, outputs: Sequence[str], classes: int | None) -> dict[str, int]:
    """Outputs to ask for, each with how many top classes of it."""
    names = list(outputs) or [spec.name for spec in signature.outputs]
    if classes is None:
        return {name: DEFAULT_CLASSES if name in signature.labelled else 0 for name in names}
    return dict.fromkeys(names, classes)


def _by_name(specs: Sequence[TensorSpec], words: Sequence[str]) -> Mapping[str, str]:
    names = [spec.name for spec in specs]
    given: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in names:
            name, text = _only_input(names, word), word
        if name in given:
            raise CommandFailed(f"input '{name}' is given twice")
        given[name] = text
    return given


def _only_input(names: Sequence[str], word: str) -> str:
    if len(names) != 1:
        raise CommandFailed(
            f"'{word}' does not begin with the name of an input; the inputs are {', '.join(names)}"
        )
    return names[0]


def _tensor(spec: TensorSpec, text: str | None) -> InputTensor:
    array = zeros(spec.shape, spec.datatype) if text is None else _array(spec, text)
    shape = fit_shape(array, spec.shape, spec.name)
    return InputTensor(
        name=spec.name, datatype=spec.datatype, shape=shape, raw=encode(array, spec.datatype, spec.name)
    )


def _array(spec: TensorSpec, text: str) -> Array:
    if not text.startswith("@"):
        return parse_values(text)
    path = Path(text[1:])
    if path.suffix.lower() == ".npy":
        return read_npy(path)
    if path.suffix.lower() in SUFFIXES:
        return read_picture(path, spec.shape, spec.name)
    raise CommandFailed(f"'{path}' is neither a .npy file nor a picture ({', '.join(sorted(SUFFIXES))})")


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value
