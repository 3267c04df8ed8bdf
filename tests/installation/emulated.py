"""A machine with another processor, emulated by QEMU: a Debian 13 for 64-bit ARM on a disk, its kernel, a way in.

The tree is made once and kept in the user's cache, by mmdebstrap, whose programs for ARM the kernel has qemu-user run.
The kernel is started without firmware, with just so much in memory as finds the disk. ``machine.Machine``'s commands
are run by ``remote.py`` in it.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.installation import remote
from tests.installation.machine import CACHE, NEEDED, Machine, unpack, until
from tests.workers.jail.machine import archive

EMULATOR: Final = "qemu-system-aarch64"
PROGRAMS: Final = (EMULATOR, "mmdebstrap", "mkfs.ext4")
KERNELS: Final[Mapping[str, str]] = MappingProxyType({"4 KiB": "arm64", "16 KiB": "arm64-16k"})
"""Debian's, by the pages that they have. It has none with the 64 KiB of some others."""
FURTHER: Final = ("iproute2", "procps")
OPTIONS: Final = (
    "-machine", "virt,gic-version=3", "-cpu", "neoverse-n1", "-accel", "tcg,thread=multi", "-smp", "2", "-m", "3072",
    "-nodefaults", "-display", "none", "-no-reboot",
)  # fmt: skip
WORDS: Final = "console=ttyAMA0 quiet panic=-1 net.ifnames=0 systemd.show_status=0"
MODULES: Final = (
    "kernel/drivers/block/virtio_blk.ko.xz",
    "kernel/drivers/net/virtio_net.ko.xz",
    "kernel/crypto/crc32c_generic.ko.xz",
    "kernel/fs/ext4/ext4.ko.xz",
)
EARLY_PROGRAMS: Final = ("usr/bin/dash", "usr/sbin/insmod", "usr/bin/mount", "usr/sbin/switch_root")
EARLY_LIBRARIES: Final = (
    "ld-linux-aarch64.so.1", "libc.so.6", "libcrypto.so.3", "libz.so.1", "libzstd.so.1", "libmount.so.1",
    "libblkid.so.1", "libselinux.so.1", "libpcre2-8.so.0",
)  # fmt: skip
LIBRARIES: Final = "usr/lib/aarch64-linux-gnu"
BOOT_S: Final = 600.0
DISK: Final = "6G"
UNIT: Final = """\
[Service]
ExecStartPre=ip link set eth0 up
ExecStartPre=ip address add 10.0.2.15/24 dev eth0
ExecStart=python3 /srv/remote.py serve
"""
SLOW: Final = "[Service]\nTimeoutStartSec=900\nWatchdogSec=0\n"
"""A processor that is emulated on a machine that is busy may stand for long."""


class Emulated(Machine):
    """One that runs: what ``Machine`` can do, with another processor."""

    limit_s = 1800.0

    def __init__(self, folder: Path, kernel: Path, early: Path) -> None:
        self.port = _free_port()
        self._said = folder / "console"
        network = f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:{remote.PORT}"
        words = [
            EMULATOR, *OPTIONS, "-kernel", str(kernel), "-initrd", str(early), "-append", WORDS,
            "-drive", f"file={folder / 'disk'},format=raw,if=none,id=disk,cache=unsafe",
            "-device", "virtio-blk-pci,drive=disk",
            "-netdev", network, "-device", "virtio-net-pci,netdev=net,romfile=", "-serial", f"file:{self._said}",
        ]  # fmt: skip
        self._outer = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        try:
            until("the machine has started", self._answers, BOOT_S)
        except BaseException as error:
            self.close()
            error.add_note(self._said.read_text(errors="replace")[-4000:] if self._said.exists() else "")
            raise

    @property
    def enter(self) -> list[str]:
        """The words before a command that have it run inside."""
        return [sys.executable, remote.__file__, str(self.port)]

    def close(self) -> None:
        self._outer.kill()
        self._outer.wait()

    def _answers(self) -> bool:
        assert self._outer.poll() is None, "the emulator ended"
        return self._state() in ("running", "degraded")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def lacking() -> str:
    """What is not here of what this takes."""
    emulated = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    missing += [] if os.uname().machine == "aarch64" or emulated.exists() else ["qemu-user-static"]
    missing += [] if os.geteuid() == 0 else ["root"]
    return ", ".join(missing)


@contextlib.contextmanager
def emulated(pages: str, files: Mapping[str, Path], folders: Mapping[str, Path]) -> Iterator[Emulated]:
    """One whose kernel has such ``pages``, gone at the end. ``files`` lie in /srv by their names, ``folders`` with all
    that is in them."""
    with tempfile.TemporaryDirectory(prefix="arm-test-") as place:
        folder, root = Path(place), Path(place) / "root"
        root.mkdir()
        unpack(tree(), root)
        (kernel,) = (root / "boot").glob(f"vmlinuz-*-{KERNELS[pages]}")
        shutil.move(kernel, folder / "kernel")
        release = kernel.name.removeprefix("vmlinuz-")
        (folder / "early").write_bytes(early_root(root, release))
        _furnish(root, files, folders)
        words = ("mkfs.ext4", "-q", "-F", "-d", str(root), str(folder / "disk"), DISK)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(root)
        running = Emulated(folder, folder / "kernel", folder / "early")
        try:
            yield running
        finally:
            running.close()


def tree() -> Path:
    """A minimal Debian 13 for ARM with both kernels, as a file that is made once: ten minutes."""
    path = CACHE / "debian13-arm64-kernels.tar"
    if not path.exists():
        print("   making a Debian 13 for 64-bit ARM, once", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        wanted = (*NEEDED, *FURTHER, *(f"linux-image-{each}" for each in KERNELS.values()))
        words = (
            "--quiet",
            "--variant=minbase",
            "--architectures=arm64",
            f"--include={','.join(wanted)}",
            "--format=tar",
        )
        # Making each kernel's own early root takes minutes where all is emulated.
        environment = {**os.environ, "INITRD": "No"}
        subprocess.run(["mmdebstrap", *words, "trixie", str(part)], check=True, env=environment)
        part.rename(path)
    return path


def early_root(root: Path, release: str) -> bytes:
    """What finds the disk and goes over to it: a shell, its libraries, and what of the kernel is not built in."""
    with tempfile.TemporaryDirectory(prefix="early-") as place:
        early = Path(place)
        for name in EARLY_PROGRAMS:
            _lay(early / name, (root / name).read_bytes())
        for name in EARLY_LIBRARIES:
            _lay(early / LIBRARIES / name, (root / LIBRARIES / name).read_bytes())
        _lay(early / "lib/ld-linux-aarch64.so.1", (root / LIBRARIES / "ld-linux-aarch64.so.1").read_bytes())
        names = []
        for each in _modules(root / "usr/lib/modules" / release):
            names.append(f"/{each.name.removesuffix('.xz')}")
            _lay(early / names[-1][1:], lzma.decompress(each.read_bytes()))
        lines = [
            "#!/usr/bin/dash", "set -e", "mount -t devtmpfs dev /dev", "mount -t proc proc /proc",
            *(f"insmod {name}" for name in names), "while [ ! -b /dev/vda ]; do :; done",
            "mount -t ext4 /dev/vda /disk", "mount --move /dev /disk/dev", "mount --move /proc /disk/proc",
            "exec switch_root /disk /usr/lib/systemd/systemd",
        ]  # fmt: skip
        _lay(early / "init", "\n".join(lines).encode() + b"\n")
        for empty in ("dev", "disk", "proc", "run", "sys"):
            _lay(early / empty / ".keep", b"")
        return archive([str(path) for path in sorted(early.rglob("*")) if path.is_file()], below=early)


def _lay(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _modules(folder: Path) -> list[Path]:
    """Those that are needed, each behind what it needs."""
    needs = {
        name: rest.split()
        for name, _, rest in (
            line.partition(":") for line in (folder / "modules.dep").read_text().splitlines()
        )
    }
    ordered: dict[str, None] = {}
    for name in MODULES:
        ordered.update(dict.fromkeys([*reversed(needs[name]), name]))
    return [folder / name for name in ordered]


def _furnish(root: Path, files: Mapping[str, Path], folders: Mapping[str, Path]) -> None:
    """Let it be entered, have it take its time, and lay these in /srv; what only the kernel needed goes."""
    shutil.rmtree(root / "usr/lib/modules")
    shutil.rmtree(root / "boot")
    for name, source in {"remote.py": Path(remote.__file__), **files}.items():
        shutil.copy(source, root / "srv" / name)
    for name, source in folders.items():
        shutil.copytree(source, root / "srv" / name, symlinks=True)
    units = root / "etc/systemd/system"
    _lay(units / "remote.service", UNIT.encode())
    (wants := units / "multi-user.target.wants").mkdir(exist_ok=True)
    (wants / "remote.service").symlink_to("../remote.service")
    _lay(units / "appliance.service.d/slow.conf", SLOW.encode())
    _lay(root / "etc/dpkg/dpkg.cfg.d/fast", b"force-unsafe-io\n")
