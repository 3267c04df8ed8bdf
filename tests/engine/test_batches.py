"""Which of the batches that a worker had when it died may be what it died of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.engine.requests.dispatch import Batches

A, B = 1, 2


def batches_of(*given: tuple[int, int]) -> Batches:
    """Batches of one worker, each of a version and of so many requests."""
    arena = cast(Any, SimpleNamespace(of_worker=lambda worker: None))
    batches = Batches(arena)
    versions = {number: SimpleNamespace(id=number) for number, _ in given}
    for batch, (version, count) in enumerate(given):
        requests = tuple(
            SimpleNamespace(
                served=versions[version], attempts=0, plan=SimpleNamespace(rows=1), item=lambda: None
            )
            for _ in range(count)
        )
        batches.go(cast(Any, SimpleNamespace(batch=batch, lane=7)), cast(Any, requests), 0)
    return batches


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ((), True),
        (((A, 2),), True),
        (((A, 2), (A, 2)), True),
        (((A, 1), (B, 2)), True),
        (((A, 2), (B, 1)), True),
        (((A, 2), (B, 2)), False),
    ],
    ids=["none", "one", "of one version", "one alone before", "one alone behind", "of two versions"],
)
def test_what_may_have_been_begun_behind_a_batch_of_another_version_leaves_its_form_in_doubt(
    given: tuple[tuple[int, int], ...], known: bool
) -> None:
    assert batches_of(*given).blames_first(range(len(given))) is known
