"""The daemon's own troubles while its native front end serves requests by itself: killed, held, reloading, draining."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from appliance.frontend.grpc.services import INFER, INFER_STREAM
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from native.tests.raw_client import DATA, RawClient, framed, request
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.streaming import Sending
from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve
from tests.faults.clients import Stream
from tests.faults.fake_models import write_fake
from tests.faults.gate import Gate
from tests.faults.held_interpreter import Hold
from tests.faults.leased import NATIVE_FAKES, leased_of, message, teach, until_empty
from tests.faults.test_leased_streams import figure
from tests.faults.test_workers import version_in, worker_of
from tests.frontend.http.raw_client import RawClient as RawHttpClient
from tests.frontend.http.raw_client import json_request
from tests.fronts import needs_native

pytestmark = needs_native
FRONT_END = NATIVE_FAKES
DEADLINE_EXCEEDED = "4"
LARGE = 40_000
"""A message as long as this goes into its slot as it comes."""


def test_leased_work_goes_on_while_the_interpreter_is_held_and_the_rest_ends_by_its_deadline(
    serve: Serve, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_fake(models, "m")
    write_fake(models, "other")
    hold = Hold(tmp_path / "hold")
    daemon = serve(models, environment=hold.environment)
    teach(daemon, "m")
    before = version_in(daemon.status(), "m")
    host, port = daemon.grpc.rsplit(":", 1)
    with Stub(daemon.grpc) as stub:
        with hold, RawClient((host, int(port))) as raw:
            for index in range(200):
                assert stub.infer(message("m", request_id=str(index))).id == str(index)
            # A client that does not look at its own clock: the front end has to end this one.
            raw.call(1, framed(message("other").SerializeToString()), request(INFER, grpc_timeout="200m"))
            headers, data = raw.answer(1)
            assert (headers["grpc-status"], data) == (DEADLINE_EXCEEDED, b"")
        assert stub.infer(message("other", request_id="after")).id == "after"
    after = version_in(until_empty(daemon), "m")
    assert after["leased"] == before["leased"] + 200
    assert after["requests"]["success"] == before["requests"]["success"] + 200
    assert after["stages"]["total"]["count"] == after["requests"]["success"]


def processes_under(pid: int) -> list[int]:
    """Descriptors of all processes that descend from ``pid``."""
    found, parents = [], {pid}
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent in parents:
            parents.add(int(folder.name))
            found.append(os.pidfd_open(int(folder.name)))
    return found


def test_a_killed_daemon_leaves_no_process_and_its_port_is_free_at_once(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path)
    teach(daemon, "m")
    family = processes_under(daemon.pid)
    assert len(family) >= 2, "the zygote and a worker"
    with Stream(daemon.grpc, "m", threads=8) as stream:
        stream.wait_for(100)
        daemon.signal(signal.SIGKILL)
        stream.wait_for(8, "UNAVAILABLE")
        daemon.process.wait()
        successor = serve(tmp_path, {"grpc": {"addresses": [daemon.grpc]}})
        teach(successor, "m")
    assert set(stream.outcomes) == {"OK", "UNAVAILABLE"}
    assert stream.wrong == 0
    for process in family:
        ended = wait([process], 10.0)
        os.close(process)
        assert ended, "a process outlived its daemon"


def test_models_change_under_leased_load_without_a_failed_request(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m")
    write_fake(tmp_path, "still")
    daemon = serve(tmp_path)
    teach(daemon, "m", "still")
    with Stream(daemon.grpc, "m", threads=8) as moving, Stream(daemon.grpc, "still", threads=2) as still:
        for version in range(2, 6):
            moving.wait_for(50)
            write_fake(tmp_path, "m", versions=(version,), allow_interface_change="true")
            shutil.rmtree(tmp_path / "m" / str(version - 1))
            _reload(daemon)
            daemon.until("the next version alone", lambda now, version=version: _versions(now) == [version])
            moving.wait_for(50)
            daemon.until("it under a lease", lambda now, version=version: _leased(now, version) > 0)
        config = tmp_path / "m" / "config.pbtxt"
        config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
        _reload(daemon)
        moving.wait_for(100)
        still.wait_for(50)
    assert set(moving.outcomes) == set(still.outcomes) == {"OK"}
    assert moving.wrong == still.wrong == 0
    until_empty(daemon)


def test_a_swap_of_one_model_is_forgotten_for_no_other(serve: Serve, tmp_path: Path) -> None:
    for name in ("m", "still"):
        write_fake(tmp_path, name)
    daemon = serve(tmp_path)
    teach(daemon, "m", "still")
    write_fake(tmp_path, "m", versions=(2,))
    shutil.rmtree(tmp_path / "m" / "1")
    _reload(daemon)
    daemon.until("the next version alone", lambda now: _versions(now) == [2])
    before = leased_of(daemon, "still")
    with Stub(daemon.grpc) as stub:
        for _ in range(20):
            stub.infer(message("still"))
        assert leased_of(daemon, "still") == before + 20
        for _ in range(20):
            stub.infer(message("m"))
    daemon.until("the next version under a lease", lambda now: _leased(now, 2) > 0)


SHORTAGE = """
import os, resource
from appliance.engine.fastpath.lanes import Lanes

def taken(self, *lane, real=Lanes._taken):
    if not os.path.exists({path!r}):
        return real(self, *lane)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        return real(self, *lane)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

Lanes._taken = taken
"""
"""While there is a file, the front end finds no descriptor for a lane."""


def test_a_worker_for_which_no_descriptor_was_left_is_leased_when_there_is_one(
    serve: Serve, tmp_path: Path
) -> None:
    """And serves what was taught meanwhile."""
    models, shortage = tmp_path / "models", tmp_path / "shortage"
    shortage.touch()
    write_fake(models, "m")
    daemon = serve(models, before=SHORTAGE.format(path=str(shortage)))
    with Stub(daemon.grpc) as stub:
        for _ in range(10):
            assert stub.infer(message("m"))
        assert leased_of(daemon, "m") == 0
        shortage.unlink()
        end = time.monotonic() + 20
        while leased_of(daemon, "m") == 0:
            assert stub.infer(message("m"))
            assert time.monotonic() < end, "the front end never has the lane"
    assert version_in(until_empty(daemon), "m")["requests"]["failed"] == 0


def _reload(daemon: ApplianceProcess) -> None:
    daemon.messages.clear()
    daemon.signal(signal.SIGHUP)
    daemon.wait_for("RELOADING=1")
    daemon.wait_for("READY=1")


def _versions(document: dict[str, list[dict[str, object]]]) -> list[object]:
    return [entry["version"] for entry in document["models"] if entry["name"] == "m"]


def _leased(document: object, version: int) -> int:
    return int(version_in(document, "m", version)["leased"])


def test_sigterm_under_leased_load_answers_what_was_accepted(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", mode="delay", delay_ms=20)
    daemon = serve(tmp_path)
    teach(daemon, "m")
    with Stream(daemon.grpc, "m", threads=16) as stream:
        stream.wait_for(50)
        assert leased_of(daemon, "m") > 1
        daemon.signal(signal.SIGTERM)
        assert daemon.process.wait(30) == 0
    assert set(stream.outcomes) <= {"OK", "UNAVAILABLE"}
    assert stream.wrong == 0
    assert "Traceback" not in daemon.log()


def test_sigterm_waits_for_what_is_in_the_ring(serve: Serve, tmp_path: Path) -> None:
    models, gate = tmp_path / "models", Gate(tmp_path / "gate")
    write_fake(models, "slow", mode="delay", delay_ms=20, batched=False, gate=tmp_path / "gate")
    daemon = serve(models)
    teach(daemon, "slow")
    with Stub(daemon.grpc) as stub:
        with gate:
            calls = [stub.begin("ModelInfer", message("slow", request_id=str(index))) for index in range(10)]
            daemon.until("all of them inside", lambda now: now["running_requests"] == 10)
            daemon.signal(signal.SIGTERM)
            daemon.wait_for("STOPPING=1")
        assert all(call.result() for call in calls)
    assert daemon.process.wait(30) == 0


def test_what_a_worker_had_that_dies_while_the_daemon_drains_is_answered(
    serve: Serve, tmp_path: Path
) -> None:
    """Alone, on a stream, and over HTTP: all of it had come before."""
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, {"restart": {"quarantine_after": 1000, "restart_delay_ms": 0}})
    teach(daemon, "m")
    asked = json_request("m", {"x": ("UINT8", [1, 4], "[0,1,2,3]")})
    with Stub(daemon.grpc) as stub, RawHttpClient(daemon) as client:
        known = leased_of(daemon, "m")
        while leased_of(daemon, "m") == known:
            assert client.ask(asked).status == 200
        pid = int(worker_of(daemon.status(), "m/1")["pid"])
        os.kill(pid, signal.SIGSTOP)
        call, answers = stub.begin("ModelInfer", message("m")), stub.stream(Sending(message("m")))
        client.send(asked)
        daemon.until("all of them inside", lambda now: version_in(now, "m")["running"] == 3)
        daemon.signal(signal.SIGTERM)
        while listens(daemon.grpc):
            pass
        os.kill(pid, signal.SIGKILL)
        assert call.result()
        assert next(answers).error_message == ""
        assert client.answer().status == 200
    assert daemon.process.wait(20) == 0


@pytest.mark.parametrize(
    ("grants", "width"), [(0, 4), (64, 4), (64, LARGE)], ids=["engine", "small", "large"]
)
def test_a_message_of_a_stream_that_has_begun_to_come_when_the_daemon_stops_is_answered(
    serve: Serve, tmp_path: Path, grants: int, width: int
) -> None:
    write_fake(tmp_path, "m", width=width)
    daemon = serve(tmp_path, {"engine": {"lease_limit": grants, "lease_slots": [[1 << 18, 8]]}})
    if grants:
        teach(daemon, "m", width=width)
    body = framed(message("m", width=width, request_id="half").SerializeToString())
    host, _, port = daemon.grpc.rpartition(":")
    with RawClient((host, int(port))) as client:
        head = client.head(1, request(INFER_STREAM))
        client.socket.sendall(head + client.frame(DATA, 0, 1, body[: len(body) // 2]))
        daemon.until("half a message", lambda now: _begun(daemon, now))
        daemon.signal(signal.SIGTERM)
        while listens(daemon.grpc):
            pass
        client.send(DATA, 0, 1, body[len(body) // 2 :])
        ended, answer = client.answer(1)
    told = pb.ModelStreamInferResponse.FromString(answer[5:])
    assert (told.infer_response.id, told.error_message) == ("half", "")
    assert (ended["grpc-status"], ended["grpc-message"]) == ("14", "Server is stopping")
    assert daemon.process.wait(20) == 0


def _begun(daemon: ApplianceProcess, now: Any) -> bool:
    """Whether something of a message is held: by the front end, or in a slot."""
    return figure(daemon, "appliance_front_end_request_bytes") > 0 or any(
        slots["used"] for slots in now["slots"]
    )


def listens(address: str) -> bool:
    """Whether anybody takes connections there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionError:
        return False
    return True
