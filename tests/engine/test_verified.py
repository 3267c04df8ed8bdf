"""What counts as verified of what workers say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.model import ModelVersion, WeightsFile
from appliance.engine.versions.verified import by_load, by_page_in, by_refusal
from appliance.workers.port import ModelLoaded, ModelRefused, WeightsPagedIn
from tests.domain.sample import make_version

FILE = WeightsFile(path="w", size=9, digest="ab", pieces=("ab",))
VERSION = replace(make_version("m", 1), weights=FILE)


def test_a_load_counts_with_its_file_or_with_what_its_form_holds() -> None:
    assert by_load(VERSION, ModelLoaded(1, 1, (), 1, 1, None, 7)) == {"verified": 1, "verified_bytes": 9}
    packed = ModelLoaded(1, 1, (), 1, 1, None, 7, packed=True)
    assert by_load(VERSION, packed) == {"verified": 1, "verified_bytes": 7}


def test_a_fill_counts_with_what_was_read_or_as_a_failure() -> None:
    assert by_page_in(VERSION, WeightsPagedIn(1, 1, 5, 1, "")) == {"verified": 1, "verified_bytes": 5}
    assert by_page_in(VERSION, WeightsPagedIn(1, 1, 0, 1, "rot")) == {"not_as_stored": 1}


def test_a_refusal_counts_if_the_weights_are_to_blame() -> None:
    assert by_refusal(ModelRefused(1, 1, "no golden answers", assessed=True)) == {}
    assert by_refusal(ModelRefused(1, 1, "rot", not_as_stored=True)) == {"not_as_stored": 1}


@pytest.mark.parametrize(
    "version",
    [
        replace(VERSION, weights=None),
        replace(VERSION, weights=replace(FILE, pieces=())),
        replace(VERSION, device="cuda"),
    ],
    ids=["no file of weights", "no digests", "not in memory"],
)
def test_what_cannot_be_verified_does_not_count(version: ModelVersion) -> None:
    assert by_load(version, ModelLoaded(1, 1, (), 1, 1)) == {}
    for failure in ("", "cannot be read"):
        assert by_page_in(version, WeightsPagedIn(1, 1, 5, 1, failure)) == {}
