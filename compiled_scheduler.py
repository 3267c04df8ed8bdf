"""The scheduler compiled ahead of time: built once per state of its sources, put into wheels, or tried in place.

``python compiled_scheduler.py MODULE [ARGUMENT ...]`` runs a module, such as ``pytest`` or
``tests.simulation.replay``, in this tree but with the compiled scheduler.

mypyc compiles what is hot of ``appliance/core/scheduling``; the source stays Python and runs interpreted wherever
nothing compiled lies beside it. In this tree nothing ever does: what is built lies in ``build/``, named by a digest
of all that it was made from. As hatchling's build hook this puts it into a wheel beside the sources when there is a
C compiler, and leaves the wheel pure when there is none; an editable install is always interpreted. A compiler
that is there and fails is an error, not a reason for a pure wheel.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SCHEDULING = Path("appliance", "scheduling")
MODULES = (
    "actions",
    "admission",
    "agenda",
    "batch",
    "events",
    "grants",
    "group",
    "ledger",
    "profile",
    "queue",
    "register",
    "scheduler",
)
"""What is compiled: all that a step runs through. Settings, statistics and integrity stay Python: they are values
with defaults and type hints that others read, or look on from outside."""
LIBRARY = "appliance_scheduling"
"""The shared library that holds the code of all compiled modules is this with ``__mypyc``."""
OUTPUT_LINES_MAX = 40
COMPILE = """
import sys
from mypyc.build import mypycify
from setuptools import setup

group, *paths = sys.argv[1:]
setup(
    name=group,
    packages=[],
    ext_modules=mypycify(["--strict", *paths], group_name=group, debug_level="0"),
    script_args=["--quiet", "build_ext", "--inplace"],
)
"""


class BuildFailed(Exception):
    """The compiler is there and did not do it."""


def obstacle() -> str:
    """Why the scheduler cannot be compiled here: "" when it can."""
    for module in ("mypyc", "setuptools"):
        if find_spec(module) is None:
            return f"there is no {module} beside {sys.executable} (it is in requirements-test.lock)"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler '{compiler}'"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"Python's headers are missing: no {header}"


def built(root: Path = ROOT) -> Path:
    """A directory that holds the compiled modules of the sources in ``root``, by their places below it; made now
    if it is not there (half a minute). Two that make it at once do not disturb each other."""
    digest = _digest(root)
    place = root / "build" / f"scheduler-{digest}"
    if place.exists():
        return place
    place.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".scheduler-") as scratch:
        tree = Path(scratch, "tree")
        shutil.copytree(root / "appliance", tree / "appliance", ignore=shutil.ignore_patterns("__pycache__"))
        if _digest(root) != digest:
            raise BuildFailed("the scheduler's sources changed while they were copied; build again")
        _compile(tree)
        made = Path(scratch, "made")
        for path in tree.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
            if "build" not in path.relative_to(tree).parts:
                target = made / path.relative_to(tree)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
        try:
            made.rename(place)
        except OSError:
            if not place.exists():
                raise
    return place


def use(place: Path) -> None:
    """Make this process import the compiled modules in ``place``; before any of them was imported."""
    import appliance.core.scheduling

    assert "appliance.core.scheduling.scheduler" not in sys.modules, "the scheduler is imported already"
    sys.path.append(str(place))
    appliance.core.scheduling.__path__.insert(0, str(place / SCHEDULING))
    import appliance.core.scheduling.scheduler as scheduler

    assert Path(scheduler.__file__ or "").is_relative_to(place), (
        f"{scheduler.__file__} is not the compiled one"
    )


def _compile(tree: Path) -> None:
    """Compile in a process of its own: setuptools and mypy change the one that they run in."""
    paths = [str(SCHEDULING / f"{module}.py") for module in MODULES]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, LIBRARY, *paths],
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-OUTPUT_LINES_MAX:])
        raise BuildFailed(
            f"compiling the scheduler failed with status {done.returncode}; its last words:\n{tail}"
        )


def _digest(root: Path) -> str:
    """Names the sources that are compiled or looked at for it, and what compiles them."""
    compiler = os.environ.get("CC", ""), os.environ.get("CFLAGS", "")
    made_by = (
        sysconfig.get_config_var("EXT_SUFFIX"),
        sys.version,
        version("mypy"),
        version("setuptools"),
        *compiler,
    )
    digest = hashlib.sha256(repr(made_by).encode())
    sources = [
        *(root / "appliance").glob("*.py"),
        *(root / SCHEDULING).glob("*.py"),
        root / Path(__file__).name,
    ]
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class SchedulerBuildHook(BuildHookInterface[BuilderConfig]):
    """Adds the compiled scheduler to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the files of a wheel are collected; ``version`` is what kind of wheel it is."""
        if version == "editable":
            return
        missing = obstacle()
        if missing:
            self.app.display_warning(f"scheduler: interpreted, because {missing}")
            return
        place = built(Path(self.root))
        for path in sorted(place.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}")):
            build_data["force_include"][str(path)] = path.relative_to(place).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        self.app.display_info("scheduler: compiled")


def main() -> int:
    """Run a module as ``python -m`` would, with the compiled scheduler."""
    import runpy

    if len(sys.argv) < 2:
        print(f"usage: python {Path(__file__).name} MODULE [ARGUMENT ...]", file=sys.stderr)
        return 2
    missing = obstacle()
    if missing:
        print(f"cannot compile the scheduler: {missing}", file=sys.stderr)
        return 1
    try:
        use(built())
    except BuildFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
