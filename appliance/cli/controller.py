"""The controller of a fleet: made once in a directory, then served. Boxes and people reach it at one port."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.numbers import TOKEN_HOURS_MAX, natural
from appliance.cli.person import who
from appliance.domain.errors import OperatorError


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIRECTORY", type=Path, help="where the controller keeps everything"
    )


def _add_init(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``init``."""
    _add_place(parser)
    parser.add_argument("--url", required=True, help="https URL at which boxes reach the controller")
    parser.add_argument(
        "--address",
        default="",
        metavar="HOST:PORT",
        help="where to listen (default: the port of URL, on all addresses)",
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        help="another name or address at which it is reached; may be repeated",
    )
    parser.add_argument(
        "--package-key",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="public key that packages may be signed with; may be repeated",
    )


def _init(arguments: argparse.Namespace) -> int:
    """Make it."""
    with _told():
        from appliance.controller.home import AUTHORITY, OFFLINE, Settings, listening_at, make_home
        from appliance.controller.server import wall_ms

        address = arguments.address or listening_at(arguments.url)
        settings = Settings(url=arguments.url, address=address)
        folder: Path = arguments.directory
        token = make_home(folder, settings, arguments.host, arguments.package_key, wall_ms())
        authority = folder / AUTHORITY.replace(".pem", ".crt")
        from appliance.controller.authority import Authority

        authority.write_text(Authority.load((folder / AUTHORITY).read_bytes()).pem)
    print(f"A controller was made in '{folder}'.")
    print(f"Its root key is in '{folder / OFFLINE}': carry it to where no network is, and keep a copy.")
    if not arguments.package_key:
        print(
            "Boxes trust no maker of packages yet: --package-key, or later 'appliance fleet root make', names some."
        )
    print(f"Serve it:   appliance controller serve {folder}")
    print(f"Log in:     appliance fleet login {arguments.url} --authority {authority}")
    print(f"The first admin's token, shown once: {token}")
    return Exit.OK


def _serve(arguments: argparse.Namespace) -> int:
    """Serve it until a signal."""
    with _told():
        from appliance.config.telemetry import LogConfig
        from appliance.controller.home import open_home
        from appliance.controller.server import serve
        from appliance.telemetry.log import configure

        home = open_home(arguments.directory)
        log = configure(LogConfig())

        def ready(place: str) -> None:
            print(f"The controller listens at {place} for {home.settings.url}", flush=True)
            log.event("controller serves", at=place, url=home.settings.url)

        try:
            asyncio.run(serve(home, ready, log.event))
            log.event("controller stopped")
        finally:
            home.close()
            log.close()
    return Exit.OK


def _add_token(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument("--person", required=True, metavar="NAME", help="whose it is")
    parser.add_argument(
        "--role",
        choices=("viewer", "operator", "admin"),
        default="admin",
        help="of the person (default: admin)",
    )
    parser.add_argument(
        "--hours", type=natural(1, TOKEN_HOURS_MAX), default=24, help="how long it is good (default: a day)"
    )


def _token(arguments: argparse.Namespace) -> int:
    """Make it."""
    with _told():
        from appliance.controller.by_hand import desk_of, token_by_hand
        from appliance.controller.schemas import PersonTokenRequest
        from appliance.controller.server import wall_ms

        with desk_of(arguments.directory) as desk:
            wished = PersonTokenRequest(name=arguments.person, role=arguments.role, hours=arguments.hours)
            print(token_by_hand(desk, wished, who(), wall_ms()))
    return Exit.OK


@contextmanager
def _told() -> Iterator[None]:
    """Tell failures as sentences, a missing extra among them."""
    if importlib.util.find_spec("sqlalchemy") is None or importlib.util.find_spec("alembic") is None:
        raise CommandFailed(
            "the controller needs packages that a box does not: pip install 'edge-appliance[controller]'"
        )
    try:
        yield
    except OperatorError as error:
        raise CommandFailed(str(error)) from error


INIT = Command(about="Make a controller in a directory.", add_arguments=_add_init, run=_init)
TOKEN = Command(
    about="Make a token for a person where the controller is, in the place of one of the same name.\n\n"
    "The way in when all tokens are lost or over: it asks for none. Whoever may write the directory may do it, and the "
    "audit log has it. A controller that runs may run on.",
    add_arguments=_add_token,
    run=_token,
)
SERVE = Command(about="Serve the controller of a directory.", add_arguments=_add_place, run=_serve)
