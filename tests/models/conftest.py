"""The marker of tests that fetch a package of 84 MB."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "download: fetches a large package; skipped when it cannot be had")
