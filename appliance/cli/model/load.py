"""What a running appliance loads and unloads on an operator's word, by its control socket."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import grpc

from appliance.cli import endpoint
from appliance.cli.arguments import configuration_at, contents
from appliance.cli.command_table import Command
from appliance.cli.connection import grpc_channel
from appliance.cli.endpoint import Endpoint
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.model import wait
from appliance.cli.oip_client import SERVICE
from appliance.cli.rollout_progress import loading_of
from appliance.cli.snapshot import understood
from appliance.cli.status_source import StatusSource
from appliance.cli.terminal import ShowShare, share_bar
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb

LOOK_S: Final = 0.1
"""How often ``waiting`` is called."""
ANSWERED: Final = ("failed to load '", "failed to unload '")
"""So begins what an appliance says; gRPC has words of its own where none answers, with the same status."""


def _add_socket(parser: argparse.ArgumentParser) -> None:
    """Declare where the socket is, and the configuration that says it."""
    parser.add_argument(
        "--socket", metavar="PATH", type=Path, help="the control socket (default: control.socket of --config)"
    )
    endpoint.add_arguments(parser)
    parser.set_defaults(settle=(_settle,))


def _settle(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.socket is None and arguments.config is not None:
        said = configuration_at(arguments.config).control.socket
        arguments.socket = Path(said) if said else None
    if arguments.socket is None:
        parser.error("--socket is required, or a --config that says control.socket")


def load(
    path: Path,
    name: str,
    parameters: Mapping[str, str | bytes],
    timeout_s: float,
    waiting: Callable[[], None],
) -> None:
    """Have the model served; ``waiting`` is called now and then meanwhile. Fails when it is not."""
    request = pb.RepositoryModelLoadRequest(model_name=name)
    for key, value in parameters.items():
        if isinstance(value, bytes):
            request.parameters[key].bytes_param = value
        else:
            request.parameters[key].string_param = value
    _call(path, "RepositoryModelLoad", request.SerializeToString(), timeout_s, waiting)


def unload(path: Path, name: str, timeout_s: float) -> None:
    """Have the model served no more."""
    request = pb.RepositoryModelUnloadRequest(model_name=name)
    _call(path, "RepositoryModelUnload", request.SerializeToString(), timeout_s, lambda: None)


def _call(path: Path, method: str, request: bytes, timeout_s: float, waiting: Callable[[], None]) -> None:
    """The answer says nothing that is not known when there is one."""
    _check_there(path)
    with grpc_channel(Endpoint(said=str(path), socket=str(path))) as channel:
        rpc = channel.unary_unary(f"/{SERVICE}/{method}", request_serializer=None, response_deserializer=None)
        answer = rpc.future(request, timeout=timeout_s)
        while True:
            try:
                answer.result(LOOK_S)
                return
            except grpc.FutureTimeoutError:
                waiting()
            except grpc.RpcError as error:
                raise _failure(path, error, timeout_s) from None


def _check_there(path: Path) -> None:
    try:
        there = path.is_socket()
    except OSError as error:
        raise CommandFailed(
            f"'{path}' cannot be looked at: {error.strerror}; run this as a user who may, and give the path of "
            "control.socket of 'appliance serve'",
            Exit.UNREACHABLE,
        ) from None
    if not there:
        raise CommandFailed(
            f"'{path}' is no socket; set control.socket for 'appliance serve', and give its path",
            Exit.UNREACHABLE,
        )


def _failure(path: Path, error: grpc.RpcError, timeout_s: float) -> CommandFailed:
    code, details = error.code(), error.details()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = f"no answer within {timeout_s:g} s; what was asked for goes on, 'appliance status' tells how far it is"
        return CommandFailed(text, Exit.REFUSED)
    if code is grpc.StatusCode.UNAVAILABLE and not str(details).startswith(ANSWERED):
        return CommandFailed(
            f"no appliance answers at '{path}': {details}; is 'appliance serve' running with this control.socket?",
            Exit.UNREACHABLE,
        )
    return CommandFailed(f"{details} ({code.name})", Exit.REFUSED)


def _add_load(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME", help="the model")
    _add_socket(parser)
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
    wait.add_bound(parser, "seconds to wait at most; the load goes on")


def _load(arguments: argparse.Namespace) -> int:
    """Load, and show how far it is."""
    began, source = time.monotonic(), StatusSource(arguments)
    parameters = dict(_parameters(arguments.model_config, arguments.file))
    with share_bar(arguments.model) as show:
        load(
            arguments.socket,
            arguments.model,
            parameters,
            wait.bound_s(arguments),
            _look(source, arguments.model, show),
        )
    print(f"{printable(arguments.model)} is live after {time.monotonic() - began:.1f} s")
    return Exit.OK


def _look(source: StatusSource, name: str, show: ShowShare | None) -> Callable[[], None]:
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
            contents(Path(config[1:])).decode(errors="replace") if config.startswith("@") else config
        )
    for each in files:
        place, _, file = each.partition("=")
        if not place or not file:
            raise CommandFailed(f"--file '{each}' is not PATH=FILE, such as 1/model.onnx=new.onnx")
        found[f"file:{place}"] = contents(Path(file))
    return found


def _add_unload(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME", help="the model")
    _add_socket(parser)


def _unload(arguments: argparse.Namespace) -> int:
    """Unload."""
    unload(arguments.socket, arguments.model, wait.LIMIT_S)
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
