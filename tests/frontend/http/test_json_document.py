"""JSON from outside is read strictly or refused with the reason."""

from __future__ import annotations

import pytest

from appliance.domain.errors import InvalidRequest
from appliance.frontend.http.json_document import MAX_NESTING, check_nesting, parse_json


@pytest.mark.parametrize("text", ['{"a":[1,2.5,"x",true,null]}', "[]", '"\\u20ac"', " 3 "])
def test_a_value_is_read(text: str) -> None:
    parse_json(text.encode(), "request")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not valid JSON"),
        (b'{"a":1', "not valid JSON"),
        (b'{"a":1} x', "Extra data"),
        (b'{"a":1,"b":2,"a":3}', "key 'a' appears twice"),
        (b'{"o":{"k":1,"k":1}}', "key 'k' appears twice"),
        (b'{"a":"\xff"}', "not UTF-8"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"1" * 5000, r"^request holds a whole number of more than \d+ digits$"),
        (b'{"a":-' + b"1" * 5000 + b"}", r"^request holds a whole number of more than \d+ digits$"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse_json(text, "request")


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_far_beyond_reason_is_refused_not_a_crash(opening: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"nested deeper|not valid JSON"):
        check_nesting(parse_json(opening * 200_000, "request"), "request")


def test_nesting_is_bounded_exactly() -> None:
    check_nesting(parse_json(b"[" * MAX_NESTING + b"]" * MAX_NESTING, "request"), "request")
    deeper = MAX_NESTING + 1
    with pytest.raises(InvalidRequest, match="nested deeper"):
        check_nesting(parse_json(b"[" * deeper + b"]" * deeper, "request"), "request")
