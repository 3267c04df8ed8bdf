"""Which signatures of a release may take the place of which."""

from __future__ import annotations

from itertools import product

import pytest

from appliance.controller.signatures import Succession, is_trusted, signers, succession, trust_word
from appliance.package.trust import Trust, Verdict


def trust(names: str) -> Trust:
    """Signatures by keys of one letter each: large ones are trusted, and that of X is wrong."""
    return Trust(
        verdicts=tuple(
            Verdict(keyid=name, label="", scheme="", right=None if name.islower() else name != "X")
            for name in names
        )
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
        ("M", "MX", Succession.UNTRUSTED),
        ("M", "M", Succession.KEEP),
        ("MN", "M", Succession.KEEP),
        ("M", "MN", Succession.REPLACE),
        ("M", "Ms", Succession.REPLACE),
        ("M", "N", Succession.LACKS),
        ("Ms", "MN", Succession.LACKS),
        ("s", "t", Succession.REPLACE),
        ("s", "", Succession.KEEP),
        ("", "s", Succession.REPLACE),
    ],
)
def test_what_boxes_get_is_never_made_worse(old: str, new: str, becomes: Succession) -> None:
    assert succession(trust(old), trust(new)) is becomes


def test_no_signature_that_boxes_go_by_is_ever_lost() -> None:
    sets = ["".join(each) for each in product(("", "M"), ("", "N"), ("", "s"), ("", "X"))]
    for old, new in product(map(trust, sets), repeat=2):
        if is_trusted(old) and succession(old, new) is Succession.REPLACE:
            assert is_trusted(new)
            assert signers(old) <= signers(new)


def test_it_is_told_who_signed() -> None:
    assert [trust_word(trust(each)) for each in ("", "s", "sM", "MX")] == [
        "unsigned",
        "untrusted s",
        "key M",
        "wrong X",
    ]
