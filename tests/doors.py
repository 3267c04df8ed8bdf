"""The gRPC front doors that tests go through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from appliance.door.native_package import native_problem

Sections = Mapping[str, Mapping[str, Any]]

DOORS: Mapping[str, Sections] = {
    "grpcio": {"grpc": {"door": "grpcio"}},
    "native": {"grpc": {"door": "native"}},
}
"""Every front door by the configuration that selects it: a further one is a further line."""

NO_NATIVE = native_problem()
needs_native = pytest.mark.skipif(bool(NO_NATIVE), reason=f"the native door: {NO_NATIVE}")
EVERY_DOOR = [pytest.param(name, marks=[needs_native] if name == "native" else []) for name in DOORS]
"""Their names as parameters of tests; one that cannot be had here is skipped and says why."""


def with_door(door: Sections, sections: Sections) -> Sections:
    """``sections`` with what selects a door, where they do not say otherwise."""
    merged = {name: dict(section) for name, section in sections.items()}
    for name, section in door.items():
        merged[name] = {**section, **merged.get(name, {})}
    return merged
