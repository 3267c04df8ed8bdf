"""What forks of the tests have to be spared."""

from __future__ import annotations

import gc
import os

from tests.workers.jail.forked import in_fork

HERE = os.getpid()
SWEPT = 3


class Garbage:
    """Ends each process but this one in which it is swept."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        if os.getpid() != HERE:
            os._exit(SWEPT)


def test_a_fork_sweeps_nothing_that_this_process_left() -> None:
    gc.disable()
    try:
        Garbage()
        assert in_fork(lambda: f"{gc.collect() >= 0}") == "True"
    finally:
        gc.enable()
