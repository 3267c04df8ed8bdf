"""The gRPC front doors that tests go through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from appliance.frontend.native.package import native_problem

Sections = Mapping[str, Mapping[str, Any]]

NATIVE: Sections = {"grpc": {"door": "native"}}
DOORS: Mapping[str, Sections] = {
    "grpcio": {"grpc": {"door": "grpcio"}},
    "native": NATIVE,
}
"""Every front door by the configuration that selects it: a further one is a further line."""

GRANTED = "granted"
WAYS: Mapping[str, Sections] = {**DOORS, GRANTED: NATIVE}
"""The ways that a request can take through an appliance: asked again and again, the native door serves it by itself."""

NO_NATIVE = native_problem()
needs_native = pytest.mark.skipif(bool(NO_NATIVE), reason=f"the native door: {NO_NATIVE}")
EVERY_WAY = [
    pytest.param(name, marks=[needs_native] if sections is NATIVE else []) for name, sections in WAYS.items()
]
"""Their names as parameters of tests; one that cannot be had here is skipped and says why."""
EVERY_DOOR = EVERY_WAY[: len(DOORS)]
"""The same of the doors alone."""


def with_door(door: Sections, sections: Sections) -> Sections:
    """``sections`` with what selects a door, where they do not say otherwise."""
    merged = {name: dict(section) for name, section in sections.items()}
    for name, section in door.items():
        merged[name] = {**section, **merged.get(name, {})}
    return merged
