"""JSON from outside is read strictly or refused with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.errors import InvalidRequest
from appliance.frontend.http.json_document import (
    MAX_NESTING,
    MEMBERS_MAX,
    WINDOW,
    check_nesting,
    parse_json,
    read_json,
)
from tests.steps import finished


@pytest.mark.parametrize("text", ['{"a":[1,2.5,"x",true,null]}', "[]", '"\\u20ac"', " 3 "])
def test_a_value_is_read(text: str) -> None:
    parse_json(text.encode())


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
        parse_json(text)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_far_beyond_reason_is_refused_not_a_crash(opening: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"nested deeper|not valid JSON"):
        check_nesting(parse_json(opening * 200_000))


def test_nesting_is_bounded_exactly() -> None:
    check_nesting(parse_json(b"[" * MAX_NESTING + b"]" * MAX_NESTING))
    deeper = MAX_NESTING + 1
    with pytest.raises(InvalidRequest, match="nested deeper"):
        check_nesting(parse_json(b"[" * deeper + b"]" * deeper))


@pytest.mark.parametrize("value", [[1] * MEMBERS_MAX, {"a": [[]] * MEMBERS_MAX}])
def test_only_so_many_members_are_looked_at(value: Any) -> None:
    check_nesting([1] * MEMBERS_MAX)
    with pytest.raises(InvalidRequest, match="more than 65536 members outside of tensors"):
        check_nesting([value, 1])


LONG = " " * WINDOW
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab"\\[]{},: \n€', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text('ab"[,', max_size=3), inner, max_size=3)
    ),
)


def _read(text: str) -> Any:
    """What comes of a text that is long; the reason where it is refused."""
    try:
        return finished(read_json((text + LONG).encode()))
    except InvalidRequest as error:
        return str(error)


def _parsed(text: str) -> Any:
    try:
        return parse_json((text + LONG).encode())
    except InvalidRequest as error:
        return str(error)


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_a_long_text_is_read_as_a_short_one(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert _read(text) == _parsed(text) == value


@given(VALUES, st.data())
def test_a_long_text_that_is_no_json_is_refused_as_a_short_one(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    broken = (
        text[:at] + data.draw(st.sampled_from(["", ",", "]", "}", '"', ":", "x", "[", "\\"])) + text[at + 1 :]
    )
    read, parsed = _read(broken), _parsed(broken)
    assert read == parsed or ("not valid JSON" in read and "not valid JSON" in parsed), broken


@pytest.mark.parametrize(
    "element",
    ["0", "-1.5e3", '"a,]b"', "[]", "[1,2]", '["\\"x",[[1],[2]]]', '{"k":[1]}', " 7 \n", "null"],
)
@pytest.mark.parametrize("depth", [1, 3])
def test_large_arrays_are_read_in_pieces(element: str, depth: int) -> None:
    count = min(3 * WINDOW // len(element), MEMBERS_MAX // 4)
    text = "[" * depth + ",".join([element] * count) + "]" * depth
    steps = read_json(text.encode())
    taken = sum(1 for _ in steps)
    assert taken >= len(text) // WINDOW
    assert _read(text) == json.loads(text)


@pytest.mark.parametrize(
    "text", ["[" + "{}," * MEMBERS_MAX + "{}]", "{" + '"%d":0,' * 7 % tuple(range(7)) + '"6":0}']
)
def test_objects_have_bounds(text: str) -> None:
    assert "More than" in _read(text) or "appears twice" in _read(text)


def test_a_long_text_names_where_it_is_wrong() -> None:
    text = "[" + "1,\n" * WINDOW + "x]"
    assert _read(text) == _parsed(text)
    assert f"line {WINDOW + 1} column 1" in _read(text)
