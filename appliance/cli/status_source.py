"""Where ``/status.json``, and what else an appliance says of itself over HTTP, is fetched."""

from __future__ import annotations

import argparse
import ssl
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPException
from typing import Final

from appliance.cli.connection import http_connection, other_port, spoken_at
from appliance.cli.endpoint import endpoint_of
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.tls import GRPC, HTTP, refused, words

STATUS: Final = "/status.json"
METRICS: Final = "/metrics"
BYTES_MAX: Final = 64 << 20
"""Of a document; who answers may be anybody, and the boot gate asks as root."""


class StatusSource:
    """Where the document comes from: an appliance as the arguments name it, by either of its ports."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """``arguments`` are those of ``endpoint``. Raises CommandFailed."""
        self._endpoint = endpoint_of(arguments, HTTP)

    @property
    def url(self) -> str:
        """Its address, for people."""
        return str(self._endpoint)

    def fetch(self, page: str = STATUS) -> bytes:
        """The document, or another ``page``. Raises CommandFailed when no server answers there with one."""
        try:
            return self._fetch(page)
        except CommandFailed:
            if spoken_at(self._endpoint) != GRPC:
                raise
        self._endpoint = other_port(self._endpoint, HTTP)
        return self._fetch(page)

    def _fetch(self, page: str) -> bytes:
        where = self._endpoint
        try:
            with closing(http_connection(where)) as connection:
                connection.request("GET", f"{where.prefix}{page}")
                answer = connection.getresponse()
                document = answer.read(BYTES_MAX)
        except (HTTPException, ConnectionResetError):
            raise self._no_answer() from None
        except ssl.SSLError as error:
            raise refused(self.url, words(error)) from None
        except (OSError, ValueError) as error:
            raise CommandFailed(
                f"no server answers at {where} ({error}); start one with 'appliance serve', or give its --url",
                Exit.UNREACHABLE,
            ) from None
        if answer.status != HTTPStatus.OK:
            hint = "it speaks TLS, so give --ca FILE" if b"speaks TLS" in document else "is it an appliance?"
            text = f"{where} answered {answer.status} {answer.reason}; {hint}"
            raise CommandFailed(text, Exit.REFUSED)
        return document

    def _no_answer(self) -> CommandFailed:
        if self._endpoint.tls is None:
            return no_appliance(self.url, "what it says is not HTTP; where that speaks TLS, give --ca FILE")
        text = "but ended the connection; where clients must show a certificate, give --cert and --key"
        return CommandFailed(f"something answers at {self.url}, {text}", Exit.UNREACHABLE)


def no_appliance(url: str, reason: str) -> CommandFailed:
    """The failure of whoever asked ``url`` for the status of an appliance."""
    return CommandFailed(
        f"something answers at {url}, but it is not the HTTP port of an appliance ({reason}); "
        f"give --url the address that 'appliance serve' shows",
        Exit.UNREACHABLE,
    )
