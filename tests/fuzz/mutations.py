"""Values that break programs, and strategies that put them where something well made was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from hypothesis import strategies as st

DIGITS: Final = "@digits@"
DEEP: Final = "@deep@"
"""What stands for a number of thousands of digits and for nesting without end, until it is written down."""

NUMBERS: Final = (
    *(sign * (1 << bits) + off for bits in (7, 15, 31, 32, 53, 63, 64) for sign in (1, -1) for off in (-1, 0, 1)),
    0, 1, -1, 2, 3, 1000, 10**400,
    0.0, -0.0, 0.5, -1.0, 1e-320, 1e300, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS: Final = (
    "", "x", " ", "0", "-1", "1e9", "NaN", "true", "null", "m", "x" * 300, "ä" * 5000, "\0", "\n", "\r\n\r\n",
    "\x1b[2J\x1b]0;t\x07", "\N{RIGHT-TO-LEFT OVERRIDE}", "\ud800", "\N{GRINNING FACE}", "\N{ZERO WIDTH SPACE}",
    "..", "../..", "/etc/passwd", "../../../../etc/passwd", "a/b", "a//b", "./a", "C:\\x", "%2e%2e%2f", "%s%n",
    "<script>", "'\"\\", "{{7*7}}", DIGITS, DEEP,
)  # fmt: skip
EMPTY: Final[tuple[Any, ...]] = (None, True, False, (), [], {}, [[]], {"": {}}, [0] * 300)

HOSTILE: Final = st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.sampled_from(EMPTY)
Place = tuple[Any, ...]
Change = Callable[[Any], Sequence[Any]]


def places(tree: Any, at: Place = ()) -> Iterator[Place]:
    """Where something stands in a tree of lists, tuples and dicts, the whole first."""
    yield at
    items = (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    )
    for key, value in items:
        yield from places(value, (*at, key))


def changed_at(tree: Any, place: Place, change: Change) -> Any:
    """The tree with what stands at ``place`` replaced by what ``change`` makes of it: one or more things, or none."""
    if not place:
        return (*change(tree), None)[0]
    key, rest = place[0], place[1:]
    if rest:
        inner: Sequence[Any] = (changed_at(tree[key], rest, change),)
    else:
        inner = change(tree[key])
    if isinstance(tree, dict):
        names = [key] if len(inner) < 2 else [key, f"{key}2"]
        pairs = [(n, v) if n != key else None for n, v in tree.items()]
        new = list(zip(names, inner, strict=False))
        result: dict[Any, Any] = {}
        for pair in pairs:
            result.update([pair] if pair else new)
        return result
    made = [*tree[:key], *inner, *tree[key + 1 :]]
    return made if isinstance(tree, list) else tuple(made)


def _instead(value: Any) -> Change:
    return lambda _: (value,)


@st.composite
def changed(draw: st.DrawFn, trees: Sequence[Any], hostile: st.SearchStrategy[Any] = HOSTILE) -> Any:
    """One of ``trees`` with a few of its parts replaced, left out, doubled, wrapped or put elsewhere."""
    tree = draw(st.sampled_from(trees))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        place = draw(st.sampled_from(list(places(tree))))
        how = draw(st.integers(0, 9))
        if how < 6:
            tree = changed_at(tree, place, _instead(draw(hostile)))
        elif how == 6:
            tree = changed_at(tree, place, lambda _: ())
        elif how == 7:
            tree = changed_at(tree, place, lambda old: (old, old))
        elif how == 8:
            tree = changed_at(tree, place, lambda old: ([old],))
        else:
            other = tree
            for key in draw(st.sampled_from(list(places(tree)))):
                other = other[key]
            tree = changed_at(tree, place, _instead(other))
    return tree


_WORDS: Final = (
    b"\0", b"\xff", b"\x80", b"\x7f", b"\n", b"\r\n", b" ", b'"', b"{", b"}", b"[", b"]", b":", b",", b"-", b"0",
    b"9" * 40, b"1e999", b"\xff\xff\xff\xff", b"\xff" * 9 + b"\x01", b"\xed\xa0\x80", bytes(8), bytes(64), b"[" * 3000,
)  # fmt: skip


@st.composite
def changed_bytes(draw: st.DrawFn, seeds: Sequence[bytes], limit: int = 1 << 20) -> bytes:
    """One of ``seeds`` with a few bytes flipped, put in, left out, doubled or taken from another one."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3, 8)))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.sampled_from((1, 1, 2, 4, 8, 64, 512)))
        how = draw(st.integers(0, 6))
        if how == 0 and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == 1:
            data[at : at + size] = draw(st.sampled_from(_WORDS))
        elif how == 2:
            data[at:at] = draw(st.sampled_from(_WORDS))
        elif how == 3:
            del data[at : at + size]
        elif how == 4:
            data[at:at] = data[at : at + size]
        elif how == 5:
            del data[at:]
        else:
            other = draw(st.sampled_from(seeds))
            begin = draw(st.integers(0, len(other)))
            data[at:at] = other[begin : begin + size]
    return bytes(data[:limit])


def as_json(tree: Any) -> bytes:
    """A tree as JSON, with what stands for more than can be held written out."""
    text = json.dumps(tree, default=lambda odd: odd.hex() if isinstance(odd, bytes) else str(odd))
    return text.replace(f'"{DIGITS}"', "7" * 5000).replace(f'"{DEEP}"', "[" * 20_000).encode()
