"""Run `tests.workers.jail.guest` as the first process of an emulated machine: ``make cgroup-test``.

Few places where tests run have cgroups with controllers that they may set. The machine has a kernel of Debian's and in
memory the files of this one that the guest needs; no disk and no network. KERNEL=FILE names another kernel.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.workers.jail.guest import PASSED

ROOT: Final = Path(__file__).parents[3]
GUEST: Final = ("-S", "-m", "tests.workers.jail.guest")
LOADER: Final = "/lib64/ld-linux-x86-64.so.2"
EMULATOR: Final = "qemu-system-x86_64"
OPTIONS: Final = (
    "-accel",
    "tcg",
    "-cpu",
    "max",
    "-m",
    "2048",
    "-nodefaults",
    "-display",
    "none",
    "-no-reboot",
)
LIMIT_S: Final = 600


def archive(paths: list[str], below: Path = Path("/")) -> bytes:
    """An archive of these files where they are in the folder ``below``, links followed, as the kernel unpacks it into
    memory."""
    names = {str(Path(path).relative_to(below)): path for path in map(os.path.abspath, paths)}
    folders = sorted({str(folder) for name in names for folder in Path(name).parents if folder.name})
    return b"".join(
        (
            *(_entry(folder, stat.S_IFDIR | 0o755, b"") for folder in folders),
            *(_entry(name, stat.S_IFREG | 0o755, Path(path).read_bytes()) for name, path in names.items()),
            _entry("TRAILER!!!", 0, b""),
        )
    )


def _entry(path: str, mode: int, data: bytes) -> bytes:
    """The format is that of `cpio -H newc`: numbers in hexadecimal, everything aligned to four bytes."""
    name = os.fsencode(path) + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % number for number in numbers) + name
    return b"".join(part + bytes(-len(part) % 4) for part in (header, data))


def kernels() -> Iterator[str]:
    """Where one may be, the wanted first."""
    if "KERNEL" in os.environ:
        yield os.environ["KERNEL"]
    yield from sorted(map(str, Path("/boot").glob("vmlinuz-*")), reverse=True)


def boot(kernel: str) -> str:
    """Give all that the machine wrote to its console before it ended."""
    python, modules = os.path.realpath(sys.executable), ":".join((str(ROOT), *sys.path[1:]))
    listing = [python, *GUEST, "--files"]
    listed = subprocess.run(
        listing, env={"PYTHONPATH": modules}, stdout=subprocess.PIPE, text=True, check=True
    )
    words = f"console=ttyS0 quiet panic=-1 rdinit={python} PYTHONPATH={modules} -- {' '.join(GUEST)}"
    with tempfile.NamedTemporaryFile(prefix="guest-") as packed:
        packed.write(archive([*listed.stdout.splitlines(), LOADER]))
        packed.flush()
        argv = [
            EMULATOR,
            *OPTIONS,
            "-serial",
            "stdio",
            "-kernel",
            kernel,
            "-initrd",
            packed.name,
            "-append",
            words,
        ]
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S
        ).stdout


def main() -> int:
    """Say what held, or what the console had."""
    kernel = next(kernels(), None)
    if shutil.which(EMULATOR) is None or kernel is None:
        lacking = (
            f"{EMULATOR} is not here" if kernel else "no kernel in /boot; KERNEL=FILE names one elsewhere"
        )
        print(f"skipped: {lacking}")
        return 0
    said = boot(kernel)
    print(said)
    return 0 if PASSED in said.splitlines() else 1


if __name__ == "__main__":
    sys.exit(main())
