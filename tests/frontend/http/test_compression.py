"""Bodies unfold within bounds; answers are compressed when the client wants it."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib

import pytest

from appliance.domain.errors import InvalidRequest, MessageTooLarge
from appliance.frontend.http import compression
from appliance.frontend.http.compression import (
    FOLDED_PIECE_BYTES,
    PIECE_BYTES,
    Limit,
    request_encoding,
    response_encoding,
)
from appliance.frontend.http.status import HttpRefusal
from appliance.frontend.turns import Turns


async def unfold(body: bytes, coding: str, limit: int) -> bytearray:
    return await compression.unfold(body, coding, Limit(limit, "http.max_body_bytes"), Turns())


PLAIN = bytes(range(256)) * 4096


def _bare(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return engine.compress(data) + engine.flush()


@pytest.mark.parametrize("length", [0, 1, PIECE_BYTES, len(PLAIN)])
async def test_every_form_unfolds(length: int) -> None:
    plain = PLAIN[:length]
    assert await unfold(gzip.compress(plain), "gzip", length) == plain
    assert await unfold(zlib.compress(plain), "deflate", length) == plain
    assert await unfold(_bare(plain), "deflate", length) == plain


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_stream_may_end_where_a_piece_of_it_does(coding: str) -> None:
    sizes = set()
    for length in range(FOLDED_PIECE_BYTES - 64, FOLDED_PIECE_BYTES):
        engine = zlib.compressobj(0, wbits=31 if coding == "gzip" else 15)  # one byte more is one byte more
        folded = engine.compress(bytes(length)) + engine.flush()
        sizes.add(len(folded))
        assert await unfold(folded, coding, length) == bytes(length)
        with pytest.raises(InvalidRequest, match="goes on after the end"):
            await unfold(folded + b"x", coding, length)
        with pytest.raises(InvalidRequest, match="cut short"):
            await unfold(folded[:-1], coding, length)
    assert {FOLDED_PIECE_BYTES - 1, FOLDED_PIECE_BYTES, FOLDED_PIECE_BYTES + 1} <= sizes


async def test_what_is_yet_to_be_unfolded_is_not_copied_in_each_turn() -> None:
    """Held against memory, of which the body's own is the least that such a copy takes."""
    plain = random.Random(1).randbytes(32 * PIECE_BYTES)
    folded = gzip.compress(plain, 1)
    assert len(folded) >= len(plain)
    tracemalloc.start()
    try:
        await unfold(folded, "gzip", len(plain))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(plain) * 9 // 8 + 8 * PIECE_BYTES


async def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(
        MessageTooLarge, match=r"larger than 1048576 bytes \(http.max_body_bytes\) when decompressed"
    ):
        await unfold(bomb, "gzip", 1 << 20)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_broken_streams_are_refused(coding: str) -> None:
    whole = gzip.compress(PLAIN) if coding == "gzip" else zlib.compress(PLAIN)
    with pytest.raises(InvalidRequest, match="cut short"):
        await unfold(whole[:-5], coding, len(PLAIN))
    with pytest.raises(InvalidRequest, match="goes on after the end"):
        await unfold(whole + b"x", coding, len(PLAIN))
    with pytest.raises(InvalidRequest, match=r"not valid|cut short"):
        await unfold(b"\x1f\x00not a stream", coding, len(PLAIN))
    with pytest.raises(InvalidRequest, match="cut short"):
        await unfold(b"", coding, len(PLAIN))


def test_only_known_encodings_are_taken() -> None:
    assert request_encoding("") == request_encoding("identity") == ""
    assert request_encoding("GZIP") == request_encoding("x-gzip") == "gzip"
    with pytest.raises(HttpRefusal, match="'br' is not supported") as refused:
        request_encoding("br")
    assert refused.value.status == 415


@pytest.mark.parametrize(
    ("header", "tensors", "coding"),
    [
        ("", False, ""),
        ("gzip", True, "gzip"),
        ("deflate", True, "deflate"),
        ("gzip, deflate", True, ""),  # a library speaking, not its user
        ("gzip, deflate", False, "gzip"),
        ("br, deflate;q=0.5", False, "deflate"),
        ("gzip;q=0, deflate", False, "deflate"),
        ("gzip; q=0", False, ""),
        ("br", False, ""),
        ("identity", False, ""),
    ],
)
def test_answers_are_compressed_for_those_who_ask(header: str, tensors: bool, coding: str) -> None:
    assert response_encoding(header, tensors=tensors) == coding
