"""Crashing, hanging, lying and starving models: each harms itself, nobody else, and the daemon goes on."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS, Stream, ask, status_of
from tests.faults.fake_models import write_fake
from tests.faults.gate import Gate

ONE_PROCESS = {**FAKE_SECTIONS, "placement": {"max_processes": 1}}


def worker_of(document: Any, key: str) -> Any:
    """The worker entry that holds ``name/version``."""
    return next(worker for worker in document["workers"] if key in worker["models"])


def version_in(document: Any, name: str, version: int = 1) -> Any:
    """The model entry."""
    return next(entry for entry in document["models"] if (entry["name"], entry["version"]) == (name, version))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


@pytest.mark.every_front_end
def test_a_killed_worker_costs_nobody_a_request(serve: Serve, tmp_path: Path) -> None:
    models, gate = tmp_path / "models", Gate(tmp_path / "gate")
    write_fake(models, "victim", gate=tmp_path / "gate")
    write_fake(models, "neighbour")
    daemon = serve(models, FAKE_SECTIONS)
    pid = worker_of(daemon.status(), "victim/1")["pid"]
    with Stream(daemon.grpc, "victim") as victim, Stream(daemon.grpc, "neighbour") as neighbour:
        victim.wait_for(20)
        with gate:
            gate.reached()
            os.kill(pid, signal.SIGKILL)
        victim.wait_for(50)
        neighbour.wait_for(50)
    assert set(neighbour.outcomes) == {"OK"}
    assert set(victim.outcomes) == {"OK"}, "the batch in flight is retried"
    assert victim.wrong == neighbour.wrong == 0
    replaced = worker_of(daemon.status(), "victim/1")
    assert replaced["pid"] != pid
    assert version_in(daemon.status(), "victim")["retries"] > 0


def test_a_poisonous_request_ends_alone(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "poisoned", mode="crash", magic=66)
    write_fake(tmp_path, "neighbour")
    daemon = serve(tmp_path, FAKE_SECTIONS)
    with Stream(daemon.grpc, "neighbour") as neighbour:
        neighbour.wait_for(10)
        with pytest.raises(InferenceServerException) as caught:
            ask(daemon.grpc, "poisoned", first=66)
        assert status_of(caught.value) == "UNAVAILABLE"
        assert "died with the request" in str(caught.value)
        neighbour.wait_for(20)
    assert set(neighbour.outcomes) == {"OK"}
    assert ask(daemon.grpc, "poisoned").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    assert version_in(daemon.status(), "poisoned")["state"] == "READY"


@pytest.mark.every_front_end
def test_the_log_names_what_a_worker_had_that_ended_and_what_it_did(serve: Serve, tmp_path: Path) -> None:
    """Killed while it does nothing, it ended of nothing that a model did."""
    write_fake(tmp_path, "poisoned", mode="crash", magic=66)
    write_fake(tmp_path, "neighbour")
    daemon = serve(tmp_path, ONE_PROCESS)
    os.kill(worker_of(daemon.status(), "poisoned/1")["pid"], signal.SIGKILL)
    daemon.wait_log("worker exited")
    with pytest.raises(InferenceServerException, match="died with the request"):
        ask(daemon.grpc, "poisoned", first=66)
    daemon.wait_log('"worker exited"', times=2)
    ended = [line for line in daemon.log().splitlines() if '"worker exited"' in line]
    told = [(line.get("model"), sorted(line["models"])) for line in map(json.loads, ended)]
    both = ["neighbour/1", "poisoned/1"]
    assert told == [(None, both), ("poisoned/1", both)]
    assert '"model"' not in ended[0], "nothing is better than null"


def test_one_with_a_worker_of_its_own_takes_nobody_with_it_where_others_share(
    serve: Serve, tmp_path: Path
) -> None:
    write_fake(tmp_path, "poisoned", mode="crash", magic=66, own_worker="true")
    for name in ("a", "b", "c"):
        write_fake(tmp_path, name)
    daemon = serve(tmp_path, {**FAKE_SECTIONS, "placement": {"max_processes": 2}})
    before = daemon.status()
    shared, own = (worker_of(before, key)["pid"] for key in ("a/1", "poisoned/1"))
    assert {worker_of(before, f"{name}/1")["pid"] for name in "abc"} == {shared}
    assert shared != own
    with Stream(daemon.grpc, "b") as neighbour:
        neighbour.wait_for(10)
        with pytest.raises(InferenceServerException, match="died with the request"):
            ask(daemon.grpc, "poisoned", first=66)
        neighbour.wait_for(20)
    assert set(neighbour.outcomes) == {"OK"}
    assert ask(daemon.grpc, "poisoned").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    after = daemon.status()
    assert (worker_of(after, "a/1")["pid"], worker_of(after, "a/1")["restarts"]) == (shared, 0)
    assert worker_of(after, "poisoned/1")["pid"] != own


@pytest.mark.parametrize("mode", ["crash_at_load", "hang_at_load", "fail_at_load"])
def test_a_model_that_cannot_load_is_unavailable_and_the_others_serve(
    serve: Serve, tmp_path: Path, mode: str
) -> None:
    write_fake(tmp_path, "broken", mode=mode)
    write_fake(tmp_path, "neighbour")
    sections = {**FAKE_SECTIONS, "workers": {"load_timeout_ms": 500}}
    daemon = serve(tmp_path, sections)
    broken = version_in(daemon.status(), "broken")
    assert broken["state"] == "UNAVAILABLE"
    assert broken["reason"]
    assert ask(daemon.grpc, "neighbour").as_numpy("y").tolist() == [[0, 1, 2, 3]]


@pytest.mark.every_front_end
def test_a_run_that_hangs_is_ended_at_its_bound(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "stuck", mode="hang", run_timeout_ms=300)
    write_fake(tmp_path, "neighbour")
    daemon = serve(tmp_path, FAKE_SECTIONS)
    with pytest.raises(InferenceServerException) as caught:
        ask(daemon.grpc, "stuck")
    assert status_of(caught.value) == "UNAVAILABLE"
    assert ask(daemon.grpc, "neighbour") is not None


@pytest.mark.parametrize(
    ("say", "found"),
    [
        pytest.param("ffffffff00", "exceeds the limit", id="a length beyond all bounds"),
        pytest.param("01000000c0", "not a message", id="nothing"),
        pytest.param("050000000102030405", "not a message", id="a number and more"),
        pytest.param("00000001c0", "exceeds the limit", id="16 MiB of which the rest does not come"),
    ],
)
def test_a_worker_that_talks_nonsense_is_ended(serve: Serve, tmp_path: Path, say: str, found: str) -> None:
    write_fake(tmp_path, "liar", mode="wrong", say=say)
    daemon = ended_with_its_request(serve, tmp_path)
    daemon.wait_log("answered nonsense")
    assert found in daemon.log()


def test_a_worker_that_does_not_end_its_words_is_ended_when_its_time_is_over(
    serve: Serve, tmp_path: Path
) -> None:
    write_fake(tmp_path, "liar", mode="wrong", say="00000100c0", run_timeout_ms=300)
    daemon = ended_with_its_request(serve, tmp_path)
    daemon.wait_log("a batch took longer than 300 ms")


def ended_with_its_request(serve: Serve, models: Path) -> ApplianceProcess:
    """A daemon whose model ``liar`` was asked, which cost that request, and nobody else's."""
    write_fake(models, "neighbour")
    daemon = serve(models, FAKE_SECTIONS)
    with pytest.raises(InferenceServerException) as caught:
        ask(daemon.grpc, "liar")
    assert status_of(caught.value) == "UNAVAILABLE"
    assert ask(daemon.grpc, "neighbour") is not None
    return daemon


def test_a_model_that_eats_memory_meets_its_limit_alone(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "greedy", mode="eat_memory", bytes=64 << 20)
    write_fake(tmp_path, "neighbour")
    sections = {**FAKE_SECTIONS, "workers": {"memory_limit_bytes": 400 << 20}}
    daemon = serve(tmp_path, sections)
    with Stream(daemon.grpc, "neighbour", threads=1) as neighbour:
        refused = 0
        for _ in range(12):
            try:
                ask(daemon.grpc, "greedy")
            except InferenceServerException:
                refused += 1
        neighbour.wait_for(10)
    assert refused > 0
    assert set(neighbour.outcomes) == {"OK"}


def test_in_a_shared_worker_neighbours_of_the_culprit_come_back(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "culprit", mode="crash", magic=66)
    for name in ("one", "two"):
        write_fake(tmp_path, name)
    daemon = serve(tmp_path, ONE_PROCESS)
    assert len(daemon.status()["workers"]) == 1
    with pytest.raises(InferenceServerException):
        ask(daemon.grpc, "culprit", first=66)
    with Stream(daemon.grpc, "one", threads=1) as one, Stream(daemon.grpc, "two", threads=1) as two:
        one.wait_for(10)
        two.wait_for(10)
    assert set(one.outcomes) == set(two.outcomes) == {"OK"}


@pytest.mark.every_front_end
def test_the_zygote_of_workers_may_die_too(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, FAKE_SECTIONS)
    worker = worker_of(daemon.status(), "m/1")["pid"]
    parent = parent_of(worker)
    assert parent != daemon.pid
    with Stream(daemon.grpc, "m", threads=2) as stream:
        stream.wait_for(5)
        os.kill(parent, signal.SIGKILL)
        stream.wait_for(30)
    assert version_in(daemon.status(), "m")["state"] == "READY"
    assert stream.wrong == 0


@pytest.mark.every_front_end
def test_nothing_outlives_a_killed_daemon(serve: Serve, tmp_path: Path) -> None:
    """Not even processes that stand, and so cannot see that it is gone: the kernel has to end them."""
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, FAKE_SECTIONS)
    worker = worker_of(daemon.status(), "m/1")["pid"]
    pids = worker, parent_of(worker)
    watched = [os.pidfd_open(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    daemon.process.kill()
    daemon.process.wait()
    try:
        for each in watched:
            assert wait([each], 10.0), "a process outlived its daemon"
    finally:
        for each in watched:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(each, signal.SIGKILL)
            os.close(each)
