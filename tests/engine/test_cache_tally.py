"""What counts as verified of what workers say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.device_wish import ON_CUDA
from appliance.domain.model import ModelVersion, WeightsFile
from appliance.engine.control.cache_report import CacheTally
from appliance.workers.port import ModelLoaded, ModelRefused, WeightsPagedIn
from tests.domain.sample import make_version

FILE = WeightsFile(path="w", size=9, digest="ab", pieces=("ab",))
VERSION = replace(make_version("m", 1), weights=FILE)


def counted(tally: CacheTally) -> tuple[int, int, int]:
    figures = tally.figures
    return figures.verified, figures.verified_bytes, figures.not_as_stored


def test_a_load_counts_with_its_file_or_with_what_its_form_holds() -> None:
    tally = CacheTally()
    tally.loaded(VERSION, ModelLoaded(1, 1, (), 1, 1, None, 7))
    assert counted(tally) == (1, 9, 0)
    tally.loaded(VERSION, ModelLoaded(1, 1, (), 1, 1, None, 7, packed=True))
    assert counted(tally) == (2, 16, 0)


def test_a_page_in_counts_with_what_was_read_or_as_a_failure() -> None:
    tally = CacheTally()
    tally.paged_in(VERSION, WeightsPagedIn(1, 1, 5, 1, None))
    assert counted(tally) == (1, 5, 0)
    tally.paged_in(VERSION, WeightsPagedIn(1, 1, 0, 1, "rot"))
    assert counted(tally) == (1, 5, 1)
    tally.paged_in(VERSION, WeightsPagedIn(1, 1, 0, 1, ""))
    assert counted(tally) == (1, 5, 2), "a failure without a word is one"


def test_a_refusal_counts_if_the_weights_are_to_blame() -> None:
    tally = CacheTally()
    tally.refused(ModelRefused(1, 1, "no golden answers", assessed=True))
    assert counted(tally) == (0, 0, 0)
    tally.refused(ModelRefused(1, 1, "rot", not_as_stored=True))
    assert counted(tally) == (0, 0, 1)


@pytest.mark.parametrize(
    "version",
    [
        replace(VERSION, weights=None),
        replace(VERSION, weights=replace(FILE, pieces=())),
        replace(VERSION, device=ON_CUDA),
    ],
    ids=["no file of weights", "no digests", "not in memory"],
)
def test_what_cannot_be_verified_does_not_count(version: ModelVersion) -> None:
    tally = CacheTally()
    tally.loaded(version, ModelLoaded(1, 1, (), 1, 1))
    for failure in (None, "cannot be read"):
        tally.paged_in(version, WeightsPagedIn(1, 1, 5, 1, failure))
    assert counted(tally) == (0, 0, 0)
