"""A real writer process on a real disk, killed and cheated by the kernel at its system calls, one by one.

Each case counts the calls of one undisturbed run, then repeats it with one fault at one call (``strace -e inject``).
After it, the store opens, holds every version that the writer had said to be installed, and a second run gets to the
end. A few cases by seed are tried (``STORE_SEED``); ``python -m tests.faults.test_store_sweep`` tries all of them.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest

from appliance.config.store import StoreConfig
from appliance.domain.digest import digest_of
from appliance.package.container import write_package
from appliance.store.catalog import Catalog
from appliance.store.writer import open_store
from tests.domain.manifests import manifest_of
from tests.faults.store_writer import MARK, STEPS
from tests.store.arrivals import assert_served, contents_of

SEED = int(os.environ.get("STORE_SEED", "1"))
CASES = 12
CHANGING = (
    "write",
    "fsync",
    "renameat",
    "renameat2",
    "linkat",
    "unlinkat",
    "mkdirat",
    "mkdir",
    "openat",
    "pwrite64",
)
FILLING = (
    "openat",
    "write",
    "fsync",
    "renameat",
    "renameat2",
    "linkat",
    "mkdirat",
    "mkdir",
    "pwrite64",
    "ftruncate",
)
ASKING = ("newfstatat", "getdents64", "read", "readv", "fstatfs", "flock", "close", "ftruncate", "fstat")
FAULTS: Mapping[str, Sequence[str]] = {
    "signal=KILL": CHANGING,
    "error=EIO": (*CHANGING, *ASKING),
    "error=ENOSPC": FILLING,
    "error=EROFS": FILLING,
    "retval=1": ("write",),  # the kernel says that it took one byte, and took none
}
STATES = ((0, ()), (1, (1,)), (2, (1, 2)), (2, (2,)))
"""What is wanted and what is installed after each step."""
EXPECTED = re.compile(
    r"^(appliance\.domain\.errors\.\w+|OSError|\w*Error: \[Errno \d+\]|FileNotFoundError|PermissionError)"
)


@dataclass(frozen=True, slots=True)
class Case:
    """``fault`` at the ``count``-th call of ``call`` that the store makes."""

    call: str
    fault: str
    count: int

    def __str__(self) -> str:
        return f"{self.call}:{self.fault}:{self.count}"


@dataclass(frozen=True, slots=True)
class Calls:
    """How often each call is made before the store begins, and by the store."""

    before: Counter[str]
    store: Counter[str]


@cache
def usable() -> bool:
    """Whether there is a strace that may trace and inject."""
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-qq", "-o", os.devnull, "-e", "inject=getuid:error=EIO:when=1", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@cache
def packages() -> tuple[Path, Path]:
    """Two package files, for as long as the tests run."""
    folder = Path(tempfile.mkdtemp(prefix="store-sweep-"))
    for version in (1, 2):
        files = contents_of(version)
        by_digest = {digest_of(content): content for content in files.values()}
        with (folder / f"{version}.model").open("wb") as out:
            manifest = manifest_of(files, name="digits", version=version)
            write_package(out, manifest, None, lambda entry: io.BytesIO(by_digest[entry.digest]))  # noqa: B023
    return folder / "1.model", folder / "2.model"


@cache
def calls() -> Calls:
    """Of one undisturbed run; of one before it, so that modules are compiled."""
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder) / "first")
        done, trace = run(Path(folder) / "second", "-e", "trace=all")
        assert done.returncode == 0, done.stderr
    before, _, after = trace.partition(MARK)
    return Calls(Counter(_names(before)), Counter(_names(after)))


def _names(trace: str) -> list[str]:
    return re.findall(r"^\d+ +(\w+)\(", trace, re.MULTILINE)


def run(state: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the writer, traced where there are ``options``; gives how it ended and the trace."""
    with tempfile.NamedTemporaryFile("r") as trace:
        tracer = ["strace", "-f", "-qq", "-o", trace.name, *options] if options else []
        command = [
            *tracer,
            sys.executable,
            "-m",
            "tests.faults.store_writer",
            str(state),
            *map(str, packages()),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done, trace.read()


def every_case() -> Iterator[Case]:
    """All there are."""
    made = calls().store
    for fault, names in FAULTS.items():
        for name in names:
            yield from (Case(name, fault, count) for count in range(1, made[name] + 1))


def try_case(case: Case, state: Path) -> None:
    """Run with the fault, look, run without it, look again."""
    number = calls().before[case.call] + case.count
    done, trace = run(
        state, "-e", f"trace=access,{case.call}", "-e", f"inject={case.call}:{case.fault}:when={number}"
    )
    before, _, after = trace.partition(MARK)
    assert "INJECTED" not in before, "the fault came too early"
    assert "INJECTED" in after or "killed by SIGKILL" in after, "the fault did not come"
    if done.returncode > 0:
        last = done.stderr.strip().rpartition("\n")[2]
        assert EXPECTED.match(last), done.stderr
    said = [STEPS.index(step) for step in done.stdout.splitlines() if step in STEPS]  # one may have got lost
    acknowledged = max(said, default=-1) + 1
    with open_store(state, StoreConfig(free_floor_bytes=0)) as store:
        assert reached(store.catalog) in STATES[acknowledged : acknowledged + 2]
        assert_served(state, store.catalog)
    again, _ = run(state)
    assert again.returncode == 0, again.stderr
    with open_store(state, StoreConfig(free_floor_bytes=0)) as store:
        assert reached(store.catalog) == STATES[-1]
        assert_served(state, store.catalog)
        store.collect()
        wanted = {file.digest for _, version in store.catalog.installed() for file in version.files}
    assert {path.name for path in (state / "blobs").glob("*/*")} == wanted
    assert os.listdir(state / "incoming") == []


def reached(catalog: Catalog) -> tuple[int, tuple[int, ...]]:
    """What is wanted and what is installed."""
    model = catalog.model("digits")
    return (model.wanted, tuple(each.version for each in model.versions)) if model else (0, ())


@pytest.mark.skipif(not usable(), reason="strace is not there, or may not trace here")
@pytest.mark.parametrize("place", range(CASES))
def test_a_few_cases(place: int, tmp_path: Path) -> None:
    """Faults and calls in turn, at a place by seed."""
    kinds = [(fault, name) for fault, names in FAULTS.items() for name in names if calls().store[name]]
    random = Random(f"{SEED} {place}")
    fault, name = Random(SEED).sample(kinds, len(kinds))[place % len(kinds)]
    case = Case(name, fault, random.randint(1, calls().store[name]))
    try:
        try_case(case, tmp_path / "state")
    except AssertionError as error:
        raise AssertionError(f"python -m tests.faults.test_store_sweep {case}") from error


def main(words: Sequence[str]) -> int:
    """Try the cases named, or every one (an optional ``1/8``: the first of eight parts); tells which failed."""
    part, parts = 0, 1
    if words and re.fullmatch(r"\d+/\d+", words[0]):
        part, parts = (int(word) for word in words[0].split("/"))
        part, words = part - 1, words[1:]
    named = [Case(call, fault, int(count)) for call, fault, count in (word.split(":") for word in words)]
    cases = named or list(every_case())[part::parts]
    failed = 0
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                try_case(case, Path(folder) / "state")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told and the next one is tried
                failed += 1
                print(f"FAILED {case}: {error}", flush=True)
    print(f"{len(cases)} cases, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
