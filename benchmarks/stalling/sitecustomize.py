"""Holds the interpreter of the process under test again and again: `BENCH_STALL="MS TIMES"`, TIMES a second.

Python runs this file when it starts with this folder on its path, before anything of the program; the program itself
has no hook for it. A thread sleeps in C without giving up the interpreter's lock. The variables are taken out of the
environment, so that processes started from here are left alone. Each stall adds a byte to the file
`BENCH_STALL_COUNT`.
"""

import ctypes
import os
import threading
import time


def _stall_for_ever(hold_s: float, times: float, count: str) -> None:
    usleep = ctypes.PyDLL(None).usleep  # unlike CDLL's, these calls keep the lock
    with open(count, "ab", buffering=0) as told:
        while True:
            time.sleep(max(1 / times - hold_s, 0.0))
            usleep(int(hold_s * 1e6))
            told.write(b".")


def _start(said: str, count: str) -> None:
    hold_ms, times = (float(word) for word in said.split())
    arguments = (hold_ms / 1e3, times, count)
    threading.Thread(target=_stall_for_ever, args=arguments, name="bench-stall", daemon=True).start()


if _said := os.environ.pop("BENCH_STALL", ""):
    _start(_said, os.environ.pop("BENCH_STALL_COUNT", os.devnull))
