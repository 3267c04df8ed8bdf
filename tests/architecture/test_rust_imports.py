"""The native front end's modules import one another in one direction, between its rooms and within them."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.rust import SOURCES, imports_of, module_of, product_code_of, rust_files
from tests.architecture.sources import name_of

# From the bottom up: a room knows those below it, and none beside it.
LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"measure"}),
    frozenset({"listen", "templates"}),
    frozenset({"handover", "lanes"}),
    frozenset({"fastpath"}),
    frozenset({"resources"}),
    frozenset({"h2", "http"}),
    frozenset({"thread"}),
    frozenset({"python"}),
)

LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
ROOT = ""


def room_of(module: str) -> str:
    return module.partition("::")[0]


def test_every_room_has_its_level() -> None:
    rooms = {room_of(module_of(path)) for path in rust_files()} - {ROOT}
    assert rooms == set(LEVEL_OF)


def test_rooms_only_know_those_below_them() -> None:
    upward = [
        f"{name_of(path)} imports {imported}"
        for path in rust_files()
        if (room := room_of(module_of(path))) != ROOT
        for imported in imports_of(path)
        if room_of(imported) != room and LEVEL_OF[room_of(imported)] >= LEVEL_OF[room]
    ]
    assert not upward


def test_no_modules_import_one_another_in_a_circle() -> None:
    imports = {module_of(path): imports_of(path) for path in rust_files()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_parser_sees_imports() -> None:
    assert {"h2::service", "resources", "fastpath::admission"} <= imports_of(SOURCES / "h2" / "call.rs")


def test_nothing_is_public_beyond_the_crate() -> None:
    public = [
        f"{name_of(path)}: {found.strip()}"
        for path in rust_files()
        for found in re.findall(r"^ *pub (?!\().*", product_code_of(path), re.MULTILINE)
    ]
    assert not public, "the lint for dead code is blind to what is public"


def test_every_room_says_what_it_is_for() -> None:
    silent = [
        name_of(path) for path in rust_files() if not path.read_text(encoding="utf-8").startswith("//! ")
    ]
    assert not silent
