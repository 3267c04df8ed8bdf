"""What may listen for HTTP, and the ways that HTTP requests take, for tests that go through each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from tests.doors import Sections, needs_native

EDGE: Final[Sections] = {"http": {"native": "off"}}
FRONT: Final[Sections] = {"grpc": {"door": "native"}, "http": {"native": "on"}}
TAUGHT: Final = "taught"
FRONTS: Final[Mapping[str, Sections]] = {"edge": EDGE, "front": FRONT}
"""Who listens, by the configuration that selects it: the edge itself, or the native door in its place."""
WAYS: Final[Mapping[str, Sections]] = {**FRONTS, TAUGHT: FRONT}
"""Asked again and again, the native door serves a request by itself."""

EVERY_WAY: Final = [
    pytest.param(name, marks=[needs_native] if sections is FRONT else []) for name, sections in WAYS.items()
]
"""Their names as parameters of tests; one that cannot be had here is skipped and says why."""
EVERY_FRONT: Final = EVERY_WAY[: len(FRONTS)]


def with_front(front: Sections, sections: Sections) -> Sections:
    """``sections`` with what selects who listens."""
    merged = {name: dict(section) for name, section in sections.items()}
    for name, section in front.items():
        merged[name] = {**section, **merged.get(name, {})}
    return merged
