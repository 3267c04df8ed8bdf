"""A controller that is killed at each system call by which blobs come and go: what is named is there, whole, and the
rest goes when it serves again.

A few calls by turns are tried (``RECLAIM_SEED``); ``python -m tests.controller.test_reclaim_kill`` tries all of them.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.controller import tables
from appliance.controller.blobs import DirectoryBlobs, is_intact, write_blob
from appliance.controller.home import Settings, make_home, open_home
from appliance.controller.leftovers import Leftovers
from appliance.controller.releases import Releases
from appliance.domain.digest import digest_of
from tests.controller.conftest import START_MS
from tests.controller.releasing import MARK, STEPS
from tests.faults.test_store_sweep import usable
from tests.package.onnx_models import layers

SEED = int(os.environ.get("RECLAIM_SEED", "1"))
CASES = 8
CALLS = ("unlink", "rename", "fsync", "fdatasync", "pwrite64", "flock", "renameat", "mkdir", "mkdirat")
NAMED_AFTER = ((), ("1",), ("1+",), ("1+",), ("1+", "2"), ("1+", "2"), ("2",), ("2",))
"""Which packages are released after so many steps."""
SERVE = (
    "import appliance.controller.server as server; server.RECLAIM_S = 0.2\n"
    "from appliance.cli.main import main; raise SystemExit(main())"
)
pytestmark = pytest.mark.skipif(not usable(), reason="strace is not there, or may not trace here")


@cache
def made() -> Path:
    """A folder with packages and a controller that has nothing yet, for as long as the tests run."""
    folder = Path(tempfile.mkdtemp(prefix="reclaim-kill-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    keys = [folder / f"{name}.key" for name in ("maker", "second")]
    for key in keys:
        assert main(["model", "keygen", str(key)]) == 0
    for version in ("1", "2"):
        source, package = folder / f"{version}.onnx", folder / f"{version}.model"
        source.write_bytes(layers(2, 16 * int(version)).SerializeToString())
        words = ["model", "pack", str(source), "--name", "m", "--version", version, "-o", str(package)]
        assert main([*words, "--no-proof"]) == 0
        assert main(["model", "sign", str(package), "--key", str(keys[0])]) == 0
    shutil.copy(folder / "1.model", folder / "1+.model")
    assert main(["model", "sign", str(folder / "1+.model"), "--key", str(keys[1])]) == 0
    publics = [key.with_name(f"{key.name}.pub") for key in keys]
    settings = Settings(url="https://127.0.0.1:1", address="127.0.0.1:0")
    make_home(folder / "controller", settings, [], publics, START_MS)
    return folder


def names() -> dict[str, str]:
    """The packages, by their digests."""
    return {digest_of((made() / f"{each}.model").read_bytes()): each for each in ("1", "1+", "2")}


def run(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Do all steps, traced; gives how that ended and the trace."""
    packages = [str(made() / f"{each}.model") for each in ("1", "1+", "2")]
    with tempfile.NamedTemporaryFile("r") as trace:
        command = ["strace", "-f", "-qq", "-o", trace.name, *options]
        command += [sys.executable, "-m", "tests.controller.releasing", str(folder), *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done, trace.read()


@cache
def calls() -> tuple[Counter[str], Counter[str]]:
    """How often each call is made until the first step begins, and from there to the end of the last."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "controller"
        shutil.copytree(made() / "controller", place)
        done, trace = run(place, "-e", f"trace=access,{','.join(CALLS)}")
        assert (done.returncode, done.stdout.splitlines()) == (0, list(STEPS)), done.stderr
        check(place, len(STEPS), exactly=True)
    before, steps, _ = trace.split(MARK)
    return count(before), count(steps)


def count(trace: str) -> Counter[str]:
    return Counter(line.split()[1].partition("(")[0] for line in trace.splitlines() if len(line.split()) > 1)


def check(folder: Path, done: int, exactly: bool = False) -> None:
    """Whether releases are as after ``done`` steps or one more, and all that is named is there as it was."""
    home = open_home(folder)
    try:
        with home.store.transaction() as rows:
            releases, ways = rows.all(tables.releases), rows.all(tables.transfers)
        found = tuple(sorted(names()[row.package] for row in releases if row.package))
        assert found in NAMED_AFTER[done : done + 1 + (not exactly)]
        named = {row.package for row in releases if row.package}
        for way in ways:
            named |= {way.stream, way.index_digest}
        assert all(is_intact(home.blobs, each) for each in named)
        if exactly:
            assert {path.name for path in (folder / "blobs").glob("??/*")} == named
    finally:
        home.close()


def every_case() -> list[tuple[str, int]]:
    """Each call of the steps, by its name and number."""
    made_calls = calls()[1]
    return [(call, number) for call in CALLS for number in range(1, made_calls[call] + 1)]


def try_case(call: str, number: int, folder: Path) -> None:
    shutil.copytree(made() / "controller", folder)
    at = calls()[0][call] + number
    words = ["-e", f"trace=access,{call}", "-e", f"inject={call}:signal=KILL:when={at}"]
    done, trace = run(folder, *words)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert trace.count(MARK) == 1, "it comes within the steps"
    check(folder, len(done.stdout.splitlines()))
    again, _ = run(folder, "-e", "trace=access")
    assert (again.returncode, again.stdout.splitlines()) == (0, list(STEPS)), again.stderr
    check(folder, len(STEPS), exactly=True)


@pytest.mark.parametrize("place", range(CASES))
def test_what_is_named_outlives_a_kill_at_a_call(place: int, tmp_path: Path) -> None:
    kinds = [call for call in CALLS if calls()[1][call]]
    call = kinds[place % len(kinds)]
    number = random.Random(f"{SEED} {place}").randint(1, calls()[1][call])
    try:
        try_case(call, number, tmp_path / "controller")
    except AssertionError as error:
        raise AssertionError(f"python -m tests.controller.test_reclaim_kill {call}:{number}") from error


def leftovers_in(folder: Path) -> list[Path]:
    """Have a release signed anew; gives the blobs that it had before, and has no more."""
    shutil.copytree(made() / "controller", folder)
    home = open_home(folder)
    try:
        for name in ("1", "1+"):
            draft = home.blobs.draft()
            shutil.copy(made() / f"{name}.model", draft)
            Releases(home.store, home.blobs, home.package_keys).upload(draft, "me", 1)
            if name == "1":
                found = list((folder / "blobs").glob("??/*"))
        with home.store.transaction() as rows:
            (way,) = rows.all(tables.transfers)
        assert not {way.stream, way.index_digest} & {path.name for path in found}
    finally:
        home.close()
    return found


def served(folder: Path, *around: str) -> subprocess.Popen[str]:
    command = [*around, sys.executable, "-c", SERVE, "controller", "serve", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def waited(found: subprocess.Popen[str]) -> list[dict[str, object]]:
    """Wait until it tells that blobs were reclaimed, end the controller, and give the lines of its log."""
    assert found.stderr is not None
    lines: list[dict[str, object]] = []
    for line in found.stderr:
        lines.append(json.loads(line))
        if lines[-1]["event"] == "blobs reclaimed":
            found.terminate()
    return lines


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_controller_that_is_killed_while_it_removes_goes_on_when_it_serves_again(
    tmp_path: Path, number: int
) -> None:
    folder = tmp_path / "controller"
    loose = leftovers_in(folder)
    assert len(loose) == 3
    words = ["strace", "-f", "-qq", "-o", os.devnull, *(f"--trace-path={each}" for each in loose)]
    with served(folder, *words, "-e", f"inject=unlink:signal=KILL:when={number}") as killed:
        killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    left = [path for path in loose if path.exists()]
    assert len(left) in (3 - number, 4 - number)
    check(folder, 2)
    write_blob(
        DirectoryBlobs(folder / "blobs"), lambda path: path.write_bytes(b"one more, so that there is one")
    )
    with served(folder) as found:
        lines = waited(found)
    told = [line for line in lines if line["event"] == "blobs reclaimed"]
    assert [line["blobs"] for line in told] == [len(left) + 1]
    assert not [path for path in loose if path.exists()]
    check(folder, 2, exactly=True)
    home = open_home(folder)
    try:
        with home.store.transaction() as rows:
            noted = [json.loads(line.detail) for line in rows.audit_lines(0, 99) if line.what == "reclaimed"]
        assert noted == [{"blobs": line["blobs"], "bytes": line["bytes"]} for line in told]
        assert Leftovers(home.store, home.blobs).look(1).blobs == 0
    finally:
        home.close()


def sweep(words: list[str]) -> int:
    """Try the cases named, or every one; tells which failed."""
    cases = [(word.split(":")[0], int(word.split(":")[1])) for word in words] or every_case()
    failed = 0
    for call, number in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                try_case(call, number, Path(folder) / "controller")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told and the next one is tried
                failed += 1
                print(f"FAILED {call}:{number}: {error}", flush=True)
    print(f"{len(cases)} cases, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(sweep(sys.argv[1:]))
