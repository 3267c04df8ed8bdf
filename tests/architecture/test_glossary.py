"""docs/GLOSSARY.md: in order, each term is met where it says, and each state that is shown is there."""

from __future__ import annotations

import re
from functools import cache

from appliance.cli.main import TABLE
from appliance.core.memory.footprint import Residency
from appliance.core.rollout.phase import Phase, stage_of
from appliance.core.rollout.records import Ending
from appliance.domain.model import VersionState
from appliance.workers.port import LoadStage
from tests.architecture.sources import ROOT
from tests.architecture.test_documents import settings


@cache
def rows() -> tuple[tuple[str, str, str], ...]:
    """Terms, what they mean, and where they are met."""
    text = (ROOT / "docs" / "GLOSSARY.md").read_text("utf-8")
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    return tuple((term.strip(), meaning.strip(), met.strip().strip("`")) for term, meaning, met in cells)


@cache
def sources() -> str:
    """What is written in the code of the appliance."""
    return "\n".join(
        path.read_text("utf-8")
        for top in ("appliance", "native/src")
        for path in (ROOT / top).rglob("*.[pr][ys]")
    )


def is_met(place: str) -> bool:
    """Whether there is such a setting, file, command or option, or metric."""
    if place.startswith(("appliance model ", "appliance store ", "appliance fleet ", "appliance sync ")):
        return f'"{place.rpartition(" ")[2]}"' in sources() and place.split()[1] in TABLE.commands
    if "/" in place:
        return (ROOT / place).is_file()
    if "." in place:
        return place in set(settings())
    metrics = (ROOT / "docs" / "METRICS.md").read_text("utf-8")
    return f"`{place}`" in metrics or f'"{place}"' in sources()


def test_terms_are_in_order_and_each_once() -> None:
    terms = [term.lower() for term, _, _ in rows()]
    assert len(terms) > 50
    assert terms == sorted(set(terms))


def test_each_term_is_met_where_it_says() -> None:
    assert not [(term, place) for term, _, place in rows() if not is_met(place)]


def test_each_term_is_a_word_of_the_code() -> None:
    """As people write it, or as names do; one of several words by each of them."""
    said = set(re.split(r"[\W_]+", sources().lower()))
    assert not [term for term, _, _ in rows() if not set(re.split(r"[\W_]+", term.lower())) <= said]


def test_each_state_that_is_shown_is_there() -> None:
    terms = {term for term, _, _ in rows()}
    lower = {term.lower() for term in terms}
    assert {state.value for state in VersionState} <= terms
    assert {residency.value for residency in Residency} <= terms
    for words in (Phase, Ending, LoadStage):
        assert {word.value for word in words} <= lower, words
    assert {stage_of(phase) for phase in Phase} <= lower


def test_each_term_is_explained() -> None:
    assert not [term for term, meaning, _ in rows() if len(meaning) < 15]
