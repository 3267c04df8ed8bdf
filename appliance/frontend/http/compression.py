"""gzip and deflate of bodies: which of them a client sends and accepts, and requests unfolded within bounds.

A body of a kilobyte may unfold to a megabyte: what comes out is held to a limit while it comes out, and the
loop gets a turn between pieces. Answers are compressed by the HTTP library.
"""

from __future__ import annotations

import zlib
from http import HTTPStatus
from typing import Final, NamedTuple

from appliance.domain.errors import InvalidRequest, MessageTooLarge
from appliance.frontend.http.status import HttpRefusal, quotable
from appliance.frontend.turns import Turns

PIECE_BYTES: Final = 256 * 1024
"""Plain bytes made in one turn of the loop: about a millisecond."""
FOLDED_PIECE_BYTES: Final = 64 * 1024
"""Bytes that are handed to zlib at once: with each piece that it makes it copies all that it has not read of them."""

_GZIP, _ZLIB, _BARE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
COMPRESS_MIN_BYTES: Final = 1024
"""Smallest answer that is compressed when the client asks: below it, one packet carries it either way."""


class Limit(NamedTuple):
    """How many bytes a body may have, and the setting that says so; "": it is fixed."""

    nbytes: int
    key: str = ""

    def __str__(self) -> str:
        return f"{self.nbytes} bytes ({self.key})" if self.key else f"{self.nbytes} bytes"


def request_encoding(header: str) -> str:
    """The coding of a request body: "" for none, else "gzip" or "deflate". Raises HttpRefusal (415) for
    another."""
    coding = header.strip().lower()
    if coding in ("", "identity"):
        return ""
    if coding in ("gzip", "x-gzip", "deflate"):
        return coding.removeprefix("x-")
    raise HttpRefusal(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"Content-Encoding '{quotable(header)}' is not supported; send gzip, deflate or none",
        {"Accept-Encoding": "gzip, deflate"},
    )


def response_encoding(header: str, *, tensors: bool) -> str:
    """The coding to answer with, from Accept-Encoding: "" for none.

    HTTP libraries list every coding they know without being asked. Squeezing tensors costs far more time than
    it saves on the way, so an answer with binary ``tensors`` is compressed only for a client that names
    exactly one."""
    wanted = [name for name, weight in map(_preference, header.lower().split(",")) if name and weight]
    if tensors and len(wanted) != 1:
        return ""
    return next((name for name in ("gzip", "deflate") if name in wanted), "")


def _preference(item: str) -> tuple[str, bool]:
    name, _, parameters = item.partition(";")
    return name.strip(), parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")


async def unfold(body: bytes | bytearray | memoryview, coding: str, limit: Limit, turns: Turns) -> bytearray:
    """The plain bytes of ``body``. Raises InvalidRequest when it is not whole, MessageTooLarge over ``limit``."""
    # "deflate" means the zlib form, but some clients send the bare stream; the first byte tells them apart
    wbits = _GZIP if coding == "gzip" else (_ZLIB if body[:1] and body[0] & 0x0F == 8 else _BARE)
    engine = zlib.decompressobj(wbits)
    plain = bytearray()
    view = memoryview(body)
    read = 0
    try:
        while read < len(view) and not engine.eof:
            rest: memoryview | bytes = view[read : read + FOLDED_PIECE_BYTES]
            read += len(rest)
            more = True
            while more:
                piece = engine.decompress(rest, PIECE_BYTES)
                rest = engine.unconsumed_tail
                more = len(piece) == PIECE_BYTES  # else it has read all and made all that it could of it
                plain += piece
                if len(plain) > limit.nbytes:
                    raise MessageTooLarge(f"request body is larger than {limit} when decompressed")
                await turns.next()
    except zlib.error as error:
        raise InvalidRequest(f"request body is not valid {coding}: {error}") from None
    if not engine.eof:
        raise InvalidRequest(f"request body is cut short: its {coding} stream does not end")
    if engine.unused_data or read < len(view):
        raise InvalidRequest(f"request body goes on after the end of its {coding} stream")
    return plain
