"""Patterns of names from outside take all of a text: ``$`` has a line break after it pass."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import ROOT

FUNCTIONS = {"compile", "match", "fullmatch", "search"}


def patterns(source: str) -> list[str]:
    """Texts that are given to ``re``, and those that msgspec searches for."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            given = [each.value for each in node.keywords if each.arg == "pattern"]
            if isinstance(node.func, ast.Attribute) and node.func.attr in FUNCTIONS:
                given += node.args[:1]
            found += [each.value for each in given if isinstance(each, ast.Constant)]
    return [each for each in found if isinstance(each, str)]


def test_no_pattern_lets_a_line_break_pass() -> None:
    found = {
        path.relative_to(ROOT): each
        for folder in ("appliance", "ansible/plugins")
        for path in (ROOT / folder).rglob("*.py")
        for each in patterns(path.read_text())
        if each.endswith(("$", "$)"))
    }
    assert not found, "say $(?!\\n), or use fullmatch"


@pytest.mark.parametrize(
    "source", ['Meta(pattern="^a$")', 're.compile(r"a$", re.ASCII)', 're.match("a$", text)']
)
def test_a_pattern_that_lets_one_pass_is_found(source: str) -> None:
    assert patterns(source)[0].endswith("a$")
