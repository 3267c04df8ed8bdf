"""What a test does that finds no GPU."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def absent(why: str) -> NoReturn:
    """Leave the test out; where a GPU is asked for, as ``make test-gpu`` does, fail it."""
    if os.environ.get("REQUIRE_GPU"):
        pytest.fail(why)
    pytest.skip(why)
