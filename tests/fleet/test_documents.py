"""What a document may ask for is bounded before memory is taken for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from appliance.fleet.documents import (
    SETTING_TEXTS_MAX,
    SETTINGS_MAX,
    STREAM_BYTES_MAX,
    DesiredState,
    DocumentInvalid,
    Transfer,
    WishedModel,
    WishedVersion,
    decode,
    encode,
)


def with_stream(size: int) -> DesiredState:
    way = Transfer(stream="a" * 64, size=size, index="b" * 64)
    version = WishedVersion(version=3, manifest="c" * 64, total_bytes=1, transfers=(way,))
    return DesiredState(device="box-1", generation=1, models=(WishedModel(name="net", wanted=version),))


def with_settings(settings: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1, "box-1", 1, [], settings])


def test_a_stream_is_as_large_as_its_index_can_be() -> None:
    state = with_stream(STREAM_BYTES_MAX)
    assert decode(encode(state)) == state
    with pytest.raises(DocumentInvalid) as raised:
        decode(encode(with_stream(STREAM_BYTES_MAX + 1)))
    text = f"a transfer brings {STREAM_BYTES_MAX + 1} bytes; the limit is {STREAM_BYTES_MAX}"
    assert raised.value.problems == (("models.net.3", text),)


def test_settings_are_counted_before_they_are_read() -> None:
    most = {f"s{number}": 1 for number in range(SETTINGS_MAX)}
    assert decode(with_settings(most)).settings == most
    for wrong in (most | {"more": 1}, {"texts": ["a"] * (SETTING_TEXTS_MAX + 1)}):
        with pytest.raises(DocumentInvalid, match="length <= "):
            decode(with_settings(wrong))
    texts = decode(with_settings({"texts": ["a"] * SETTING_TEXTS_MAX})).settings["texts"]
    assert texts == ("a",) * SETTING_TEXTS_MAX
