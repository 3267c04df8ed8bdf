"""The parts of the rollout give their steps, and none is left out: a call that nothing goes through does nothing."""

from __future__ import annotations

import ast
from pathlib import Path

from appliance.core import rollout

GIVES_STEPS = ("Steps", "Step,", "do.Action]", "do.Note", "do.Report")


def named(call: ast.expr) -> str:
    """The last name of what is called."""
    return call.attr if isinstance(call, ast.Attribute) else call.id if isinstance(call, ast.Name) else ""


def test_what_gives_steps_is_never_called_for_nothing() -> None:
    (folder,) = map(Path, rollout.__path__)
    modules = {path.name: ast.parse(path.read_text()) for path in folder.glob("*.py")}
    nodes = [(name, node) for name, tree in modules.items() for node in ast.walk(tree)]
    gives = {
        node.name
        for _, node in nodes
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and any(word in ast.unparse(node.returns) for word in GIVES_STEPS)
    }
    assert {"leave", "take", "came_out"} <= gives
    idle = [
        f"{name}:{node.lineno}"
        for name, node in nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and named(node.value.func) in gives
        and name != "trial.py"  # a state machine with names of its own
    ]
    assert not idle
