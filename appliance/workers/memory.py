"""What a worker process costs in memory, as the kernel counts it."""

from __future__ import annotations

import mmap


def private_bytes(pid: int) -> int:
    """Resident bytes of ``pid`` that are not file-backed or shared memory; 0 when the process is gone.

    Pages still shared copy-on-write with the zygote count too, so this is an upper bound that costs one small read;
    ``smaps_rollup`` would be exact and takes milliseconds.
    """
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE
