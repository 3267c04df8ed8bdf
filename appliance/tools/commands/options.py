"""What the commands that try a model have in common: finding it, progress on a terminal, failures in one sentence."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from appliance.cli import array, package_policy
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.numbers import nonnegative, version_number
from appliance.config.repository import RepositoryConfig
from appliance.domain.device_wish import parse_wish
from appliance.domain.errors import ApplianceError, ConfigInvalid, ModelInvalid
from appliance.domain.golden import SET_FILE, Tolerance
from appliance.tools.subject import Subject, SubjectAbsent, find_subject

_TOLERANCE: Final = re.compile(r"(.+)=([^,=]+)(?:,([^,=]+))?")


def add_source(parser: argparse.ArgumentParser) -> None:
    """The model that is tried, and by what it may be served."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        type=Path,
        help="an ONNX file, the directory of a version, or that of a model",
    )
    parser.add_argument(
        "--version", type=version_number, help="version of a model's directory (default: the highest)"
    )
    package_policy.add_repository(parser)


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Sizes for free dimensions."""
    array.add_shapes(parser, "shape of an input with free dimensions, without the batch")


def add_device(parser: argparse.ArgumentParser, default: str = "as that says") -> None:
    """Where the model is tried."""
    parser.add_argument(
        "--device",
        type=_device,
        metavar="cpu|cuda|cuda:N",
        help=f"where it runs, whatever config.pbtxt says; N as nvidia-smi counts GPUs (default: {default})",
    )


def add_tolerances(parser: argparse.ArgumentParser) -> None:
    """Tolerances of single outputs."""
    parser.add_argument(
        "--tolerance",
        action="append",
        default=[],
        type=_tolerance,
        metavar="OUTPUT=ABSOLUTE[,RELATIVE]",
        help="how far values of an output may be off; may be repeated",
    )


def subject_of(arguments: argparse.Namespace, settings: RepositoryConfig) -> Subject:
    """What is to be tried; a golden set that is left is told. Raises CommandFailed."""
    with sentences():
        subject = find_subject(arguments.source, settings, arguments.version)
    tell_left(os.path.basename(subject.version.path), subject.golden_of)
    return subject


def tell_left(file: str, golden_of: str) -> None:
    """Say of the model file ``file`` that the golden set beside it was made of the file ``golden_of`` ("": it was
    not)."""
    if golden_of:
        text = (
            f"{SET_FILE} beside '{file}' was made of '{golden_of}' and is not taken; move '{file}' into a directory of "
            "its own to make one of it"
        )
        print(printable(text), file=sys.stderr)


@contextmanager
def sentences() -> Iterator[None]:
    """Turn what the product raises into the failure of a command."""
    try:
        yield
    except (ModelInvalid, ConfigInvalid) as error:
        found = [str(problem) for problem in error.problems]
        raise CommandFailed("the model cannot be used", Exit.REFUSED, lines=found) from error
    except SubjectAbsent as error:
        raise CommandFailed(str(error)) from error
    except ApplianceError as error:
        raise CommandFailed(str(error), Exit.REFUSED) from error


def tolerances_by_output(
    pairs: Sequence[tuple[str, Tolerance]], known: Sequence[str]
) -> Mapping[str, Tolerance]:
    """Tolerances by output. Raises CommandFailed for an output that there is not."""
    check_outputs([name for name, _ in pairs], known)
    return dict(pairs)


def check_outputs(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise CommandFailed for an output that there is not."""
    for name in names:
        if name not in known:
            raise CommandFailed(f"the model has no output '{name}'; it has {', '.join(known)}")


def _device(text: str) -> str:
    try:
        return str(parse_wish(text.lower()))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _tolerance(text: str) -> tuple[str, Tolerance]:
    match = _TOLERANCE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError("give OUTPUT=ABSOLUTE[,RELATIVE]")
    return match[1], Tolerance(absolute=nonnegative(match[2]), relative=nonnegative(match[3] or "0"))
