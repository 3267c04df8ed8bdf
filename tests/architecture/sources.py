"""The project's source files, parsed, for tests about how they hang together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("appliance", "benchmarks", "demo", "examples", "image", "models", "packages", "proto", "tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import: the file it is in, the module it names, whether only type checkers see it."""

    file: str
    line: int
    module: str
    for_types: bool


def python_files(*packages: str) -> list[Path]:
    """All Python files of ``packages``."""
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    """Path from the root of the project, with slashes."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), name_of(path))


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file, also those inside functions. ``from a import b`` names ``a.b`` when that is a module."""
    hidden = {
        id(inner) for node in ast.walk(tree_of(path)) if _is_type_checking(node) for inner in ast.walk(node)
    }
    for node in ast.walk(tree_of(path)):
        for module in _modules(node):
            yield Import(file=name_of(path), line=node.lineno, module=module, for_types=id(node) in hidden)  # type: ignore[attr-defined]


def _modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.module is not None
        assert node.level == 0
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if _is_module(inner) else node.module


def _is_module(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
