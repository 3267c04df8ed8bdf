"""Bodies unfold within bounds; answers fold when the client wants it."""

from __future__ import annotations

import gzip
import zlib

import pytest

from appliance.errors import InvalidRequest, MessageTooLarge
from appliance.http.compression import PIECE_BYTES, fold, request_encoding, response_encoding, unfold
from appliance.http.status import HttpRefusal

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


async def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(MessageTooLarge, match="when decompressed"):
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


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_folded_parts_unfold_to_their_sum(coding: str) -> None:
    folded = await fold([b"head", PLAIN, b""], coding)
    assert len(folded) < len(PLAIN)
    assert await unfold(folded, coding, 1 << 24) == b"head" + PLAIN


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
