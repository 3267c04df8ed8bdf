"""The daemon's own troubles: addresses, directories, reloads, signals, clients that vanish, clocks that jump."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

from appliance.process.priority import SHORT_TURN_NS, turn_ns
from models.generate import write_model
from tests.conformance.grpc.stub import Stub, failure_of
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS, Stream, ask, status_of
from tests.faults.fake_models import write_fake
from tests.faults.leased import message
from tests.faults.test_workers import version_in
from tests.fronts import NATIVE, Sections

pytestmark = pytest.mark.every_front_end

SERVING = health_pb2.HealthCheckResponse.SERVING


def test_a_port_in_use_is_named_and_the_exit_status_says_so(serve: Serve, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        log = {"file": str(tmp_path / "log")}
        daemon = serve(tmp_path, {"grpc": {"addresses": [address]}, "log": log}, ready=False)
        assert daemon.process.wait(30) == 2
        assert address in daemon.log()
        assert "Traceback" not in daemon.log()
        (said,) = (line for line in (tmp_path / "log").read_text().splitlines() if "cannot serve" in line)
        assert address in said


@pytest.mark.skipif(not turn_ns(), reason="a kernel before 6.12")
def test_the_daemon_takes_short_turns_and_its_zygote_and_its_reader_of_models_the_usual_ones(
    serve: Serve, tmp_path: Path
) -> None:
    write_model("mlp", tmp_path)
    daemon = serve(tmp_path)
    daemon.until("the model", lambda it: [entry["state"] for entry in it["models"]] == ["READY"])
    pid = daemon.process.pid
    turns = [turn_ns(int(each.name)) for each in Path(f"/proc/{pid}/task").iterdir()]
    (reader,) = (turn for turn in turns if turn != SHORT_TURN_NS)
    assert reader > SHORT_TURN_NS
    assert turn_ns(pid) == SHORT_TURN_NS
    (zygote,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    assert turn_ns(zygote) > SHORT_TURN_NS
    assert [turn_ns(worker["pid"]) for worker in daemon.status()["workers"]] == [SHORT_TURN_NS]


def test_a_missing_model_directory_is_named(serve: Serve, tmp_path: Path) -> None:
    daemon = serve(tmp_path / "nowhere", ready=False)
    assert daemon.process.wait(30) == 2
    assert str(tmp_path / "nowhere") in daemon.log()
    assert "Traceback" not in daemon.log()


def test_broken_models_are_listed_with_reasons_and_the_others_serve(
    serve: Serve, model_directory: Callable[..., Path]
) -> None:
    broken = ("not_onnx", "truncated", "external_outside", "unknown_operator", "wrong_config", "sequence_out")
    daemon = serve(model_directory("mlp", *broken))
    client = triton.InferenceServerClient(daemon.grpc)
    index = {entry.name: entry for entry in client.get_model_repository_index().models}
    client.close()
    assert index["mlp"].state == "READY"
    for name in broken:
        assert index[name].state == "UNAVAILABLE", name
        assert len(index[name].reason) > 10, name


def test_sigterm_answers_what_was_accepted_and_refuses_the_rest(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "slow", mode="delay", delay_ms=400)
    daemon = serve(tmp_path, {**FAKE_SECTIONS, "daemon": {"drain_notice_s": 0.5}})
    channel = grpc.insecure_channel(daemon.grpc)
    health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
    states = [next(health).status]
    with Stream(daemon.grpc, "slow", threads=3) as stream:
        stream.wait_for(3)
        daemon.signal(signal.SIGTERM)
        states.append(next(health).status)
        assert daemon.process.wait(30) == 0
    channel.close()
    assert states == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
    # Requests that meet the closing connection are CANCELLED by the gRPC library: they had not been accepted.
    assert set(stream.outcomes) <= {"OK", "UNAVAILABLE", "CANCELLED"}
    assert "grace is over" not in daemon.log(), "accepted, and not answered"
    assert stream.outcomes["OK"] >= 6, "what was accepted before the signal was answered"


def test_all_that_tells_of_readiness_turns_at_once_and_nothing_is_refused_for_it(
    serve: Serve, tmp_path: Path
) -> None:
    """Who balances load looks at one of these, and sends clients elsewhere while this box still serves them."""
    write_fake(tmp_path, "quick")
    daemon = serve(tmp_path, {**FAKE_SECTIONS, "daemon": {"drain_notice_s": 60.0}})

    def told() -> list[object]:
        """What each of them says."""
        clients = triton.InferenceServerClient(daemon.grpc), triton_http.InferenceServerClient(daemon.http)
        ready = [client.is_server_ready() for client in clients]
        ready += [client.is_model_ready("quick") for client in clients]
        for client in clients:
            client.close()
        with grpc.insecure_channel(daemon.grpc) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            states = [check(health_pb2.HealthCheckRequest(service=name)).status for name in ("", "quick")]
        metric = b"\nappliance_accepting 1\n" in daemon.get("/metrics")
        return [daemon.status()["accepting"], metric, *ready, *(state == SERVING for state in states)]

    assert told() == [True] * 8
    daemon.signal(signal.SIGTERM)
    daemon.wait_for("STOPPING=1")
    assert told() == [False] * 8
    assert ask(daemon.grpc, "quick").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    daemon.signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0


def test_clients_are_sent_away_before_any_of_them_is_refused(serve: Serve, tmp_path: Path) -> None:
    """Their next call goes to whatever listens next, without their doing, where a connection was only closed."""
    write_fake(tmp_path, "slow", mode="delay", delay_ms=500)
    write_fake(tmp_path, "quick")
    daemon = serve(tmp_path, {**FAKE_SECTIONS, "daemon": {"drain_notice_s": 0.0}})
    said: list[str] = []
    begun = threading.Barrier(4)

    def ask_on() -> None:
        with Stub(daemon.grpc) as stub:
            stub.infer(message("quick"))
            begun.wait()
            text = ""
            while not text:
                try:
                    stub.infer(message("quick"))
                except grpc.RpcError as error:
                    text = failure_of(error).text
            said.append(text)

    asking = [threading.Thread(target=ask_on) for _ in range(3)]
    for each in asking:
        each.start()
    begun.wait()
    with Stub(daemon.grpc) as stub:
        under_way = stub.begin("ModelInfer", message("slow"))
        daemon.until("a running request", lambda now: now["running_requests"] > 0)
        daemon.signal(signal.SIGTERM)
        assert under_way.result()
    for each in asking:
        each.join()
    assert daemon.process.wait(30) == 0
    assert len(said) == 3
    assert not [text for text in said if "Server is stopping" in text]


def test_a_second_signal_does_not_wait_for_the_grace(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "stuck", mode="hang")
    daemon = serve(tmp_path, {**FAKE_SECTIONS, "daemon": {"drain_grace_s": 600}})
    asking = Stream(daemon.grpc, "stuck", threads=1)
    asking.__enter__()
    daemon.until("a running request", lambda now: now["running_requests"] == 1)
    daemon.signal(signal.SIGTERM)
    daemon.wait_for("STOPPING=1")
    daemon.signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0
    asking.__exit__(None, None, None)


TWO_FAIL = """
def fails(owner, name):
    real = getattr(owner, name)
    async def and_raises(self):
        await real(self)
        raise OSError(f"{name} was told to fail")
    setattr(owner, name, and_raises)

from appliance.reconciler.reconciler import Reconciler
from appliance.frontend.http.application import HttpApplication
fails(Reconciler, "stop")
fails(HttpApplication, "close")
"""


def test_what_cannot_be_closed_is_told_and_keeps_nothing_else_from_its_end(
    serve: Serve, tmp_path: Path
) -> None:
    write_fake(tmp_path, "slow", mode="delay", delay_ms=100)
    daemon = serve(tmp_path, FAKE_SECTIONS, before=TWO_FAIL)
    with Stream(daemon.grpc, "slow", threads=1) as stream:
        stream.wait_for(1)
        assert daemon.stop() == 70
    assert set(stream.outcomes) <= {"OK", "UNAVAILABLE", "CANCELLED"}, "as above"
    lines = [json.loads(line) for line in daemon.log().splitlines() if line.startswith("{")]
    told = [line["event"] for line in lines if "was told to fail" in line.get("error", "")]
    assert told[0] == "the end of looking at the models failed; stopping"
    assert "closing the front end failed; stopping" in told
    assert lines[-1]["event"] == "stopped"


def test_sighup_takes_new_versions_in_and_lets_old_ones_go_without_a_failed_request(
    serve: Serve, tmp_path: Path
) -> None:
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, FAKE_SECTIONS)
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        write_fake(tmp_path, "m", versions=(2,))
        write_fake(tmp_path, "new")
        shutil.rmtree(tmp_path / "m" / "1")
        daemon.signal(signal.SIGHUP)
        daemon.until(
            "the new version",
            lambda now: [(e["name"], e["version"]) for e in now["models"]] == [("m", 2), ("new", 1)],
        )
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert ask(daemon.grpc, "m").get_response().model_version == "2"


def test_a_new_version_that_fails_leaves_the_old_one_serving(serve: Serve, tmp_path: Path) -> None:
    write_model("mlp", tmp_path)
    daemon = serve(tmp_path)
    (tmp_path / "mlp" / "2").mkdir()
    (tmp_path / "mlp" / "2" / "model.onnx").write_bytes(b"not onnx at all")
    daemon.messages.clear()
    daemon.signal(signal.SIGHUP)
    client = triton.InferenceServerClient(daemon.grpc)
    daemon.wait_for("RELOADING=1")
    daemon.wait_for("READY=1")
    index = {
        entry.version: entry.state
        for entry in client.get_model_repository_index().models
        if entry.name == "mlp"
    }
    assert index["1"] == "READY"
    assert index["2"] == "UNAVAILABLE"
    client.close()


def test_clients_that_vanish_leave_nothing_behind(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "slow", mode="delay", delay_ms=50, batched=False)
    daemon = serve(tmp_path, FAKE_SECTIONS)
    for _ in range(20):
        with pytest.raises(InferenceServerException) as caught:
            ask(daemon.grpc, "slow", timeout_s=0.005)
        assert status_of(caught.value) in ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
    document = daemon.until(
        "an empty house",
        lambda now: now["running_requests"] == now["queued_requests"] == now["arena_used_bytes"] == 0,
    )
    assert version_in(document, "slow")["state"] == "READY"


def test_five_thousand_idle_connections_do_not_matter(
    serve: Serve, front_end: Sections, model_directory: Callable[..., Path]
) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6_000:
        pytest.skip(f"only {hard} descriptors allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bounds = {"grpc": {"max_connections_per_peer": 8192}} if front_end is NATIVE else {}
    daemon = serve(model_directory("mlp"), bounds)
    host, port = daemon.grpc.rsplit(":", 1)
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(5_000)]
    try:
        client = triton.InferenceServerClient(daemon.grpc)
        feed = triton.InferInput("x", [1, 64], "FP32")
        feed.set_data_from_numpy(np.zeros((1, 64), np.float32))
        assert client.infer("mlp", [feed]).as_numpy("y").shape == (1, 10)
        client.close()
    finally:
        for connection in idle:
            connection.close()
    assert daemon.process.poll() is None


def test_a_full_disk_for_the_log_does_not_matter(serve: Serve, model_directory: Callable[..., Path]) -> None:
    daemon = serve(model_directory("mlp"), {"log": {"file": "/dev/full"}})
    client = triton.InferenceServerClient(daemon.grpc)
    for _ in range(5):
        with pytest.raises(InferenceServerException):
            client.infer(
                "mlp",
                [triton.InferInput("x", [1, 3], "FP32").set_data_from_numpy(np.zeros((1, 3), np.float32))],
            )
    assert client.is_server_ready()
    client.close()
    assert daemon.stop() == 0


def test_requests_refused_at_the_edges_are_counted_and_logged(
    serve: Serve, model_directory: Callable[..., Path]
) -> None:
    daemon = serve(model_directory("mlp"))
    wrong = [("x", [1, 3], "FP32"), ("y", [1, 64], "FP32")]
    for edge in (triton, triton_http):
        client = edge.InferenceServerClient(daemon.grpc if edge is triton else daemon.http)
        for name, shape, datatype in wrong:
            feed = edge.InferInput(name, shape, datatype)
            feed.set_data_from_numpy(np.zeros(shape, np.float32))
            with pytest.raises(InferenceServerException):
                client.infer("mlp", [feed], request_id="edge-test")
        client.close()
    assert version_in(daemon.status(), "mlp")["requests"]["invalid"] == 4
    daemon.stop()
    lines = [line for line in daemon.log().splitlines() if "edge-test" in line]
    assert len(lines) == 4
    assert all('"outcome": "invalid"' in line and '"model": "mlp"' in line for line in lines)


def test_sighup_applies_a_changed_config_and_keeps_the_old_one_when_it_is_broken(
    serve: Serve, tmp_path: Path
) -> None:
    write_fake(tmp_path, "m", mode="identity", allow_interface_change="true")
    daemon = serve(tmp_path, FAKE_SECTIONS)
    client = triton.InferenceServerClient(daemon.grpc)
    assert client.get_model_config("m").config.max_batch_size == 8
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
    daemon.signal(signal.SIGHUP)
    daemon.until("the new configuration", lambda now: client.get_model_config("m").config.max_batch_size == 4)
    config.write_text("max_batch_size: what")
    daemon.signal(signal.SIGHUP)
    daemon.until("a reason", lambda now: "files now have problems" in version_in(now, "m")["reason"])
    assert ask(daemon.grpc, "m").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    client.close()
