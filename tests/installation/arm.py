"""The Debian package for 64-bit ARM on emulated machines: ``make arm-test``, as root, with mmdebstrap, QEMU and
a Debian mirror.

The product runs under a kernel with pages of 4 KiB and under one with 16 KiB; all else is emulated, down to the
processor, so that no time that it takes means anything. It prints a line for each thing that holds; the first that does
not is the end. PAGES='16 KiB' plays that kernel alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from packages.processor import newest
from packages.tree import install
from tests.installation.emulated import KERNELS, emulated, lacking
from tests.installation.machine import (
    CACHE,
    LOAD,
    PYTHON,
    ROOT,
    Machine,
    is_installed_and_answers,
    is_one_of_a_fleet,
    keeps_its_workers_in_their_jail,
    lets_its_ports_go_when_it_is_stopped,
    pack,
    play,
    reloads,
)

ADDRESSES: Final = ("http://127.0.0.1:8000", "127.0.0.1:8001")
PICTURE: Final = "image=@/usr/share/edge-appliance/models/digits/golden/3-0539.png"
CONFIGURATION: Final = "/etc/appliance/appliance.toml"
STORED: Final = """
[packages]
trusted_keys = ["/srv/maker.key.pub"]

[swap]
slower_factor = 0
watch_s = 0
"""
"""A store that takes the maker's packages. How long a run takes says nothing here: an emulated worker stands for
seconds, by which a version that is watched would be rolled back."""
AS_BOX: Final = ("setpriv", "--reuid=appliance", "--regid=appliance", "--init-groups")
TESTS: Final = (
    "tests/workers/jail",
    "tests/workers/test_arena.py",
    "tests/process",
    "tests/frontend/regions",
)
"""What differs with the processor and the kernel: numbers of system calls, pages, what is mapped."""
PYTEST: Final = (
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "--basetemp=/var/tmp/tests",
    "--timeout=1200",
)


def serves_by_the_native_front_end(box: Machine) -> None:
    system = f"{box.do('uname', '-mr')}, pages of {box.do('getconf', 'PAGESIZE')} bytes"
    said = box.do("appliance", "version")
    print("  ", system, "-", ", ".join(said.splitlines()))
    assert "aarch64" in system
    assert json.loads(box.do("appliance", "status", "--json"))["server"]["front_end"] == "native"


def answers_over_grpc_and_http(box: Machine) -> None:
    for address in ADDRESSES:
        ask = ("appliance", "infer", "digits", "--input", PICTURE, "--json", "--url", address)
        assert "three" in box.do(*ask), address


def has_the_kernel_hold_its_workers(box: Machine) -> None:
    """What the kernel itself says of each: a filter on its calls, no new rights, no capability."""
    for each in json.loads(box.do("appliance", "status", "--workers", "--json"))["workers"]:
        status = box.do("cat", f"/proc/{each['pid']}/status")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        held = (fields["Seccomp"].strip(), fields["NoNewPrivs"].strip(), int(fields["CapEff"], 16))
        assert held == ("2", "1", 0), status


def swaps_a_version_without_losing_a_request(box: Machine) -> None:
    """Version 3 of the digits in version 2's place, on the store, while clients ask."""
    box.do("sh", "-c", f"echo '{STORED}' >>{CONFIGURATION}")
    box.do("systemctl", "restart", "appliance")
    box.do("rm", "-f", "/run/enough")
    load = box.begin(PYTHON, "/srv/load.py", "4")
    assert load.stdout is not None
    assert load.stdout.readline() == "answered\n"
    install = ("appliance", "model", "install", "/srv/digits-3.model", "--config", CONFIGURATION)
    box.do(*AS_BOX, *install, "--wait", "--timeout", "1200")
    answer = json.loads(box.do("appliance", "infer", "digits", "--zeros", "--json"))
    box.do("touch", "/run/enough")
    said, _ = load.communicate(timeout=600)
    print("  ", said.strip())
    history = box.do("appliance", "model", "history", "digits", "--config", CONFIGURATION)
    assert answer["version"] == "3", f"{answer}\n{history}"
    assert set(json.loads(said)) == {"answered", "longest_s"}, said


def passes_its_own_tests(box: Machine) -> None:
    """Of the sources, with what tests need beside them: the jail tries to get out, memory is what it should be."""
    command = " ".join(("env", "PYTHONPATH=/srv/source:/srv/site", PYTHON, *PYTEST, *TESTS))
    print("  ", box.do("sh", "-c", f"cd /srv/source && exec {command}").splitlines()[-1])


CHECKS: Final[tuple[Callable[[Machine], None], ...]] = (
    is_installed_and_answers,
    serves_by_the_native_front_end,
    answers_over_grpc_and_http,
    keeps_its_workers_in_their_jail,
    has_the_kernel_hold_its_workers,
    reloads,
    is_one_of_a_fleet,
    swaps_a_version_without_losing_a_request,
    lets_its_ports_go_when_it_is_stopped,
    passes_its_own_tests,
)


def lay_out_sources(source: Path) -> None:
    """The sources as they stand, with their tests."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)


def site() -> Path:
    """What tests need, for the machine's processor: a folder that is made once for each lock file, 600 MB."""
    lock = ROOT / "requirements-test.lock"
    made = CACHE / f"tests-arm64-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not made.exists():
        print("   fetching what the tests need, once", flush=True)
        part = made.with_suffix(f".{os.getpid()}.part")
        part.mkdir(parents=True)
        install(part, ["--require-hashes", "-r", str(lock)], "aarch64")
        part.rename(made)
    return made


def main() -> int:
    """Play all on each kernel; 0 when all hold."""
    package = newest(ROOT / "dist", processor="aarch64")
    missing = [lacking(), "" if package else "dist/edge-appliance_*_arm64.deb, which 'make deb' makes"]
    if package is None or any(missing):
        print(f"not here: {', '.join(filter(None, missing))}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    wanted = os.environ.get("PAGES", ", ".join(KERNELS)).split(", ")
    with tempfile.TemporaryDirectory(prefix="arm-files-") as place:
        lay_out_sources(source := Path(place) / "source")
        folders = {"source": source, "site": site()}
        (made := Path(place) / "made").mkdir()
        pack(made, "3")
        (made / "load.py").write_text(LOAD)
        files = {"package.deb": package, **{path.name: path for path in made.iterdir()}}
        for pages in wanted:
            print(f"a kernel with pages of {pages}", flush=True)
            with emulated(pages, files, folders) as box:
                play(CHECKS, box)
    return 0


if __name__ == "__main__":
    sys.exit(main())
