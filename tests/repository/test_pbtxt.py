"""The text-format parser: the forms of the grammar, and where it says a mistake is."""

from __future__ import annotations

import pytest

from appliance.repository import pbtxt
from appliance.repository.pbtxt import Message, PbtxtError, Scalar, ScalarKind, Value, parse

Plain = str | bytes | list[tuple[str, list["Plain"]]]


def plain(value: Value) -> Plain:
    """A tree without positions: numbers and names as str, strings as bytes, messages as (name, values) pairs."""
    if isinstance(value, Message):
        return [(field.name, [plain(each) for each in field.values]) for field in value.fields]
    return value.data if value.kind is ScalarKind.STRING else value.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("# nothing but a comment", []),
        ("a: 1", [("a", ["1"])]),
        ("a:1b:2", None),
        ("a: 1 b: 2", [("a", ["1"]), ("b", ["2"])]),
        ("a: 1, b: 2; c: 3,", [("a", ["1"]), ("b", ["2"]), ("c", ["3"])]),
        ("a: 1 # why\nb: 2", [("a", ["1"]), ("b", ["2"])]),
        ("a: -5 b: - 5", [("a", ["-5"]), ("b", ["-5"])]),
        (
            "a: 0x1F b: 017 c: 1.5e-3f d: .5 e: 2.",
            [(n, [v]) for n, v in zip("abcde", ("0x1F", "017", "1.5e-3f", ".5", "2."), strict=True)],
        ),
        (
            "a: -inf b: nan c: TYPE_FP32 d: true",
            [("a", ["-inf"]), ("b", ["nan"]), ("c", ["TYPE_FP32"]), ("d", ["true"])],
        ),
        ("a { b: 1 }", [("a", [[("b", ["1"])]])]),
        ("a: { b: 1 }", [("a", [[("b", ["1"])]])]),
        ("a < b: 1 >", [("a", [[("b", ["1"])]])]),
        ("a: < b { } >", [("a", [[("b", [[]])]])]),
        ("a { } ;", [("a", [[]])]),
        ("a [ { b: 1 }, { b: 2 } ]", [("a", [[("b", ["1"])], [("b", ["2"])]])]),
        ("a: [ 1, -2, X ]", [("a", ["1", "-2", "X"])]),
        ("a: [ ]", [("a", [])]),
        ("a: 1 a: 2", [("a", ["1"]), ("a", ["2"])]),
        ("a: 'x' b: \"y\"", [("a", [b"x"]), ("b", [b"y"])]),
        ("a: 'one' \"two\"\n 'three'", [("a", [b"onetwothree"])]),
        ("a: 'it\\'s' b: \"#no comment\"", [("a", [b"it's"]), ("b", [b"#no comment"])]),
        (r"a: '\n\r\t\a\b\f\v\\\'\"\?'", [("a", [b"\n\r\t\a\b\f\v\\'\"?"])]),
        (r"a: '\1\12\1234\xa\x41b\xFF'", [("a", [b"\x01\x0a\x534\x0a\x41b\xff"])]),
        (r"a: '\u00e4\U0001F600'", [("a", ["ä\N{GRINNING FACE}".encode()])]),
        ("a: 'ä'", [("a", ["ä".encode()])]),
        ("\ufeffa: 1", [("a", ["1"])]),
        (
            "m { key: 'k' value { string_value: 'v' } }",
            [("m", [[("key", [b"k"]), ("value", [[("string_value", [b"v"])]])]])],
        ),
    ],
)
def test_forms_of_the_grammar(text: str, expected: Plain | None) -> None:
    if expected is None:
        with pytest.raises(PbtxtError):
            parse(text.encode())
    else:
        assert plain(parse(text.encode())) == expected


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a 1", 1, 3, "expected ':' or '{' after 'a', found '1'"),
        ("a: 1\n  b }", 2, 5, "found '}'"),
        ("a {\n b: 1\n", 3, 1, "the '}' for the '{' of line 1, found the end of the file"),
        ("a < b: 1 }", 1, 10, "the '>' for the '<' of line 1, found '}'"),
        ("a: [1 2]", 1, 7, "expected ',' or ']', found '2'"),
        ("a: [1,]", 1, 7, "expected a value, found ']'"),
        ("a: [", 1, 5, "expected a value, found the end of the file"),
        ("a:", 1, 3, "expected a value"),
        ("a: ,", 1, 4, "expected a value"),
        ("1: 2", 1, 1, "expected a field name, found '1'"),
        ("}", 1, 1, "expected a field name, found '}'"),
        ("a: 'x", 1, 4, "string that does not end on its line"),
        ("a: 'x\n'", 1, 4, "string that does not end on its line"),
        ("a: 12ab", 1, 4, "unexpected '1'"),
        ("a: 1 $", 1, 6, "unexpected '$'"),
        ("a: 1 \x01", 1, 6, "unexpected character U+0001"),
        ("a: 'x\\q'", 1, 6, r"unknown escape '\q'"),
        ("a: '\\777'", 1, 5, "is more than one byte"),
        ("a: '\\ud800'", 1, 5, "is not a character"),
        ("a: '\\UFFFFFFFF'", 1, 5, "is not a character"),
        ("[x.y]: 1", 1, 1, "expected a field name, found '['"),
    ],
)
def test_mistakes_are_placed(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(PbtxtError) as caught:
        parse(text.encode())
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_bytes_that_are_no_text_are_placed() -> None:
    with pytest.raises(PbtxtError, match="not UTF-8") as caught:
        parse(b"a: 1\nb: '\xff'")
    assert (caught.value.line, caught.value.column) == (2, 5)


def test_values_and_fields_know_where_they_stand() -> None:
    (outer,) = parse(b"# first\nouter {\n  inner: [ 7,\n    'x' ]\n}").fields
    (message,) = outer.values
    assert isinstance(message, Message)
    (inner,) = message.fields
    seven, text = inner.values
    assert isinstance(seven, Scalar)
    assert isinstance(text, Scalar)
    places = [(each.line, each.column) for each in (outer, message, inner, seven, text)]
    assert places == [(2, 1), (2, 7), (3, 3), (3, 12), (4, 5)]


def test_nesting_is_bounded() -> None:
    depth = pbtxt.DEPTH_MAX
    assert parse(b"a {" * depth + b"}" * depth).fields
    with pytest.raises(PbtxtError, match="nested more than 32 deep"):
        parse(b"a {" * (depth + 1) + b"}" * (depth + 1))
    with pytest.raises(PbtxtError, match="nested more than 32 deep"):
        parse(b"a: [ {" * 100_000)
