"""Do something in a forked process, and learn what became of it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Final

import pytest

from appliance.workers.jail.support import kernel_support

SUPPORT: Final = kernel_support()

needs_landlock = pytest.mark.skipif(SUPPORT.landlock == 0, reason="this kernel has no Landlock")
needs_network_rules = pytest.mark.skipif(SUPPORT.landlock < 4, reason="Landlock of this kernel knows no TCP")
needs_scopes = pytest.mark.skipif(SUPPORT.landlock < 6, reason="Landlock of this kernel knows no scopes")
needs_filters = pytest.mark.skipif(not SUPPORT.filter, reason="this kernel has no seccomp filters")


def in_fork(do: Callable[[], object]) -> str:
    """What ``do`` gave as text, in a process of its own that nothing is left of; the traceback where it raised."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            try:
                said = str(do())
            except BaseException:  # noqa: BLE001 - told to the parent
                said = traceback.format_exc()
            os.write(writable, said.encode()[:60_000])
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, this process is no second run of the tests
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(writable)
    with open(readable, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the process ended with status {status}"
    return said


def outcome(do: Callable[[], object]) -> str:
    """``"done"``, or the name of the error that the system gave."""
    try:
        do()
    except OSError as problem:
        return type(problem).__name__ if problem.errno is None else os.strerror(problem.errno)
    return "done"
