"""The native front end's source files, as far as tests about how they hang together must understand Rust."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.sources import ROOT

SOURCES = ROOT / "native" / "src"

# Comments, strings and characters, which may hold anything; a lifetime is no character.
_OPAQUE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?c?"(?:\\.|[^"\\])*"|b?'(?:\\[^']+|[^'\\])'""",
    re.DOTALL,
)
_TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub\(crate\) )?mod \w+(?P<end>;|\s*\{)")
_FUNCTION = re.compile(r"\bfn (\w+)")
_PATH = re.compile(r"\b(crate|super)((?:::\w+)*)(::\{)?")


def rust_files(*, tests: bool = False) -> list[Path]:
    """All files of the crate; with ``tests`` also those that are only compiled for them."""
    return [path for path in sorted(SOURCES.rglob("*.rs")) if tests or module_of(path) not in _test_modules()]


def module_of(path: Path) -> str:
    """The path of a file's module within the crate, as in ``h2::call``; that of the crate's root is empty."""
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return "::".join(part for part in parts if part not in ("lib", "mod"))


@cache
def code_of(path: Path) -> str:
    """A file without comments, and with nothing in its strings; its lines stay where they are."""
    return _OPAQUE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), path.read_text(encoding="utf-8"))


@cache
def product_code_of(path: Path) -> str:
    """Likewise, and without its tests."""
    code = code_of(path)
    while found := _TESTS.search(code):
        end = found.end() if found["end"] == ";" else block_end(code, found.end() - 1)
        code = code[: found.start()] + re.sub(r"[^\n]", " ", code[found.start() : end]) + code[end:]
    return code


def block_end(code: str, opening: int) -> int:
    """Where the block ends that is opened by the brace there."""
    depth = 0
    for place in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError("a block does not end")


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of every function that has a body."""
    code = code_of(path)
    for found in _FUNCTION.finditer(code):
        body, declared = code.find("{", found.end()), code.find(";", found.end())
        if body >= 0 and not 0 <= declared < body:
            yield found[1], code.count("\n", found.start(), block_end(code, body)) + 1


def imports_of(path: Path) -> set[str]:
    """The modules of the crate that a file names, its tests apart."""
    code, own = product_code_of(path), module_of(path)
    named: set[str] = set()
    for found in _PATH.finditer(code):
        base = "" if found[1] == "crate" else own.rpartition("::")[0]
        path_so_far = "::".join(part for part in (base, found[2].lstrip(":")) if part)
        tails = _group(code[found.end() - 1 : block_end(code, found.end() - 1)]) if found[3] else [""]
        named |= {_nearest("::".join(part for part in (path_so_far, tail) if part)) for tail in tails}
    return named - {"", own}


def _group(group: str) -> Iterator[str]:
    """The paths within the braces of an import; a group within is its own prefix."""
    for part in re.split(r"[{},]", group):
        yield part.strip().removesuffix("::").split(" as ")[0]


def _nearest(path: str) -> str:
    """The module that a path names, or that holds what it names."""
    while path and path not in _modules():
        path = path.rpartition("::")[0]
    return path


@cache
def _modules() -> frozenset[str]:
    return frozenset(module_of(path) for path in SOURCES.rglob("*.rs"))


@cache
def _test_modules() -> frozenset[str]:
    """Modules that are declared for tests only, or named as the tests of one."""
    root = (SOURCES / "lib.rs").read_text(encoding="utf-8")
    declared = re.findall(r"#\[cfg\(test\)\]\nmod (\w+);", root)
    return frozenset({*declared, *(module for module in _modules() if module.endswith("_tests"))})
