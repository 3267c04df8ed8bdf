"""A controller that is served, and boxes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.controller.api.desk import Box, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path / "controller") as found:
        yield found


@pytest.fixture
def new_box(desk: Desk, tmp_path: Path) -> Callable[..., Box]:
    """Boxes, enrolled under a name if one is given."""
    made: list[Box] = []

    def make(name: str = "", **token: object) -> Box:
        box = Box(desk, tmp_path / f"box-{len(made)}")
        made.append(box)
        if name:
            box.enrol(desk.enrolment_token(**token), name)
            assert box.device == name
        return box

    return make
