"""The front ends that tests go through, and the ways that requests take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from appliance.frontend.native.package import native_problem

Sections = Mapping[str, Mapping[str, Any]]

PYTHON: Final[Sections] = {"frontend": {"kind": "python"}}
NATIVE: Final[Sections] = {"frontend": {"kind": "native"}}
FRONT_ENDS: Final[Mapping[str, Sections]] = {"python": PYTHON, "native": NATIVE}
"""Every front end by the configuration that selects it: a further one is a further line."""
TEMPLATED: Final = "templated"
WAYS: Final[Mapping[str, Sections]] = {**FRONT_ENDS, TEMPLATED: NATIVE}
"""The ways that a request can take through an appliance: asked again and again, the native front end serves it by
itself, over HTTP and over gRPC."""

NO_NATIVE: Final = native_problem()
needs_native = pytest.mark.skipif(bool(NO_NATIVE), reason=f"the native front end: {NO_NATIVE}")
EVERY_WAY: Final = [
    pytest.param(name, marks=[needs_native] if sections is NATIVE else []) for name, sections in WAYS.items()
]
"""Their names as parameters of tests; one that cannot be had here is skipped and says why."""
EVERY_FRONT_END: Final = EVERY_WAY[: len(FRONT_ENDS)]
"""The same of the front ends alone."""
native_only = pytest.mark.parametrize(
    "front_end", [pytest.param("native", marks=needs_native)], indirect=True, scope="module"
)
"""For tests of what only the native front end does, among others that ask for each of them."""


def with_front_end(front_end: Sections, sections: Sections) -> Sections:
    """``sections`` with what selects a front end, where they do not say otherwise."""
    merged = {name: dict(section) for name, section in sections.items()}
    for name, section in front_end.items():
        merged[name] = {**section, **merged.get(name, {})}
    return merged
