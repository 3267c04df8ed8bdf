"""Flips conditions in one module, a change at a time, and tells which flips no test notices.

Run as ``python -m tests.mutation MODULE.py TEST [TEST ...] [--sample N] [--seed S] [--json FILE]``. The tree it changes
is a copy in a temporary folder; yours is not touched. Name first the tests that notice most: the first failure ends a
run; with ``TMPDIR=/dev/shm`` tests that sync files wait for no disk. A survivor is a place to look at: either a test is
missing, or the two forms mean the same. Exit status: 0, or 2 when the tests fail without any change.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import cache_from_source
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import numpy  # noqa: F401  # each fork has it
import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_S: Final = 300
OPTIONS: Final = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout=20")
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
            before, joined = ast.unparse(node), node.op
            node.op = ast.Or() if isinstance(joined, ast.And) else ast.And()
            yield Flip(node.lineno, before, ast.unparse(node), ast.unparse(tree))
            node.op = joined
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            condition = node.test
            node.test = ast.UnaryOp(op=ast.Not(), operand=condition)
            yield Flip(node.lineno, ast.unparse(condition), ast.unparse(node.test), ast.unparse(tree))
            node.test = condition


def passes(folder: Path, tests: list[str]) -> bool:
    """Whether they pass in ``folder``, in a fork of this process, which has what takes long to import and nothing of
    the tree; what hangs has failed."""
    process = get_context("fork").Process(target=_run_tests, args=(folder, tests))
    process.start()
    process.join(TIMEOUT_S)
    with suppress(ProcessLookupError):  # also what its tests started
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return process.exitcode == 0


def _run_tests(folder: Path, tests: list[str]) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    for name in [each for each in sys.modules if each.partition(".")[0] in {"appliance", "models", "tests"}]:
        del sys.modules[name]
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os._exit(pytest.main([*OPTIONS, *tests]))


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
        if not passes(folder, arguments.tests):
            print(f"the tests fail in a copy of the tree without any change: {' '.join(arguments.tests)}")
            return 2
        # What the first run compiled is used again, but for the module that changes: two flips of one size within a
        # second are the same to who looks at compiled files.
        Path(cache_from_source(str(target))).unlink(missing_ok=True)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        survivors = []
        for number, flip in enumerate(flips, 1):
            target.write_text(flip.source)
            survived = passes(folder, arguments.tests)
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
