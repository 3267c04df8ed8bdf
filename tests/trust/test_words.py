"""Documents and messages from anywhere: every odd byte is an error of ours."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.fleet import documents, messages
from tests.trust.repository import state

DOCUMENT = documents.encode(state(3, settings={"a": 1}))
POLL = messages.encode(messages.Poll(report_digest="a" * 64))


@given(at=st.integers(0, 500), bits=st.integers(1, 255), cut=st.integers(0, 500))
def test_damaged_documents_and_messages_are_invalid_at_worst(at: int, bits: int, cut: int) -> None:
    for good in (DOCUMENT, POLL):
        data = bytearray(good[: cut or None])
        data[at % len(data)] ^= bits
        with suppress(documents.DocumentInvalid):
            documents.decode(bytes(data))
        with suppress(messages.MessageInvalid):
            messages.decode(bytes(data), messages.Poll)


def test_text_that_is_no_utf_8_is_an_error_of_ours() -> None:
    """The library has an error of its own for it, which is none of its errors."""
    broken = DOCUMENT.replace(b"box-1", b"box-\xff")
    with pytest.raises(UnicodeDecodeError):
        msgspec.msgpack.decode(broken)
    with pytest.raises(documents.DocumentInvalid):
        documents.decode(broken)
    with pytest.raises(messages.MessageInvalid):
        messages.decode(POLL.replace(b"aaaa", b"\xff\xff\xff\xff"), messages.Poll)
