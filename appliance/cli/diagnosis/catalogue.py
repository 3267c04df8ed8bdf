"""Which parts a support archive has, in their order: the ones that are short and say most come first.

Nothing here is read. No part has tensors, models, private keys, or the arguments that the kernel was started with,
which may carry credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.cli.diagnosis.part import MIB, PROGRAM_S, Files, Nowhere, Part, Program

CHECK_S: Final = 60.0
JOURNAL_BYTES: Final = 16 * MIB
UNITS: Final = "appliance*"
KERNEL_DAYS: Final = 7
OF_NOTE: Final = re.compile(
    r"(?i)^(?!.*\bcommand line\b).*?(?:"
    r"\boom\b|\boom[-_]|out of memory|killed process|\bxid\b|nvrm|i/o error|\bata\d|\bnvme|\bmmc\d|buffer error"
    r"|ext4-fs|\bxfs \(|btrfs (?:error|warning)|remount|read-only file|hung_task|blocked for more|soft lockup"
    r"|call trace|segfault|traps:|throttl|thermal (?:event|shutdown)|\bmce\b|machine check|\bedac|hardware error"
    r"|link is (?:up|down)|audit: type=(?:1326|1400)|\btpm|verity)"
)
"""A line of the kernel that says something of the box, and not what the kernel was started with, or did not know of
that: it tells of a disk in it, and is no less a credential's place for that."""
ENTRY: Final = re.compile(r"^(?!-- No entries --)")
PROPERTIES: Final = (
    "Id,LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts,ExecMainStatus,ExecMainCode,MainPID,"
    "ActiveEnterTimestamp,InactiveEnterTimestamp,MemoryCurrent,MemoryPeak,TasksCurrent,CPUUsageNSec,FragmentPath,"
    "DropInPaths,ConditionResult,NeedDaemonReload"
)
CGROUP: Final = (
    "memory.current", "memory.peak", "memory.max", "memory.events", "memory.pressure", "cpu.stat", "cpu.pressure",
    "io.pressure", "pids.current", "pids.max",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What is known of the box before anything is taken. ``file`` is its configuration, None: there is none;
    ``trouble``: why that cannot be used, "" where it can. ``state``: its state directory, None: it has none, or it is
    not known. ``endpoint`` are words by which commands find what serves, where the configuration does not say it;
    ``disks`` the places whose room counts; ``log`` the file that the log goes to, "" for the journal. ``root`` is where
    the machine's files are."""

    file: Path | None
    trouble: str
    state: Path | None
    endpoint: tuple[str, ...]
    disks: tuple[Path, ...]
    log: str = ""
    root: Path = Path("/")

    @property
    def configured(self) -> tuple[str, ...]:
        """The words by which commands find the configuration; none where it is of no use to them."""
        return ("--config", str(self.file)) if self.file is not None and not self.trouble else ()


def parts(box: Box) -> tuple[Part, ...]:
    """All of them."""
    of_subjects = (_versions, _configuration, _daemon, _models, _fleet, _machine, _journal)
    return tuple(part for of_subject in of_subjects for part in of_subject(box))


def _versions(box: Box) -> Iterator[Part]:
    yield _ours("versions/appliance.txt", "product, front end, Python, packages", "version", "--all")
    yield _ours("versions/runtimes.json", "installed runtimes", "runtime", "list", "--json")
    yield _ours("versions/image.json", "the machine's image and its slots", "image", "status", "--json")
    yield _files(box, "versions/system.txt", "distribution and kernel", "usr/lib/os-release", "proc/version")


def _configuration(box: Box) -> Iterator[Part]:
    show, check = "configuration/in-force.toml", "configuration/problems.txt"
    about = ("the configuration with its defaults", "what is wrong with the configuration")
    if box.file is None:
        reason = "no configuration is known; give --config FILE"
        yield Part(path=show, about=about[0], source=Nowhere(reason=reason))
        yield Part(path=check, about=about[1], source=Nowhere(reason=reason))
        return
    yield _ours(show, about[0], "config", "show", str(box.file))
    yield _ours(check, about[1], "config", "check", str(box.file))


def _daemon(box: Box) -> Iterator[Part]:
    where = (*box.endpoint, *box.configured)
    yield _ours("daemon/status.json", "what serves now", "status", "--json", *where)
    yield _reading("daemon/metrics.txt", "its metrics", "metrics", *where)


def _models(box: Box) -> Iterator[Part]:
    where = (*box.endpoint, *(_place(box) or box.configured))
    about = "versions that are installed and served"
    yield _ours("models/list.json", about, "model", "list", "--json", *where)
    yield _of_state(box, "models/history.json", "what happened to versions", "model", "history", "--json")
    check = "names and sizes in the store (quick check)"
    yield _of_state(box, "store/check.json", check, "store", "check", "--quick", "--json", limit_s=CHECK_S)
    yield _of_state(box, "store/usage.json", "what takes how much of it", "store", "usage", "--json")
    yield _of_state(
        box, "store/state.json", "the state directory by its parts", "reading", "state", limit_s=CHECK_S
    )


def _fleet(box: Box) -> Iterator[Part]:
    yield _of_state(box, "fleet/status.json", "the agent, and what is wanted", "sync", "status", "--json")
    yield _of_state(box, "fleet/identity.json", "who the box is: its certificate", "reading", "identity")


def _machine(box: Box) -> Iterator[Part]:
    yield _files(
        box, "machine/memory.txt", "memory", "proc/meminfo", "proc/vmstat", "proc/swaps", "proc/buddyinfo"
    )
    pressure = ("proc/pressure/cpu", "proc/pressure/memory", "proc/pressure/io")
    yield _files(box, "machine/pressure.txt", "who waits for what", *pressure, "proc/loadavg", "proc/uptime")
    yield _files(box, "machine/processors.txt", "processors", "proc/cpuinfo", "proc/stat")
    yield _files(
        box, "machine/disks.txt", "disks and what is mounted how", "proc/self/mountinfo", "proc/diskstats"
    )
    yield _reading("machine/room.json", "what is left on disks", "disks", *map(str, box.disks))
    yield _files(
        box,
        "machine/network.txt",
        "interfaces and sockets",
        "proc/net/dev",
        "proc/net/sockstat",
        "proc/net/snmp",
    )
    yield _files(box, "machine/limits.txt", "bounds of the kernel", *_LIMITS)
    yield Part(
        path="machine/cgroup.txt", about="bounds and use of the units", source=Files(paths=_cgroup(box.root))
    )
    yield _reading("machine/gpus.json", "GPUs as NVML tells of them", "gpus")
    show = ("systemctl", "show", "--no-pager", f"--property={PROPERTIES}", UNITS)
    yield Part(path="machine/units.txt", about="units and how they ended", source=Program(words=show))
    failed = ("systemctl", "list-units", "--no-pager", "--plain", "--failed")
    yield Part(path="machine/failed-units.txt", about="all units that failed", source=Program(words=failed))


_LIMITS: Final = (
    "proc/sys/fs/file-nr", "proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max", "proc/sys/vm/overcommit_memory",
    "proc/sys/vm/max_map_count", "proc/sys/vm/swappiness", "proc/sys/kernel/tainted",
    "proc/sys/kernel/unprivileged_userns_clone", "sys/kernel/security/lsm",
)  # fmt: skip


def _cgroup(root: Path) -> tuple[Path, ...]:
    """Files of the product's slice and its units, else, as in a container, of all that runs here."""
    top = root / "sys/fs/cgroup"
    own = top / "appliance.slice"
    folders = [own, *sorted(own.glob("*.service"))] if own.is_dir() else [top]
    return tuple(folder / name for folder in folders for name in CGROUP if (folder / name).exists())


def _journal(box: Box) -> Iterator[Part]:
    ours = ("journalctl", "--no-pager", "-r", "-o", "short-iso", "--since", "-1d", "-u", UNITS)
    kernel = (*ours[:-3], f"-{KERNEL_DAYS}d", "_TRANSPORT=kernel")
    if box.log:
        log = Files(paths=(Path(box.log),), limit_bytes=JOURNAL_BYTES)
        yield Part(path="journal/log-file.log", about="end of the log's file", source=log)
    said = Program(words=ours, limit_bytes=JOURNAL_BYTES, noted=ENTRY)
    yield Part(path="journal/appliance.log", about="units' journal of a day, newest first", source=said)
    said = Program(words=kernel, limit_bytes=JOURNAL_BYTES, noted=OF_NOTE)
    yield Part(path="journal/kernel.log", about="kernel's of a week, what is of note", source=said)
    said = Program(words=("dmesg", "--ctime"), noted=OF_NOTE)
    yield Part(path="journal/dmesg.log", about="kernel's own buffer, what is of note", source=said)


def _place(box: Box) -> tuple[str, ...] | None:
    """The words by which commands find the state directory; None where none is known."""
    return None if box.state is None else ("--state-dir", str(box.state), *box.configured)


def _of_state(box: Box, path: str, about: str, *words: str, limit_s: float = PROGRAM_S) -> Part:
    place = _place(box)
    if place is None:
        reason = "this box has no state directory, or none is known; give --state-dir DIR"
        return Part(path=path, about=about, source=Nowhere(reason=reason, said=" ".join(words)))
    said = words if words[0] == "reading" else ("appliance", *words)
    return Part(path=path, about=about, source=Program(words=(*said, *place), limit_s=limit_s))


def _ours(path: str, about: str, *words: str) -> Part:
    return Part(path=path, about=about, source=Program(words=("appliance", *words)))


def _reading(path: str, about: str, *words: str) -> Part:
    return Part(path=path, about=about, source=Program(words=("reading", *words)))


def _files(box: Box, path: str, about: str, *names: str) -> Part:
    return Part(path=path, about=about, source=Files(paths=tuple(box.root / name for name in names)))
