"""What this process has open."""

from __future__ import annotations

import os
from pathlib import Path


def open_below(place: Path) -> set[str]:
    """Descriptors of ``place`` and of what is below it."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if target.startswith(str(place)):
            found.add(descriptor)
    return found
