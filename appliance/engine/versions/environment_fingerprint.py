"""What a version's proof holds for on this box: its runtime and that one's version, its device, the processor.

Learned without loading a runtime. When one of these changes, versions are assessed anew.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from appliance.domain.model import ModelVersion
from appliance.runtimes.distributions import DISTRIBUTIONS, installed
from appliance.runtimes.runtime import offers

CPU_FILE: Final = "/proc/cpuinfo"
SAID_OF_A_CPU: Final = frozenset(
    {"model name", "flags", "Features", "CPU implementer", "CPU architecture", "CPU part", "isa"}
)


class EnvironmentFingerprint:
    """Says it of any version, in one line."""

    def __init__(self, cpu: str) -> None:
        self._cpu = cpu
        self._runtimes: dict[str, str] = {}

    def __call__(self, model: ModelVersion) -> str:
        """The line for ``model``: equal as long as its proof holds."""
        runtime = self._runtimes.get(model.runtime)
        if runtime is None:
            runtime = self._runtimes[model.runtime] = _runtime(model.runtime)
        return f"{runtime}, {model.device.kind.value}, {self._cpu}"


def cpu_identity(text: str) -> str:
    """What tells processors apart by the first one that ``text``, a cpuinfo file, describes."""
    said = []
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        if key.strip() in SAID_OF_A_CPU:
            said.append(f"{key.strip()}={' '.join(sorted(value.split()))}")
    return hashlib.blake2b("\n".join(sorted(said)).encode(), digest_size=8).hexdigest()


def this_cpu() -> str:
    """The identity of the processor that this runs on; of an unknown one where the system does not tell."""
    try:
        return cpu_identity(Path(CPU_FILE).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return cpu_identity("")


def _runtime(name: str) -> str:
    """With the release of the library, where it is called like the runtime, and of the package that offers it. Of two
    distributions of one library both count: either may be what answers."""
    packages = [] if name in DISTRIBUTIONS else [each.package for each in offers() if each.name == name]
    return " ".join(
        (name, *installed(name).values(), *(f"of {package}" for package in packages[:1] if package))
    )
