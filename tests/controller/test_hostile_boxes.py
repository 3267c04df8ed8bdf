"""Boxes that were let in and mean harm: to the controller, to its operators, to other boxes."""

from __future__ import annotations

import msgspec
import pytest

from appliance.fleet.messages import Batch
from tests.controller.conftest import Box, Served, code


@pytest.mark.parametrize(
    "name", ["..", "../../x", "a/b", ".a", "A", "a b", "a\n", "\x1b[2J", "\u202ea", "\u00e9"]
)
def test_a_box_cannot_call_itself_what_no_operator_could_name(served: Served, name: str) -> None:
    token = served.token()
    assert code(Box(served, name).try_enrol(token)) == (400, "bad-enrolment")
    assert served.done("GET", "/api/v1/devices") == []
    assert Box(served, "a-good.name_1").enrol(token).poll().document


def test_records_that_json_cannot_say_keep_nobody_from_the_logs(served: Served) -> None:
    box = Box(served, "box-a").enrol(served.token())
    odd = (
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")),
        b"\x81\x92\x01\x02\x03",  # a map whose key is an array
        b"\x81\xc0\x01",
        b"\xc7\x0c\xff" + b"\xff" * 12,  # a time that there is not
        b"\x91" * 5000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xa1\xff",
    )
    good = msgspec.msgpack.encode({"a": 1})
    box.send(Batch(stream="sync", epoch="0" * 32, first=0, records=(*odd, good)))
    found = [each["record"] for each in served.done("GET", "/api/v1/logs")]
    assert found == [*(each[:2048].hex() for each in odd), {"a": 1}]


def test_an_answer_of_logs_is_bounded_whatever_a_box_sent(served: Served) -> None:
    box = Box(served, "box-a").enrol(served.token())
    record = msgspec.msgpack.encode(bytes((1 << 20) - 8))
    for first in (0, 6):
        box.send(Batch(stream="sync", epoch="0" * 32, first=first, records=(record,) * 6))
    found = served.done("GET", "/api/v1/logs")
    assert [each["number"] for each in found] == list(range(4, 12))
    assert served.done("GET", "/api/v1/logs?most=2") == found[-2:]
