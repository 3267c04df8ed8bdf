"""Which signatures of a release may take the place of which."""

from __future__ import annotations

import re
from itertools import product

import pytest

from appliance.controller.signatures import (
    Succession,
    is_trusted,
    lacking,
    may_mend,
    succession,
    trust_word,
    unverified,
)
from appliance.package.trust import Trust, Verdict


def trust(names: str) -> Trust:
    """Signatures by keys of one letter each: large ones are trusted, and that of X is wrong. A digit behind a letter
    makes it another signature of that key."""
    found = re.findall("([a-zA-Z])([0-9]?)", names)
    return Trust(
        verdicts=tuple(
            Verdict(keyid=name, label="", scheme="", right=None if name.islower() else name != "X")
            for name, _ in found
        ),
        signatures=frozenset(found),
    )


@pytest.mark.parametrize(
    ("old", "new", "becomes"),
    [
        ("s", "M", Succession.REPLACE),
        ("", "M", Succession.REPLACE),
        ("X", "M", Succession.REPLACE),
        ("s", "sM", Succession.REPLACE),
        ("M", "s", Succession.UNTRUSTED),
        ("M", "", Succession.UNTRUSTED),
        ("M", "X", Succession.UNTRUSTED),
        ("M", "MX", Succession.UNVERIFIED),
        ("M", "M", Succession.KEEP),
        ("MN", "M", Succession.KEEP),
        ("M", "MN", Succession.REPLACE),
        ("M", "Ms", Succession.UNVERIFIED),
        ("M", "MNs", Succession.UNVERIFIED),
        ("Ms", "MNs1", Succession.UNVERIFIED),
        ("Ms", "MNs", Succession.REPLACE),
        ("M", "M1", Succession.KEEP),
        ("M", "M1N", Succession.LACKS),
        ("M", "N", Succession.LACKS),
        ("Ms", "MN", Succession.LACKS),
        ("MX", "M", Succession.REPLACE),
        ("s", "s", Succession.KEEP),
        ("s", "s1", Succession.REPLACE),
        ("st", "s", Succession.KEEP),
        ("s", "sX", Succession.UNVERIFIED),
        ("X", "s", Succession.REPLACE),
        ("X", "Xs", Succession.REPLACE),
        ("s", "t", Succession.REPLACE),
        ("s", "", Succession.KEEP),
        ("", "s", Succession.REPLACE),
    ],
)
def test_what_boxes_get_is_never_made_worse(old: str, new: str, becomes: Succession) -> None:
    assert succession(trust(old), trust(new)) is becomes


def test_no_signature_that_boxes_go_by_is_ever_lost() -> None:
    sets = ["".join(each) for each in product(("", "M", "M1"), ("", "N"), ("", "s", "s1"), ("", "X"))]
    for old, new in product(map(trust, sets), repeat=2):
        if is_trusted(old) and succession(old, new) is Succession.REPLACE:
            assert is_trusted(new)
            assert old.signatures < new.signatures
            assert not unverified(old, new)


def test_names_alone_are_no_signatures_and_fill_no_envelope() -> None:
    released, stuffed = trust("M"), trust("M" + "abcdefghijklmnopqrstuvwxyz")
    assert succession(released, stuffed) is Succession.UNVERIFIED
    assert unverified(released, stuffed) == tuple("abcdefghijklmnopqrstuvwxyz")
    assert succession(released, trust("MN")) is Succession.REPLACE


def test_it_is_told_which_signatures_are_lacking() -> None:
    assert lacking(trust("Ms"), trust("M1N")) == ("M", "s")
    assert lacking(trust("M"), trust("MN")) == ()


@pytest.mark.parametrize(
    ("word", "new", "may"),
    [("key M", "N", True), ("key M", "s", False), ("key M", "MX", False), ("untrusted s", "t", True),
     ("unsigned", "", True)],
)  # fmt: skip
def test_what_is_lost_is_not_mended_by_what_is_signed_worse(word: str, new: str, may: bool) -> None:
    assert may_mend(word, trust(new)) is may


def test_it_is_told_who_signed() -> None:
    assert [trust_word(trust(each)) for each in ("", "s", "sM", "MX")] == [
        "unsigned",
        "untrusted s",
        "key M",
        "wrong X",
    ]
