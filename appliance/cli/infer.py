"""Send one request to a model over gRPC and show the answer.

An input is NAME=VALUES: JSON (nested lists, numbers, texts), words between commas, @FILE.npy, or @PICTURE, which is
fitted to the height, width and channels that the model takes. NAME= may be left out for a model with one input,
unless the value itself looks like NAME=VALUES.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from appliance.cli import endpoint
from appliance.cli.array import Array, add_shapes, encode, fit_shape, narrowed, parse_values, read_npy, zeros
from appliance.cli.endpoint import endpoint_of
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.numbers import DAY_MS, natural, number
from appliance.cli.oip_client import InputTensor, OipClient, Question, Signature
from appliance.cli.picture import SUFFIXES, read_picture
from appliance.cli.terminal import print_text
from appliance.cli.tls import GRPC
from appliance.domain.errors import system_reason
from appliance.domain.tensor import Datatype, TensorSpec

DEFAULT_CLASSES = 3
NPY = ".npy"
_NAME_LIKE = re.compile(r"([^\W\d][\w.:/-]*)=.*", re.DOTALL)
_FILE_LIKE = re.compile(r"(?:[^\W\d][\w.:/-]*=)?(@.*)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help="which model to ask")
    parser.add_argument(
        "--version", default="", metavar="V", help="model version (default: the server's choice)"
    )
    parser.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]VALUES|@FILE", help="once for each input"
    )
    parser.add_argument("--zeros", action="store_true", help="fill inputs that are not given with zeros")
    add_shapes(
        parser,
        "how large zeros and pictures are where the model takes any size (default: 1, and as they are)",
    )
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NAME",
        help="ask for this output only; may be repeated",
    )
    parser.add_argument(
        "--classes",
        type=natural(0),
        metavar="N",
        help=f"show the N best classes (default: {DEFAULT_CLASSES} for outputs with labels; 0: show values)",
    )
    endpoint.add_arguments(parser)
    parser.add_argument(
        "--timeout-ms", type=_deadline_ms, default=10_000.0, metavar="MS", help="deadline (default 10000)"
    )
    parser.add_argument(
        "--priority",
        type=natural(0),
        default=0,
        metavar="P",
        help="1 is the most urgent (default: 0, the model's own)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Ask once and show what came back."""
    _check_files(arguments.input)
    with OipClient(endpoint_of(arguments, GRPC), arguments.timeout_ms / 1_000) as client:
        signature = client.signature(arguments.model, arguments.version)
        specs = _of_shapes(arguments.model, signature.inputs, arguments.shape)
        inputs = build_inputs(arguments.model, specs, arguments.input, zero_fill=arguments.zeros)
        notes = [printable(each.note) for each in inputs if each.note]
        if not arguments.json:
            for note in notes:
                print_text(note, sys.stderr)
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
    from rich.console import Console

    from appliance.cli.answer import as_json, show

    if arguments.json:
        print(json.dumps({**as_json(reply, classes), "notes": notes}, allow_nan=False))
    else:
        show(Console(), reply, classes)
    return Exit.OK


def build_inputs(
    model: str, specs: Sequence[TensorSpec], words: Sequence[str], *, zero_fill: bool
) -> tuple[InputTensor, ...]:
    """The inputs as typed, converted to what the model takes. Raises CommandFailed."""
    given = _by_name(model, specs, words)
    known = {spec.name: spec for spec in specs}
    if zero_fill:
        filled = {name: None for name in known if name not in given}
        return tuple(_tensor(known[name], text) for name, text in {**given, **filled}.items())
    if specs and not given:
        takes = ", ".join(f"{spec.name} {spec.datatype.wire} {list(spec.shape)}" for spec in specs)
        raise CommandFailed(
            f"no input is given; the model takes {takes}. Give each with --input, or use --zeros"
        )
    return tuple(_tensor(known[name], text) for name, text in given.items())


def _of_shapes(
    model: str, specs: Sequence[TensorSpec], shapes: Sequence[tuple[str, tuple[int, ...]]]
) -> tuple[TensorSpec, ...]:
    """The inputs as large as is said. Raises CommandFailed."""
    said = dict(shapes)
    for name in said:
        if name not in {spec.name for spec in specs}:
            raise _no_such_input(model, specs, name)
    return tuple(narrowed(spec, said[spec.name]) if spec.name in said else spec for spec in specs)


def wanted_classes(signature: Signature, outputs: Sequence[str], classes: int | None) -> dict[str, int]:
    """Outputs to ask for, each with how many top classes of it."""
    names = list(outputs) or [spec.name for spec in signature.outputs]
    if classes is None:
        return {name: DEFAULT_CLASSES if name in signature.labelled else 0 for name in names}
    return dict.fromkeys(names, classes)


def _by_name(model: str, specs: Sequence[TensorSpec], words: Sequence[str]) -> Mapping[str, str]:
    given: dict[str, str] = {}
    for word in words:
        name, text = _split(model, specs, word)
        if name in given:
            raise CommandFailed(f"input '{name}' is given twice")
        given[name] = text
    return given


def _split(model: str, specs: Sequence[TensorSpec], word: str) -> tuple[str, str]:
    """Name and values. A name may hold ``=`` itself, so the longest that fits is meant."""
    names = [spec.name for spec in specs]
    fitting = [name for name in names if word.startswith(f"{name}=")]
    if fitting:
        name = max(fitting, key=len)
        return name, word[len(name) + 1 :]
    if mistaken := _NAME_LIKE.fullmatch(word):
        raise _no_such_input(model, specs, mistaken[1], word)
    if len(names) != 1:
        raise CommandFailed(
            f"'{word}' does not begin with the name of an input; the inputs are {', '.join(names)}"
        )
    return names[0], word


def _no_such_input(model: str, specs: Sequence[TensorSpec], name: str, word: str = "") -> CommandFailed:
    known = ", ".join(f"'{spec.name}'" for spec in specs) or "none"
    text = f"model '{model}' has no input '{name}'; it has {known}"
    if word and len(specs) == 1 and specs[0].datatype is Datatype.BYTES:
        text += f" (if that is a value, give --input '{specs[0].name}={word}')"
    return CommandFailed(text)


def _tensor(spec: TensorSpec, text: str | None) -> InputTensor:
    array = zeros(spec.shape, spec.datatype) if text is None else _array(spec, text)
    if text is None and array.note:
        array = replace(array, note=f"input '{spec.name}': {array.note}")
    shape = fit_shape(array, spec.shape, spec.name)
    return InputTensor(
        name=spec.name,
        datatype=spec.datatype,
        shape=shape,
        raw=encode(array, spec.datatype, spec.name),
        note=array.note,
    )


def _array(spec: TensorSpec, text: str) -> Array:
    if not text.startswith("@"):
        return parse_values(text)
    path = _path(text)
    return read_npy(path) if path.suffix.lower() == NPY else read_picture(path, spec.shape, spec.name)


def _path(text: str) -> Path:
    """The file that ``text`` names. Raises CommandFailed for one of another kind."""
    path = Path(text[1:])
    if path.suffix.lower() not in {NPY, *SUFFIXES}:
        raise CommandFailed(f"'{path}' is neither a {NPY} file nor a picture ({', '.join(sorted(SUFFIXES))})")
    return path


def _check_files(words: Sequence[str]) -> None:
    """Raise CommandFailed for a file that is not there, before anybody is asked what the model takes."""
    for word in words:
        if found := _FILE_LIKE.fullmatch(word):
            path = _path(found[1])
            try:
                path.stat()
            except (OSError, ValueError) as error:
                raise CommandFailed(f"'{path}' cannot be read: {system_reason(error)}") from error


def _deadline_ms(text: str) -> float:
    value = number(text, "number of milliseconds")
    if not 0 < value <= DAY_MS:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most {DAY_MS}, which is a day")
    return value
