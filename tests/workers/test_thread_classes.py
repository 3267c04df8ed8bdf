"""Giving threads their class back is no failure where one of them ends meanwhile."""

from __future__ import annotations

import threading

from appliance.workers.loading import restore_threads

TIMES = 3_000


def test_threads_that_end_while_they_are_looked_at_do_not_matter() -> None:
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            brief = threading.Thread(target=over.is_set)
            brief.start()
            brief.join()

    comers = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in comers:
        thread.start()
    try:
        for _ in range(TIMES):
            restore_threads()
    finally:
        over.set()
        for thread in comers:
            thread.join()
