"""What a result depends on beside the code: machine, kernel, package versions."""

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("grpcio", "protobuf", "onnxruntime", "numpy", "uvloop", "msgpack", "aiohttp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Facts of the machine and the environment at the time of a run."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    packages: dict[str, str]


def package_version(name: str) -> str:
    """The installed version of a distribution, or 'absent'."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def observe() -> Environment:
    """Read the facts of this machine now."""
    return Environment(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        packages={name: package_version(name) for name in PACKAGES},
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
