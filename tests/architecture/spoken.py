"""The texts that a person can meet, as the source has them: of errors, of problems in files, of warnings in the log,
and of why a version does not serve. What is put in is "…".

Where a text is handed over in a variable or is what a function gives, these are followed. What only passes another's
text on is not one of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import PurePath

from tests.architecture.sources import name_of, python_files, tree_of

HOLE = "…"
ROOTS = frozenset({"ApplianceError", "CommandFailed", "Malformed", "PbtxtError"})
UNSEEN = frozenset({"MessageInvalid"})
"""What a worker said that cannot be believed: told as one text, with these behind it."""
TELLS_OF_PROBLEMS = frozenset({"problem", "_problem", "refuse", "_refuse", "Problem", "_note", "_wrong"})
LOGS = frozenset({"warning", "error"})
WORDINGS = ("problem", "problems", "setback", "unfit", "contradictions", "_advice", "foreign_format")
"""How the names of functions end that give such texts."""
PAIRS = frozenset({"Iterator[tuple[str, str]]", "Iterable[tuple[str, str]]"})
"""What functions give that tell of problems: keys, and what is wrong with each."""
LISTS = frozenset({"problems", "wrong", "texts"})
"""How lists of texts are called."""
TEXT = re.compile(r"[A-Za-z]{2}.*\b[A-Za-z]{2}|[a-z]{5}\W", re.DOTALL)
"""Two words, or a long one that something follows; less is a name or a part of one."""
DEPTH = 4

Function = ast.FunctionDef | ast.AsyncFunctionDef


def spoken() -> dict[str, list[str]]:
    """Each text, and where it is said."""
    found: dict[str, list[str]] = {}
    for path in python_files("appliance"):
        tree, place = tree_of(path), name_of(path)
        for function in (None, *functions_of(tree)):
            for line, text in _said(tree if function is None else function, function, path):
                if TEXT.search(text):
                    found.setdefault(text.strip(), []).append(f"{place}:{line}")
    return found


def functions_of(tree: ast.AST) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def _said(scope: ast.AST, function: Function | None, path: PurePath) -> Iterator[tuple[int, str]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Call):
            for text in _of_call(node, function):
                yield node.lineno, text
        elif isinstance(node, ast.Return | ast.Yield) and function is not None and _words(function, path):
            for text in texts(node.value, function):
                yield node.lineno, text


def _words(function: Function, path: PurePath) -> bool:
    """Whether it puts into words what a person is told."""
    gives = "" if function.returns is None else ast.unparse(function.returns)
    if gives in PAIRS:
        return "cli" not in path.parts
    return (
        function.name.endswith(WORDINGS)
        or path.stem == "former"
        or (path.stem == "wording" and function.name.endswith("_text"))
    )


def _of_call(call: ast.Call, function: Function | None) -> Iterable[str]:
    name = called(call)
    keywords = {each.arg: each.value for each in call.keywords}
    if name in person_facing():
        return next(filter(None, (texts(argument, function) for argument in call.args)), [])
    if name in TELLS_OF_PROBLEMS:
        told = [*call.args[-1:], *(value for key, value in keywords.items() if key == "text")]
        return [text for argument in told for text in texts(argument, function)]
    if name == "append" and isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in LISTS:
        return texts(call.args[0], function)
    if name == "event" and keywords.keys() & {"reason", "error", "problem"}:
        return [text for argument in call.args[:1] for text in texts(argument, function)]
    if name in LOGS and isinstance(call.func, ast.Attribute) and call.args:
        return texts(call.args[0], function)
    return ()


def called(call: ast.Call) -> str:
    """The last part of what is called."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def texts(node: ast.expr | None, function: Function | None, depth: int = 0) -> list[str]:
    """The texts that ``node`` may be."""
    if depth > DEPTH or node is None:
        return []
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)]
    if isinstance(node, ast.Dict | ast.BoolOp):
        return [text for each in node.values for text in texts(each, function, depth)]
    if isinstance(node, ast.Tuple):
        return texts(node.elts[-1], function, depth) if node.elts else []
    if isinstance(node, ast.IfExp):
        return texts(node.body, function, depth) + texts(node.orelse, function, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [f"{left}{HOLE}" for left in texts(node.left, function, depth)]
    if isinstance(node, ast.Name):
        return [text for value in assigned(node.id, function) for text in texts(value, function, depth + 1)]
    if isinstance(node, ast.Call) and called(node) == "MappingProxyType":
        return texts(node.args[0], function, depth)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.JoinedStr)
    ):
        return [text.removeprefix(HOLE) for text in texts(node.func.value, function, depth)]
    if isinstance(node, ast.Call):
        return [text for each in definitions().get(called(node), ()) for text in _given(each, depth)]
    return []


def _given(function: Function, depth: int) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return):
            yield from texts(node.value, function, depth + 1)


def assigned(name: str, function: Function | None) -> Iterator[ast.expr]:
    """What a variable of ``function`` may hold, or a constant of a module."""
    found = False
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                found = True
                yield node.value
    if not found and name.strip("_").isupper():
        yield from constants().get(name, ())


@cache
def definitions() -> dict[str, list[Function]]:
    """Functions that give a text, by name; one that several modules have is none of these."""
    found: dict[str, list[Function]] = {}
    for path in python_files("appliance"):
        for function in functions_of(tree_of(path)):
            if function.returns is not None and ast.unparse(function.returns) in ("str", "str | None"):
                found.setdefault(function.name, []).append(function)
    return found


@cache
def constants() -> dict[str, list[ast.expr]]:
    """What constants of modules are."""
    found: dict[str, list[ast.expr]] = {}
    for path in python_files("appliance"):
        for node in tree_of(path).body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.value is not None
            ):
                found.setdefault(node.target.id, []).append(node.value)
    return found


@cache
def person_facing() -> frozenset[str]:
    """The classes of errors that are told to people: those below the roots."""
    bases: dict[str, set[str]] = {}
    for path in python_files("appliance"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(
                    ast.unparse(each).rpartition(".")[2] for each in node.bases
                )
    found = set(ROOTS)
    while more := {name for name, above in bases.items() if above & found} - found - UNSEEN:
        found |= more
    return frozenset(found)
