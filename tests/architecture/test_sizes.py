"""No long tail: the longest module and the longest function are bounded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.architecture.rust import functions_of, rust_files
from tests.architecture.sources import PACKAGES, name_of, python_files, tree_of

MODULE_LINES = 500
FUNCTION_LINES = 70
MEDIAN_FUNCTION_LINES = 12
PARAMETERS_MAX = 8
ATTRIBUTES_MAX = 15
VALUES = ("NamedTuple", "Protocol", "Enum", "StrEnum", "TypedDict")

FILES = python_files(*PACKAGES)


def functions(path: Path) -> list[tuple[str, int]]:
    """Name and lines of every function, decorators and documentation included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(tree_of(path))
        if isinstance(node, kinds)
    ]


def test_modules_are_short() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {name: lines for name, lines in lengths.items() if lines > MODULE_LINES}


def test_functions_are_short() -> None:
    long = [
        f"{name_of(path)} {name}: {n}" for path in FILES for name, n in functions(path) if n > FUNCTION_LINES
    ]
    assert not long


def test_modules_in_rust_are_short() -> None:
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in rust_files(tests=True)
    }
    assert not {name: lines for name, lines in lengths.items() if lines > MODULE_LINES}


def test_functions_in_rust_are_short() -> None:
    found = [(path, name, lines) for path in rust_files(tests=True) for name, lines in functions_of(path)]
    assert len(found) > 1000, "the parser does not see them"
    assert not [f"{name_of(path)} {name}: {lines}" for path, name, lines in found if lines > FUNCTION_LINES]


def test_most_functions_are_shorter_still() -> None:
    lengths = [lines for path in python_files("appliance") for _, lines in functions(path)]
    assert median(lengths) <= MEDIAN_FUNCTION_LINES


@pytest.mark.parametrize("word", ["utils", "util", "helpers", "common", "misc", "manager"])
def test_no_module_is_a_drawer(word: str) -> None:
    assert not [name_of(path) for path in FILES if word in path.stem.split("_")]


def test_every_module_says_what_it_is() -> None:
    silent = [name_of(path) for path in FILES if tree_of(path).body and not ast.get_docstring(tree_of(path))]
    assert not silent


def test_no_function_changes_a_module() -> None:
    globals_said = [
        f"{name_of(path)}:{node.lineno} global {', '.join(node.names)}"
        for path in python_files("appliance")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Global)
    ]
    assert not globals_said


def classes(*packages: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class with the name of its file, but for values: dataclasses, named tuples, enums and ports."""
    for path in python_files(*packages):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not _is_value(node):
                yield name_of(path), node


def _is_value(node: ast.ClassDef) -> bool:
    decorated = any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list)
    return decorated or any(isinstance(base, ast.Name) and base.id in VALUES for base in node.bases)


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def _attributes(node: ast.ClassDef) -> set[str]:
    """Names that methods set on ``self``."""
    return {
        target.attr
        for method in _methods(node)
        for target in ast.walk(method)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def test_constructors_take_few_parameters() -> None:
    wrong = []
    for file, node in classes("appliance"):
        for method in _methods(node):
            count = len(method.args.args) + len(method.args.kwonlyargs) - 1
            if method.name == "__init__" and count > PARAMETERS_MAX:
                wrong.append(f"{file} {node.name}: {count}")
    assert not wrong


def test_classes_keep_few_attributes() -> None:
    counted = [(file, node.name, len(_attributes(node))) for file, node in classes("appliance")]
    assert not [f"{file} {name}: {count}" for file, name, count in counted if count > ATTRIBUTES_MAX]
