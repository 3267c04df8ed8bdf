"""The scheduler decides and does nothing else: no clock, no loop, no logging, no operating system."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import appliance.core.scheduling

FORBIDDEN = {"asyncio", "time", "os", "logging", "threading", "socket", "random", "datetime"}
ALLOWED = {
    "appliance.config.engine",
    "appliance.core.scheduling",
    "appliance.domain.model",
    "appliance.domain.inference",
    "appliance.domain.tensor",
    "appliance.domain.errors",
}
SOURCES = sorted(Path(next(iter(appliance.core.scheduling.__path__))).glob("*.py"))

LOADED = """
import sys
before = set(sys.modules)
import appliance.core.scheduling.scheduler
print(*sorted(set(sys.modules) - before))
"""


def imported(source: Path) -> set[str]:
    """Every module that ``source`` names in an import."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_sources_name_nothing_forbidden_and_look_only_downward() -> None:
    assert len(SOURCES) > 5
    for source in SOURCES:
        names = imported(source)
        assert not {name.partition(".")[0] for name in names} & FORBIDDEN, source
        own = {name for name in names if name.startswith("appliance")}
        assert all(any(name == word or name.startswith(f"{word}.") for word in ALLOWED) for name in own), (
            source
        )


def test_importing_it_loads_no_loop_and_no_logging() -> None:
    command = [sys.executable, "-c", LOADED]
    root = Path(appliance.core.scheduling.__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    loaded = set(done.stdout.split())
    assert "appliance.core.scheduling.scheduler" in loaded
    assert not loaded & {"asyncio", "logging", "socket", "threading", "selectors"}
