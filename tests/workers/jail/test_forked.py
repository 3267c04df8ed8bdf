"""What forks of the tests have to be spared."""

from __future__ import annotations

import gc
import os

from tests.workers.jail.forked import in_fork

HERE = os.getpid()
SWEPT = 3
HOOKS_MAX = 40
"""More objects than hooks of modules make in a fork before it runs what it was made for."""


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


def test_nor_do_the_hooks_that_run_in_it_first() -> None:
    """Whichever of their objects has the interpreter sweep."""
    thresholds = gc.get_threshold()
    try:
        for following in range(1, HOOKS_MAX):
            gc.disable()
            Garbage()
            gc.set_threshold(gc.get_count()[0] + following)
            gc.enable()
            assert in_fork(lambda: "done") == "done", following
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
