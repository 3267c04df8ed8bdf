"""Threads are bound, and let go so that it is as if nobody had bound them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from appliance.workers import cpus
from appliance.workers.cpus import MAX_CPUS, anywhere, bind, bound_to, unbind

ALL = frozenset(os.sched_getaffinity(0))
GONE = 1 << 30

ASK = """
import os, sys
if sys.argv[1:]:
    os.sched_setaffinity(0, {int(sys.argv[1])})
from appliance.workers.cpus import anywhere
print(*sorted(anywhere()))
"""


def asked(*arguments: str) -> set[int]:
    """What a process asks for that was started on that CPU."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return {int(word) for word in done.stdout.split()}


def test_who_was_not_bound_asks_for_all_that_there_can_be() -> None:
    """The kernel keeps what was asked for: CPUs that a cpuset gives later are among them."""
    assert asked() == set(range(MAX_CPUS))


@pytest.mark.skipif(len(ALL) < 2, reason="there is one CPU")
def test_who_was_started_on_some_of_them_asks_for_these() -> None:
    assert asked(str(max(ALL))) == {max(ALL)}


def test_a_thread_is_bound_and_let_go() -> None:
    seen: list[frozenset[int]] = []

    def work() -> None:
        assert bind(0, min(ALL))
        seen.append(bound_to(0))
        unbind(0)
        seen.append(bound_to(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [{min(ALL)}, ALL]


def test_where_nothing_is_left_of_what_is_asked_for_it_goes_wherever_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpus, "anywhere", lambda: frozenset({MAX_CPUS - 1}))
    with pytest.raises(OSError, match="Invalid argument"):
        os.sched_setaffinity(0, cpus.anywhere())
    test_a_thread_is_bound_and_let_go()


def test_who_is_gone_is_nowhere() -> None:
    assert not bind(GONE, min(ALL))
    unbind(GONE)
    assert bound_to(GONE) == frozenset()
    assert anywhere()
