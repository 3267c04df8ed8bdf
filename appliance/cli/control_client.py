"""The operator's side of the control socket: has a running appliance load and unload models, and failures in one
sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import grpc

from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.oip_client import SERVICE, UNBOUNDED
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb

LOOK_S: Final = 0.1
"""How often ``waiting`` is called."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the socket is."""
    parser.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        required=True,
        help="the control socket: 'control.socket' of the appliance's configuration",
    )


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
    with grpc.insecure_channel(f"unix:{path.absolute()}", options=UNBOUNDED) as channel:
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
    if code is grpc.StatusCode.UNAVAILABLE:
        return CommandFailed(f"nobody answers at '{path}': {details}", Exit.UNREACHABLE)
    return CommandFailed(f"{details} ({code.name})", Exit.REFUSED)
