"""Somebody else who wants a processor all the time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rival(processor: int, policy: int = os.SCHED_OTHER) -> Iterator[None]:
    """A process of that scheduling class that never sleeps, on this processor, until the end of the block."""
    code = (
        f"import os; os.sched_setaffinity(0, {{{processor}}})\n"
        f"os.sched_setscheduler(0, {policy}, os.sched_param(0)); print(flush=True)\n"
        "while True: pass"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.kill()
