"""What of files is in a process, as its page tables have it."""

from __future__ import annotations

from pathlib import Path


def resident_bytes(pid: int, path: str) -> int:
    """Bytes of private mappings of a file, or of all files beneath a directory, that are in the page tables."""
    found, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            inside = path in line
        elif inside and first == "Rss:":
            found += int(line.split()[1]) << 10
    return found
