"""Serve the models of a directory, or of a store, until SIGTERM or Ctrl-C; SIGHUP has it look there again."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import configuration
from appliance.cli.arguments import add_models, given_models
from appliance.cli.failure import CommandFailed, printable
from appliance.config.grpc import GrpcConfig
from appliance.config.listening import FrontEndKind
from appliance.config.telemetry import LogConfig, LogFormat, LogLevel
from appliance.config.tree import ApplianceConfig
from appliance.domain.address import parse_address
from appliance.domain.errors import ConfigInvalid
from appliance.domain.model import VersionState
from appliance.frontend.listening.certificates import bearer_of

if TYPE_CHECKING:
    from appliance.daemon.daemon import Started
    from appliance.engine.port import IndexEntry

DEFAULT_GRPC = "127.0.0.1:8001"
SHOWN_MODELS = 20
LOADING = "is still being loaded"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_models(parser)
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="TOML file; 'appliance config show' lists the keys"
    )
    parser.add_argument("--grpc", metavar="HOST:PORT", help=f"gRPC address (default {DEFAULT_GRPC})")
    parser.add_argument(
        "--frontend",
        choices=[kind.value for kind in FrontEndKind],
        help="who listens: native ('make native' builds it), python, or auto (default: native where it was built)",
    )
    parser.add_argument("--http", metavar="HOST:PORT", help="HTTP address (default 127.0.0.1:8000)")
    parser.add_argument(
        "--log-format",
        choices=[choice.value for choice in LogFormat],
        help="how log lines look (default: log.format of --config, else auto: console on a terminal, json elsewhere)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve; gives the daemon's exit status. A SIGHUP that comes before the daemon can heed it waits until then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    config = configured(arguments)
    from appliance.daemon import daemon

    def announce(started: Started) -> None:
        """In one write: the log's lines may go to the same place."""
        said = welcome(started, config.place, config.grpc, logged=_logs_here(config.log))
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()

    reread = partial(configuration.reload, arguments.config, _overrides(arguments), "quotas")
    return daemon.run(config, announce, reread)


def configured(arguments: argparse.Namespace) -> ApplianceConfig:
    """The configuration file, or the defaults, with what the command line says instead, checked against this
    machine. Raises CommandFailed with all problems."""
    try:
        return configuration.load(arguments.config, _overrides(arguments))
    except ConfigInvalid as error:
        raise CommandFailed("the configuration has problems:", lines=map(str, error.problems)) from error


def _overrides(arguments: argparse.Namespace) -> dict[str, object]:
    """What the command line says, as a table of the configuration."""
    said = {
        "frontend": {"kind": arguments.frontend} if arguments.frontend else {},
        "grpc": {"addresses": [arguments.grpc]} if arguments.grpc else {},
        "http": {"addresses": [arguments.http]} if arguments.http else {},
        "log": {"format": arguments.log_format} if arguments.log_format else {},
    }
    return {**said, **given_models(arguments)}


def _logs_here(log: LogConfig) -> bool:
    """Whether the log's warnings go, in its form for people, to the terminal on which the start is told."""
    for_people = log.format is not LogFormat.JSON and log.level is not LogLevel.ERROR
    return for_people and not log.file and sys.stdout.isatty() and sys.stderr.isatty()


def welcome(started: Started, models: str, settings: GrpcConfig, *, logged: bool = False) -> str:
    """What a person sees once the first models are ready: the addresses, the models, a line to copy. ``settings`` are
    the gRPC port's; ``logged``: why versions failed was told there just before."""
    ready = [f"{entry.name}/{entry.version}" for entry in started.index if entry.state is VersionState.READY]
    broken = [entry for entry in started.index if entry.state is not VersionState.READY]
    failed = [entry for entry in broken if logged and entry.state is VersionState.UNAVAILABLE]
    told = [entry for entry in broken if not logged or entry.state is not VersionState.UNAVAILABLE]
    lines = [
        f"Serving {started.bound} ({started.front_end.value} front end)",
        f"Ready: {_listing(ready)}" if ready else f"No model in '{printable(models)}' is ready.",
        *(printable(f"Not ready: {_key(entry)}: {entry.reason or LOADING}") for entry in told[:SHOWN_MODELS]),
    ]
    if len(told) > SHOWN_MODELS:
        lines.append(f"Not ready: {len(told) - SHOWN_MODELS} more; 'appliance status' shows them")
    if failed:
        lines.append(f"Not ready, for reasons that the log above gives: {_listing(list(map(_key, failed)))}")
    if ready and started.bound.grpc:
        name = _best_example([key.rsplit("/", 1)[0] for key in ready], Path(models))
        address = started.bound.grpc[0]
        lines.append(f"Try:   {example(name, Path(models), address)}{tls_words(settings, address)}")
    return "\n".join(lines)


def _key(entry: IndexEntry) -> str:
    return "/".join(filter(None, (entry.name, entry.version)))


def example(name: str, models: Path, address: str) -> str:
    """A command that gets a real answer from model ``name``: a golden picture where there is one, else zeros."""
    words = [_command(), "infer", name]
    picture = _golden_picture(models / name)
    words += ["--input", f"@{picture}"] if picture else ["--zeros"]
    if address != DEFAULT_GRPC:
        words += ["--url", address]
    return shlex.join(words)


def tls_words(settings: GrpcConfig, address: str) -> str:
    """The rest of that command where ``address`` speaks TLS, as Unix sockets never do. The certificate of the client is
    left to fill in."""
    parsed = parse_address(address)
    if not settings.tls_certificate or parsed.path:
        return ""
    words = ["--ca", settings.tls_certificate]
    bearer = bearer_of(settings)
    if bearer is not None and bearer.names and parsed.host not in bearer.names:
        words += ["--server-name", bearer.names[0].replace("*", "any", 1)]
    if settings.tls_client_ca:
        words += ["--cert", "FILE", "--key", "FILE"]
    return f" {shlex.join(words)}"


def _best_example(names: list[str], models: Path) -> str:
    return next((name for name in names if _golden_picture(models / name)), names[0])


def _golden_picture(model: Path) -> Path | None:
    return min(model.glob("golden/*.png"), default=None)


def _listing(keys: list[str]) -> str:
    more = f" and {len(keys) - SHOWN_MODELS} more" if len(keys) > SHOWN_MODELS else ""
    return printable(", ".join(keys[:SHOWN_MODELS])) + more


def _command() -> str:
    """How the person started us, as short as it can be typed again."""
    started = Path(sys.argv[0])
    if started.name != "appliance":
        return "appliance"
    on_path = any(Path(folder) == started.parent for folder in os.get_exec_path())
    if on_path:
        return "appliance"
    here = os.path.relpath(started)
    return here if len(here) < len(str(started)) else str(started)
