"""Boxes that were let in and mean harm: to the controller, to its operators, to other boxes."""

from __future__ import annotations

import pytest

from tests.controller.conftest import Box, Served, code


@pytest.mark.parametrize(
    "name", ["..", "../../x", "a/b", ".a", "A", "a b", "a\n", "\x1b[2J", "\u202ea", "\u00e9"]
)
def test_a_box_cannot_call_itself_what_no_operator_could_name(served: Served, name: str) -> None:
    token = served.token()
    assert code(Box(served, name).try_enrol(token)) == (400, "bad-enrolment")
    assert served.done("GET", "/api/v1/devices") == []
    assert Box(served, "a-good.name_1").enrol(token).poll().document
