"""The tests drive the front end as it is installed; without it ('make native') there is nothing to drive."""

from __future__ import annotations

from importlib.util import find_spec

MISSING = find_spec("edge_appliance_native") is None
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header() -> str:
    """Say so, and do not just run fewer tests."""
    return f"native/tests: {'left out, the native front_end is not installed' if MISSING else 'run'}"
