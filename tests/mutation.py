"""Flips conditions in one module, a change at a time, and tells which flips no test notices.

Run as ``python -m tests.mutation MODULE.py TEST [TEST ...] [--sample N] [--seed S] [--json FILE]``. The tree it changes
is a copy in a temporary folder; yours is not touched. A survivor is a place to look at: either a test is missing, or the
two forms mean the same. Exit status: 0, or 2 when the tests fail without any change.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_S: Final = 300
COPIED: Final = ("appliance", "tests", "native/python", "models", "pyproject.toml", "docs")
COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class Flip(NamedTuple):
    """One change: the line, what it was, what it became, and the whole module with it."""

    line: int
    before: str
    after: str
    source: str


def flips_of(source: str) -> Iterator[Flip]:
    """Every flip of a comparison, of ``and`` and ``or``, of ``not``, and of a condition as a whole."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for index, operator in enumerate(node.ops):
                if type(operator) in COMPARED:
                    before = ast.unparse(node)
                    node.ops[index] = COMPARED[type(operator)]()
                    yield Flip(node.lineno, before, ast.unparse(node), ast.unparse(tree))
                    node.ops[index] = operator
        elif isinstance(node, ast.BoolOp):
            before, operator = ast.unparse(node), node.op
            node.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield Flip(node.lineno, before, ast.unparse(node), ast.unparse(tree))
            node.op = operator
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            condition = node.test
            node.test = ast.UnaryOp(op=ast.Not(), operand=condition)
            yield Flip(node.lineno, ast.unparse(condition), ast.unparse(node.test), ast.unparse(tree))
            node.test = condition


def run_tests(folder: Path, tests: list[str]) -> bool:
    """Whether they pass in ``folder``; one that hangs has failed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    """Entry of the command; gives its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", type=Path, help="the module whose conditions are flipped")
    parser.add_argument("tests", nargs="+", help="what pytest is given")
    parser.add_argument("--sample", type=int, default=0, help="so many flips, drawn by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the survivors are written")
    arguments = parser.parse_args()
    module = arguments.module.resolve().relative_to(ROOT)
    source = (ROOT / module).read_text()
    flips = list(flips_of(source))
    if arguments.sample and arguments.sample < len(flips):
        flips = Random(arguments.seed).sample(flips, arguments.sample)
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        folder = Path(name)
        for each in COPIED:
            original, copy = ROOT / each, folder / each
            copy.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if original.is_dir() else shutil.copy)(original, copy)
        target = folder / module
        if not run_tests(folder, arguments.tests):
            print(f"the tests fail in a copy of the tree without any change: {' '.join(arguments.tests)}")
            return 2
        survivors = []
        for number, flip in enumerate(flips, 1):
            target.write_text(flip.source)
            survived = run_tests(folder, arguments.tests)
            if survived:
                survivors.append(flip)
                print(f"{module}:{flip.line}: {flip.before}  ->  {flip.after}", flush=True)
            print(f"\r{number} of {len(flips)}, {len(survivors)} survived", end="", file=sys.stderr)
        print(file=sys.stderr)
    print(f"{module}: {len(flips) - len(survivors)} of {len(flips)} flips were noticed")
    if arguments.json is not None:
        rows = [{"line": flip.line, "before": flip.before, "after": flip.after} for flip in survivors]
        arguments.json.write_text(json.dumps({"module": str(module), "flips": len(flips), "survivors": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
