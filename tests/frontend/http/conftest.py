"""Who listens for HTTP: the edge alone, or the native front before it."""

from __future__ import annotations

import pytest

from tests.doors import Sections
from tests.fronts import EVERY_FRONT, FRONTS


@pytest.fixture(scope="module", params=EVERY_FRONT, ids=str)
def front(request: pytest.FixtureRequest) -> Sections:
    """Configuration that selects who listens."""
    return FRONTS[request.param]
