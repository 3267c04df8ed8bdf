"""What a running appliance loads and unloads on an operator's word, by its control socket."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.model import wait
from appliance.cli.rollout_progress import loading_of
from appliance.cli.snapshot import Source, understood
from appliance.cli.terminal import ShowShare, share_bar


def _add_load(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from appliance.cli import control_client

    parser.add_argument("model", metavar="NAME")
    control_client.add_arguments(parser)
    parser.add_argument(
        "--model-config",
        metavar="JSON|@FILE",
        help="the model's configuration as JSON, in the place of its config.pbtxt; what it leaves out has its default, "
        "but for the name of the model's file",
    )
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="PATH=FILE",
        help="a file of the model by its path in the model's directory, such as 1/model.onnx; all of them are to be "
        "given, and --model-config",
    )
    wait.add_place(parser, "for the progress bar: its", "seconds to wait at most; the load goes on")


def _load(arguments: argparse.Namespace) -> int:
    """Load, and show how far it is."""
    from appliance.cli import control_client

    began, source = time.monotonic(), Source(arguments)
    parameters = dict(_parameters(arguments.model_config, arguments.file))
    with share_bar(arguments.model) as show:
        control_client.load(
            arguments.socket,
            arguments.model,
            parameters,
            arguments.timeout,
            _look(source, arguments.model, show),
        )
    print(f"{printable(arguments.model)} is live after {time.monotonic() - began:.1f} s")
    return Exit.OK


def _look(source: Source, name: str, show: ShowShare | None) -> Callable[[], None]:
    """Show how far the appliance is, as far as it says so; another answer from there does not end the load."""

    def look() -> None:
        if show is None:
            return
        try:
            found = understood(source.fetch(), source.url, lambda document: loading_of(document, name))
        except CommandFailed:
            return
        if found is not None:
            show(found.share, found.text)

    return look


def _parameters(config: str | None, files: list[str]) -> Mapping[str, str | bytes]:
    found: dict[str, str | bytes] = {}
    if config is not None:
        found["config"] = (
            _read(Path(config[1:])).decode(errors="replace") if config.startswith("@") else config
        )
    for each in files:
        place, _, file = each.partition("=")
        if not place or not file:
            raise CommandFailed(f"--file '{each}' is not PATH=FILE, such as 1/model.onnx=new.onnx")
        found[f"file:{place}"] = _read(Path(file))
    return found


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"'{file}' cannot be read: {error.strerror}") from error


def _add_unload(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from appliance.cli import control_client

    parser.add_argument("model", metavar="NAME")
    control_client.add_arguments(parser)


def _unload(arguments: argparse.Namespace) -> int:
    """Unload."""
    from appliance.cli import control_client

    control_client.unload(arguments.socket, arguments.model, wait.LIMIT_S)
    print(f"{printable(arguments.model)} is not served any more")
    return Exit.OK


LOAD: Final = Command(
    about="""\
Have a running appliance load a model over its control socket: from its source anew, or with another configuration
or other files.

It lasts as long as the appliance runs. Returns when the model is served, or with the reason why it is not.
""",
    add_arguments=_add_load,
    run=_load,
)
UNLOAD: Final = Command(
    about="""\
Have a running appliance serve nothing of a model, over its control socket, until it is loaded again or the appliance
starts anew.""",
    add_arguments=_add_unload,
    run=_unload,
)
