"""What is written about the project is true of it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

from appliance import __version__
from appliance.cli.main import TABLE
from appliance.config.tree import ApplianceConfig
from tests.architecture.sources import ROOT, name_of, python_files, tree_of

TEXT_SUFFIXES = frozenset(
    {".py", ".pyi", ".md", ".toml", ".proto", ".pbtxt", ".css", ".js", ".html", ".txt", ".lock", ""}
)
PLACES = ("appliance", "benchmarks", "examples", "models", "proto", "tests", "docs", ".ci")
HOMES = re.compile("|".join("/" + place + "/" for place in ("work", "root", "home", "Users", "opt")))
SAID = 40
"""The least that a room's documentation has, in characters."""
DESIGN = {
    "SHARED_MEMORY",
    "FAST_PATH",
    "SCHEDULING",
    "MEMORY",
    "ROLLOUT",
    "PROCESSES",
    "STORE",
    "HTTP",
    "SECURITY",
    "DEVICES",
    "TABLES",
    "LINK",
}
DESIGN_LINES = 110
ARCHITECTURE_WORDS = 1_500
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PLACE = re.compile(
    r"(?<![\w/.~-])"
    r"((?:appliance|native|tests|docs|benchmarks|models|proto)/[\w./-]*\w|(?:[a-z_]+/)+[a-z_]+\.(?:py|rs))"
)
NO_SETTINGS = {"store.lock", "store.trouble", "grpc.aio", "arena.py"}
"""What looks like one: files, fields of the status document, other people's names."""


def texts() -> list[Path]:
    """Every text file of the project that people or programs read."""
    found = [
        path for place in PLACES for path in (ROOT / place).rglob("*") if "__pycache__" not in path.parts
    ]
    found += [
        path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"
    ]  # of a second work tree
    return [path for path in found if path.is_file() and path.suffix in TEXT_SUFFIXES]


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    wrong = []
    for path in texts():
        content = path.read_bytes()
        if b"\0" not in content and (match := HOMES.search(content.decode("utf-8", "replace"))):
            wrong.append(f"{name_of(path)}: {match[0]}")
    assert not wrong


def test_lock_files_name_no_host_and_hash_everything() -> None:
    for path in ROOT.glob("requirements*.lock"):
        content = path.read_text()
        assert "://" not in content, path.name
        pinned = re.findall(r"^[a-z0-9][\w.-]*(?:\[[\w,]+\])?==\S+", content, re.MULTILINE)
        assert len(pinned) == len(re.findall(r"^[a-z0-9].*\\\n\s+--hash=sha256:", content, re.MULTILINE)), (
            path.name
        )
        assert len(pinned) > 5


def test_the_lock_files_agree_with_one_another() -> None:
    """What runs is what is tested."""
    tested = pins(ROOT / "requirements-test.lock")
    for lock, runtime in (("requirements.lock", "onnxruntime"), ("requirements-gpu.lock", "onnxruntime-gpu")):
        served = {pin: at for pin, at in pins(ROOT / lock).items() if not pin.startswith("nvidia-")}
        (ours,) = (pin for pin in served if pin.startswith("onnxruntime"))
        assert ours == runtime
        del served[ours]  # the tests take what is there
        assert served.items() <= tested.items()
    assert not any(pin.startswith("onnxruntime") for pin in tested), "it would come beside the one for a GPU"


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for lock, extra in (("requirements.lock", "cpu"), ("requirements-gpu.lock", "gpu")):
        locked = {pin.partition(" ")[0] for pin in pins(ROOT / lock)}
        wanted = project["dependencies"] + project["optional-dependencies"][extra]
        assert {re.split(r"[<>=!~;\[ ]", each)[0] for each in wanted} <= locked


def documents() -> list[Path]:
    """What is written for people, but for the changelog, which tells of what is gone."""
    found = [path for place in (".", "native", "benchmarks") for path in (ROOT / place).glob("*.md")]
    found += [path for place in ("docs", "examples", "models") for path in (ROOT / place).rglob("*.md")]
    return [path for path in found if path.name != "CHANGELOG.md"]


def test_links_lead_somewhere() -> None:
    links = [(path, link) for path in documents() for link in LINK.findall(path.read_text())]
    assert len(links) > 20
    assert not [
        f"{name_of(path)}: {link}"
        for path, link in links
        if "://" not in link and not (path.parent / link).exists()
    ]


def test_documents_name_no_file_that_is_not_there() -> None:
    named = [(path, place) for path in documents() for place in PLACE.findall(path.read_text())]
    assert len(named) > 100
    homes = ("", "appliance", "native", "native/src")
    assert not [
        f"{name_of(path)}: {place}"
        for path, place in named
        if not any((ROOT / home / place).exists() for home in homes)
    ]


def test_documents_name_no_setting_that_is_not_there() -> None:
    there = set(settings())
    sections = "|".join(sorted({name.partition(".")[0] for name in there if "." in name}))
    named = [
        (path, name)
        for path in documents()
        for name in re.findall(rf"`((?:{sections})\.[a-z_0-9.]+)`", path.read_text())
    ]
    assert len(named) > 30
    wrong = {f"{name_of(path)}: {name}" for path, name in named if name not in there | NO_SETTINGS}
    assert not wrong


def settings(section: type = ApplianceConfig, prefix: str = "") -> Iterator[str]:
    """The name of every section and setting."""
    types = get_type_hints(section)
    for field in fields(section):
        yield prefix + field.name
        if is_dataclass(types[field.name]):
            yield from settings(types[field.name], f"{prefix}{field.name}.")


def test_documents_name_no_test_that_is_not_there() -> None:
    python = [path for place in ("tests", "native/tests") for path in (ROOT / place).rglob("test_*.py")]
    sources = {name_of(path): path.read_text() for path in python}
    there = {name for text in sources.values() for name in re.findall(r"def (test_\w+)", text)}
    there |= {path.stem for path in python}
    named = {name for path in documents() for name in re.findall(r"`(test_\w+)`", path.read_text())}
    assert len(named) > 40
    assert not named - there
    places = re.findall(r"`(\S+/test_\w+\.py)` `(test_\w+)`", (ROOT / "docs" / "SECURITY.md").read_text())
    assert len(places) > 10
    assert not [place for place in places if f"def {place[1]}(" not in sources[place[0]]]


def test_every_class_of_holes_has_a_test_or_is_said_to_be_open() -> None:
    text = (ROOT / "docs" / "SECURITY.md").read_text()
    tables = "".join(text.split("\n## ")[number] for number in (3, 4))
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    assert len(rows) > 30
    said = [row for row in rows[1:] if not row.startswith(("| class |", "| rule |"))]
    assert not [row for row in said if "`test_" not in row and "not protected (below)" not in row]


def test_architecture_is_read_in_five_minutes() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) <= ARCHITECTURE_WORDS


def test_architecture_gives_a_reason_for_every_dependency() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Dependencies")[2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    crates = tomllib.loads((ROOT / "native" / "Cargo.toml").read_text())["dependencies"]
    wanted = {re.split(r"[<>=!~;\[ ]", dependency)[0] for dependency in project["dependencies"]} | set(crates)
    assert not {name for name in wanted if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)}


def test_every_package_says_what_its_room_is_for() -> None:
    rooms = [path for path in python_files("appliance") if path.name == "__init__.py"]
    assert len(rooms) > 20
    silent = [name_of(path) for path in rooms if len(ast.get_docstring(tree_of(path)) or "") < SAID]
    assert not silent


def test_every_folder_of_the_native_front_end_says_what_it_is_for() -> None:
    rooms = list((ROOT / "native" / "src").glob("*/mod.rs"))
    assert len(rooms) > 5
    said = {
        path.parent.name: "".join(re.findall(r"^//! ?(.*)$", path.read_text(), re.MULTILINE))
        for path in rooms
    }
    assert not [name for name, text in said.items() if len(text) < SAID]


def test_design_pages_are_two_screens_long() -> None:
    pages = {path.stem: path.read_text().splitlines() for path in (ROOT / "docs" / "design").glob("*.md")}
    assert set(pages) == DESIGN
    assert not {name: len(lines) for name, lines in pages.items() if len(lines) > DESIGN_LINES}


def test_the_readme_uses_commands_that_exist() -> None:
    commands = re.findall(
        r"^\s*(?:\$ )?(?:\.venv/bin/)?appliance ([a-z]\w*)", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert commands
    assert set(commands) <= set(TABLE.commands)


def test_the_changelog_knows_this_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def pins(lock: Path) -> dict[str, str]:
    """Package and marker to version."""
    lines = re.findall(
        r"^([a-z0-9][\w.-]*)(?:\[[\w,]+\])?==(\S+)(?: ; (.*?))? \\$", lock.read_text(), re.MULTILINE
    )
    return {f"{name}{f' ; {marker}' if marker else ''}": version for name, version, marker in lines}
