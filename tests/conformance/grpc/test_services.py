"""Health and reflection, and what a front end does with addresses, connections and its own end."""

from __future__ import annotations

import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.streaming import Sending, ask
from tests.conformance.grpc.stub import Stub, failure_of
from tests.conftest import Serve
from tests.faults.fake_models import write_fake
from tests.fronts import Sections

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
IDLE_CONNECTIONS = 5000
SPARE_DESCRIPTORS = 500
CONNECTIONS_PER_PEER = 500
"""Fewer than one address may hold."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS_FRAME = 4


def check(stub: Stub, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int(health_pb2_grpc.HealthStub(stub.channel).Check(request, timeout=30).status)


def watch(stub: Stub, service: str) -> Iterator[int]:
    """States of ``service`` as they are told."""
    call = health_pb2_grpc.HealthStub(stub.channel).Watch(
        health_pb2.HealthCheckRequest(service=service), timeout=60
    )
    return (int(answer.status) for answer in call)


@pytest.mark.parametrize(
    ("service", "state"),
    [
        ("", SERVING),
        ("inference.GRPCInferenceService", SERVING),
        ("mlp", SERVING),
        ("pair/3", SERVING),
        ("not_onnx", NOT_SERVING),
        ("not_onnx/1", NOT_SERVING),
    ],
)
def test_health_by_service(stub: Stub, service: str, state: int) -> None:
    assert check(stub, service) == state
    assert next(watch(stub, service)) == state


@pytest.mark.parametrize("service", ["nobody", "pair/2"])
def test_health_of_the_unknown(stub: Stub, service: str) -> None:
    with pytest.raises(grpc.RpcError) as unknown:
        check(stub, service)
    assert failure_of(unknown.value).code == "NOT_FOUND"
    assert next(watch(stub, service)) == SERVICE_UNKNOWN


@pytest.mark.parametrize("package", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
def test_reflection_describes_every_service(stub: Stub, package: str) -> None:
    call = stub.channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    (listing,) = call(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=30)
    services = {service.name for service in listing.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= services
    asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in sorted(services)]
    for answer in call(iter(asked), timeout=30):
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(raw)
            for raw in answer.file_descriptor_response.file_descriptor_proto
        ]
        assert any(file.service for file in files)


def test_reflection_is_usable_through_its_own_stub(stub: Stub) -> None:
    reflection = reflection_pb2_grpc.ServerReflectionStub(stub.channel)
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.ModelInferRequest")
    (answer,) = reflection.ServerReflectionInfo(iter([request]), timeout=30)
    names = {
        descriptor_pb2.FileDescriptorProto.FromString(raw).name
        for raw in answer.file_descriptor_response.file_descriptor_proto
    }
    assert names == {"inference.proto", "model_config.proto"}


def test_watchers_hear_of_models_that_come_and_go(serve: Serve, front_end: Sections, tmp_path: Path) -> None:
    write_fake(tmp_path, "first")
    daemon = serve(tmp_path, front_end)
    with Stub(daemon.grpc) as stub:
        states = watch(stub, "second")
        assert next(states) == SERVICE_UNKNOWN
        write_fake(tmp_path, "second")
        daemon.signal(signal.SIGHUP)
        assert SERVING in states


def test_the_end_is_told_before_it_comes(serve: Serve, front_end: Sections, tmp_path: Path) -> None:
    write_fake(tmp_path, "slow", mode="delay", delay_ms=1500, batched=False)
    daemon = serve(tmp_path, front_end)
    with Stub(daemon.grpc) as stub:
        server, model = watch(stub, ""), watch(stub, "slow")
        assert (next(server), next(model)) == (SERVING, SERVING)
        sending = Sending(ask("slow", "streamed"))
        stream = stub.stream(sending)
        unary = stub.begin("ModelInfer", ask("slow", "unary"))
        daemon.until("both inside", lambda now: now["queued_requests"] + now["running_requests"] == 2)
        daemon.signal(signal.SIGTERM)
        assert (list(server), list(model)) == ([NOT_SERVING], [NOT_SERVING])
        assert unary.result()
        assert next(stream).infer_response.id == "streamed"
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert failure_of(ended.value) == ("UNAVAILABLE", "Server is stopping", {})
    assert daemon.process.wait(30) == 0


def test_new_requests_are_refused_while_draining(serve: Serve, front_end: Sections, tmp_path: Path) -> None:
    write_fake(tmp_path, "slow", mode="delay", delay_ms=3000, batched=False)
    write_fake(tmp_path, "quick")
    daemon = serve(tmp_path, front_end)
    with Stub(daemon.grpc) as stub:
        states = watch(stub, "")
        unary = stub.begin("ModelInfer", ask("slow", "a"))
        daemon.until("it running", lambda now: now["running_requests"] == 1)
        daemon.signal(signal.SIGTERM)
        assert NOT_SERVING in states
        code = ""
        while not code:
            try:
                stub.infer(ask("quick", "b"))
            except grpc.RpcError as error:
                code = failure_of(error).code
        assert code in ("UNAVAILABLE", "CANCELLED"), "the latter of the gRPC library's server"
        assert not unary.done(), "it was accepted, and is answered"
        assert unary.result()


def test_a_second_server_does_not_share_the_port(
    server: ApplianceProcess, serve: Serve, front_end: Sections, tmp_path: Path
) -> None:
    second = serve(tmp_path, {**front_end, "grpc": {"addresses": [server.grpc]}}, ready=False)
    assert second.process.wait(30) == 2
    assert f"grpc cannot listen on {server.grpc}: Address already in use" in second.log()


def test_unix_sockets_and_several_addresses(serve: Serve, front_end: Sections, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_fake(models, "first")
    path = f"unix:{tmp_path / 's'}"
    daemon = serve(models, {**front_end, "grpc": {"addresses": [path, "127.0.0.1:0"]}})
    with Stub(path) as stub:
        assert stub.infer(ask("first", "a")).id == "a"
    assert daemon.stop() == 0


def test_a_version_that_still_loads(serve: Serve, front_end: Sections, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_fake(models, "loading", mode="hang_at_load")
    write_fake(models, "first")
    path = f"unix:{tmp_path / 's'}"
    daemon = serve(models, {**front_end, "grpc": {"addresses": [path]}}, ready=False)
    with Stub(path) as stub:
        grpc.channel_ready_future(stub.channel).result(timeout=30)
        failure = stub.refusal(_versioned("loading"))
        assert failure.code == "UNAVAILABLE"
        assert "'loading' version 1 is not at ready state" in failure.text
        assert check(stub, "") == NOT_SERVING
        assert check(stub, "loading") == NOT_SERVING
        assert SERVING in watch(stub, "first")
        assert stub.infer(ask("first", "a")).id == "a"
    daemon.signal(signal.SIGKILL)


def test_thousands_of_idle_connections_harm_nobody(server: ApplianceProcess, stub: Stub) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE_CONNECTIONS + SPARE_DESCRIPTORS:
        pytest.skip(f"only {hard} descriptors may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, port = server.grpc.rsplit(":", 1)
    idle = []
    try:
        for number in range(IDLE_CONNECTIONS):
            peer = f"127.0.0.{2 + number // CONNECTIONS_PER_PEER}"
            connection = socket.create_connection((host, int(port)), timeout=30, source_address=(peer, 0))
            connection.sendall(PREFACE)
            idle.append(connection)
        for connection in idle:
            assert connection.recv(9)[3] == SETTINGS_FRAME
        assert stub.infer(ask("pair", "a")).id == "a"
        with Stub(server.grpc) as late:
            assert late.infer(ask("pair", "b")).id == "b"
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert stub.infer(ask("pair", "c")).id == "c"


def _versioned(model: str) -> object:
    request = ask(model, "a")
    request.model_version = "1"
    return request
