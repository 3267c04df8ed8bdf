"""The way from a person's terminal to the controller: who he is, where it is, requests and their failures.

A profile, made by ``appliance fleet login``, holds URL, token and the controller's authority; APPLIANCE_CONTROLLER
names another file than the usual one.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlencode, urlsplit

from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.terminal import print_text

PROFILE: Final = "APPLIANCE_CONTROLLER"
API: Final = "/api/v1"
TIMEOUT_S: Final = 600.0
WATCH_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the controller is, and as whom it is asked. ``authority`` is PEM."""

    url: str
    token: str
    authority: str


def profile_path() -> Path:
    """Where the profile lies."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(os.environ.get(PROFILE) or home / "edge-appliance" / "controller.json")


def write_profile(profile: Profile) -> Path:
    """Keep it, for its owner alone."""
    path = profile_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        json.dump(asdict(profile), file)
    return path


def read_profile() -> Profile:
    """Who asks. Raises CommandFailed."""
    path = profile_path()
    try:
        return Profile(**json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        text = f"nobody is logged in at a controller; 'appliance fleet login URL' does it ('{path}' is not there)"
        raise CommandFailed(text) from error
    except (OSError, ValueError, TypeError) as error:
        raise CommandFailed(
            f"'{path}' cannot be read; log in again by 'appliance fleet login URL'"
        ) from error


def _place(url: str) -> tuple[str, int]:
    """Host and port. Raises CommandFailed."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 443
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme != "https" or parts.path.strip("/"):
        raise CommandFailed(f"'{url}' is no URL of a controller: https://HOST:PORT")
    return host, port


class ControllerTrouble(CommandFailed):
    """The controller cannot do now what is asked; later it may."""


class Controller:
    """The controller; each question is a connection of its own, on which it may be silent for ``timeout_s``."""

    def __init__(self, profile: Profile, timeout_s: float = TIMEOUT_S) -> None:
        host, port = _place(profile.url)
        context = ssl.create_default_context()
        if profile.authority:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            try:
                context.load_verify_locations(cadata=profile.authority)
            except ssl.SSLError as error:
                raise CommandFailed("what was given as the authority is no certificate (PEM)") from error
        self._url = profile.url
        self._token = profile.token
        self._connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)

    def get(self, path: str, **query: str | int) -> Any:
        """What is there. Raises CommandFailed."""
        asked = {key: value for key, value in query.items() if value not in ("", None)}
        return self._ask("GET", path + (f"?{urlencode(asked)}" if asked else ""), None, {})

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Have something changed. Raises CommandFailed."""
        data = json.dumps(body).encode() if body is not None else b""
        return self._ask("POST", path, data, {"Content-Type": "application/json"})

    def upload(self, path: str, file: BinaryIO, size: int) -> Any:
        """Hand over a file. Raises CommandFailed."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        return self._ask("POST", path, file, headers)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        headers = {**headers, "Authorization": f"Bearer {self._token}"}
        try:
            self._connection.request(method, API + path, body, headers)
            answer = self._connection.getresponse()
            data = answer.read()
        except ssl.SSLCertVerificationError as error:
            text = f"who answers at {self._url} is not the controller: {error.verify_message}; give its --authority"
            raise CommandFailed(text, Exit.UNREACHABLE) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            text = f"the controller at {self._url} does not answer: {reason}"
            raise CommandFailed(text, Exit.UNREACHABLE) from error
        finally:
            self._connection.close()
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise (self._elder(path) if answer.status == HTTPStatus.NOT_FOUND else self.stranger()) from error
        if answer.status < 400:
            return document
        if not isinstance(document, dict):
            raise self.stranger()
        kind = ControllerTrouble if answer.status >= 500 else CommandFailed
        raise kind(str(document.get("error", "refused")), Exit.REFUSED)

    def _elder(self, path: str) -> CommandFailed:
        """What is told where nothing is at the path, in words that are none of this API."""
        asked = API + path.partition("?")[0]
        text = f"what answers at {self._url} does not know '{asked}': it is a controller of an earlier release, or none"
        return CommandFailed(text, Exit.UNREACHABLE)

    def stranger(self) -> CommandFailed:
        """What is told where an answer is none of a controller."""
        return CommandFailed(f"what answers at {self._url} is no controller", Exit.UNREACHABLE)


def watched(show: Callable[[], None], *, watch: bool) -> int:
    """Show once, or again and again until it is interrupted."""
    while True:
        if watch:
            clear_screen()
        with _uncollected():
            show()
        sys.stdout.flush()
        if not watch:
            return Exit.OK
        time.sleep(WATCH_S)


def clear_screen() -> None:
    """Begin anew at the top, where standard output is a screen."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[2J\x1b[H")


@contextmanager
def _uncollected() -> Iterator[None]:
    """Within it the interpreter's collector rests: what a large fleet is told in has no cycles, and the collector would
    go through all of it many times."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def table(
    titles: tuple[str, ...],
    rows: list[tuple[object, ...]],
    notes: list[str] | None = None,
    *,
    lines: int | None = None,
) -> None:
    """Print a table of plain cells, of which the last one in a row may be long, and ``notes`` below it; with ``lines``
    in so many at most. A title in parentheses is of a column that leaves where there is no room."""
    from rich.text import Text

    from appliance.cli.text_table import Column, TextTable, output

    *first, tail = titles
    columns = tuple(Column(title=each.strip("()"), left=True, leaves=each.startswith("(")) for each in first)
    cells = [[Text(printable(str(cell))) for cell in row] for row in rows]
    said = [printable(note) for note in notes or ()]
    bounded = [] if lines is None else [Text(note) for note in said]
    output().print(TextTable(columns=columns, rows=cells, notes=bounded, tail=tail, lines=lines))
    if lines is None and said:
        print_text("\n".join(said), below="  ")
