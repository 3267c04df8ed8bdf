"""A short chaos; ``python -m tests.faults.chaos`` is the long one."""

from __future__ import annotations

import pytest

from tests.faults.chaos import run
from tests.fronts import needs_native

SECONDS = 20.0


@needs_native
@pytest.mark.timeout(300)
def test_every_request_is_accounted_for_in_a_short_chaos() -> None:
    report = run(SECONDS, seed=1)
    assert report.leased > 0
    assert sum(report.troubles.values()) > 5
