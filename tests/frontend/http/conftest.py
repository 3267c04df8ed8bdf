"""Who listens for HTTP: the edge alone, or the native front before it."""

from __future__ import annotations

import pytest

from tests.fronts import EVERY_FRONT_END, FRONT_ENDS, Sections


@pytest.fixture(scope="module", params=EVERY_FRONT_END, ids=str)
def front_end(request: pytest.FixtureRequest) -> Sections:
    """Configuration that selects who listens."""
    return FRONT_ENDS[request.param]
