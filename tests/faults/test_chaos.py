"""A short chaos; ``python -m tests.faults.chaos`` is the long one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Serve
from tests.faults.chaos import Troubles, run
from tests.faults.clients import FAKE_SECTIONS, ask
from tests.faults.fake_models import write_fake
from tests.faults.held_interpreter import Hold
from tests.faults.test_workers import worker_of
from tests.fronts import needs_native

SECONDS = 20.0


@needs_native
@pytest.mark.timeout(300)
def test_every_request_is_accounted_for_in_a_short_chaos() -> None:
    report = run(SECONDS, seed=1)
    assert report.leased > 0
    assert sum(report.troubles.values()) > 5


def test_whoever_was_stopped_last_of_all_goes_on(serve: Serve, tmp_path: Path) -> None:
    """No client asks it, so that nobody finds it out."""
    write_fake(tmp_path / "models", "m")
    daemon = serve(tmp_path / "models", FAKE_SECTIONS)
    pid = worker_of(daemon.status(), "m/1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    Troubles(daemon, tmp_path / "models", Hold(tmp_path / "hold"), seed=1).cease()
    assert ask(daemon.grpc, "m").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    assert worker_of(daemon.status(), "m/1")["pid"] == pid
