"""The conformance suite through pytest: subclass with a ``rig`` fixture. The cases are those of the command."""

from __future__ import annotations

import pytest

from appliance.tools.conformance.cases import CASES, Case, Rig


class RuntimeConformance:
    """The suite; the runtimes here do all that the port leaves to them."""

    left_out: tuple[str, ...] = ()
    """Cases in which this one does not do what it need not."""

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_case(self, rig: Rig, case: Case) -> None:
        note = case.run(rig)
        assert bool(note) == (case.name in self.left_out), note
