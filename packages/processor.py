"""The processors that the product is packaged for, as the kernel and wheels call them and as Debian does.

Where a package that was made is looked for, it is that of a processor: ``newest`` gives the one of this machine.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

X86: Final = "x86_64"
ARCHITECTURES: Final[Mapping[str, str]] = MappingProxyType({X86: "amd64", "aarch64": "arm64"})
"""What Debian calls a machine, by what ``uname -m`` calls it."""


def architecture(processor: str | None = None) -> str:
    """Debian's name of a processor, of this machine's where none is named. Raises LookupError for one that no
    package is made for."""
    name = processor or platform.machine()
    if name not in ARCHITECTURES:
        raise LookupError(
            f"no package is made for the processor '{name}'; there are {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def newest(folder: Path, name: str = "edge-appliance", processor: str | None = None) -> Path | None:
    """The package ``name`` in a folder whose file's name sorts last of those for a processor, of this machine's where
    none is named; None where there is none."""
    called = ARCHITECTURES.get(processor or platform.machine())
    return max(folder.glob(f"{name}_*_{called}.deb"), default=None) if called else None
