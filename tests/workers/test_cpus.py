"""Threads are bound, and let go so that it is as if nobody had bound them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from appliance.workers.cpus import MAX_CPUS, bind, bound_to, unbind

ALL = frozenset(os.sched_getaffinity(0))
GONE = 1 << 30

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="there is one CPU")


@pytest.fixture
def thread() -> Iterator[int]:
    """One that waits."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield thread.native_id or 0
    end.set()
    thread.join()


def test_a_thread_is_bound_and_let_go(thread: int) -> None:
    for cpu in ALL:
        assert bind(thread, cpu)
        assert bound_to(thread) == {cpu}
        unbind(thread, cpu)
        assert bound_to(thread) == ALL


def test_who_is_let_go_asks_for_all_that_there_can_be(thread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps what was asked for: CPUs that a cpuset gives later are among them."""
    asked: list[frozenset[int]] = []
    bind(thread, min(ALL))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: asked.append(frozenset(cpus)))
    unbind(thread, min(ALL))
    assert asked[0] == frozenset(range(MAX_CPUS))


def test_where_the_main_thread_has_less_it_gets_no_more() -> None:
    """As in a daemon that was started on some CPUs only, or was given others while it runs."""
    program = """
import os, sys, threading
cpu = int(sys.argv[1])
os.sched_setaffinity(0, {cpu})
from appliance.workers.cpus import bind, bound_to, unbind
def work():
    assert bind(0, cpu)
    unbind(0, cpu)
    assert bound_to(0) == {cpu}, bound_to(0)
    os.sched_setaffinity(0, range(1024))
    assert not bind(0, cpu), "somebody let it run elsewhere"
    print("done")
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(max(ALL))], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_who_was_given_a_place_by_somebody_else_keeps_it(thread: int) -> None:
    first, second, *_ = ALL
    os.sched_setaffinity(thread, {first})
    assert not bind(thread, second)
    assert bound_to(thread) == {first}
    unbind(thread, second)
    assert bound_to(thread) == {first}


def test_who_is_gone_is_nowhere() -> None:
    assert not bind(GONE, min(ALL))
    unbind(GONE, min(ALL))
    assert bound_to(GONE) == frozenset()
