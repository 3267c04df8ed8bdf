"""Reading the bytes of a file as fast as this machine can, three ways: what loading is measured against.

Each reads from a cold page cache: the file's pages are dropped before, which needs no privileges for clean ones.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

DIRECT_BYTES = 4 << 20
DIRECT_THREADS = 4
READ_BYTES = 1 << 20
DROP_CACHES = "/proc/sys/vm/drop_caches"
MADV_POPULATE_READ = 22


def make_cold(path: str) -> None:
    """Have nothing of the file in memory. As root, of no file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    with suppress(OSError), open(DROP_CACHES, "w", encoding="ascii") as file:
        file.write("1")


def read_populated(path: str, nbytes: int) -> None:
    """One shared mapping, populated in one go."""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as memory,
    ):
        memory.madvise(MADV_POPULATE_READ)


def read_direct(path: str, nbytes: int) -> None:
    """O_DIRECT, four threads with 4 MiB each at a time."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    offsets = iter(range(0, nbytes, DIRECT_BYTES))
    lock = threading.Lock()

    def work() -> None:
        with mmap.mmap(-1, DIRECT_BYTES) as buffer:
            while True:
                with lock:
                    offset = next(offsets, None)
                if offset is None:
                    return
                os.preadv(descriptor, [buffer], offset)

    threads = [threading.Thread(target=work) for _ in range(DIRECT_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)


def read_buffered(path: str, nbytes: int) -> None:
    """read() into one buffer."""
    buffer = memoryview(bytearray(READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while file.tell() < nbytes and file.readinto(buffer):
            pass


RAW_READS: Mapping[str, Callable[[str, int], None]] = MappingProxyType(
    {"mmap+populate": read_populated, "O_DIRECT": read_direct, "read()": read_buffered}
)
DIRECT = "O_DIRECT"


def raw_read_ms(way: str, path: str, nbytes: int) -> float:
    """Milliseconds of one cold read of the first ``nbytes`` bytes."""
    make_cold(path)
    begin = time.perf_counter()
    RAW_READS[way](path, nbytes)
    return (time.perf_counter() - begin) * 1e3
