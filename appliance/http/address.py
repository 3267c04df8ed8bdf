"""Listening addresses: ``host:port``, ``[v6 address]:port`` or ``unix:/path``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from appliance.errors import AddressUnavailable

_UNIX: Final = "unix:"
_TCP: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpAddress:
    """``host`` "" means every address of this machine; ``port`` 0 a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixAddress:
    """A socket file."""

    path: str

    def __str__(self) -> str:
        return _UNIX + self.path


Address = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """The address that ``text`` names; raises AddressUnavailable when it names none."""
    if text.startswith(_UNIX) and len(text) > len(_UNIX):
        return UnixAddress(path=text[len(_UNIX) :])
    found = _TCP.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise AddressUnavailable(
            f"'{text}' is not an address; write host:port, [v6 address]:port or unix:/path/to/socket"
        )
    return TcpAddress(host=found["v6"] or found["host"] or "", port=int(found["port"]))
