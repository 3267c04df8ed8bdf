"""Quotas of clients on real daemons, of the native front end: who asks too much is refused, and nobody else."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.streaming import Sending, ask
from tests.conformance.grpc.stub import Stub, failure_of
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.faults.gate import Gate
from tests.fronts import NATIVE, Sections, needs_native

pytestmark = needs_native
FRONT_END = NATIVE

HERE = 'quotas.clients."127.0.0.1"'
ELSEWHERE = "127.0.0.2"
Start = Callable[..., ApplianceProcess]
THREE: Mapping[str, Any] = {"requests_per_s": 0.001, "burst": 3}
"""Three requests, and another one after a quarter of an hour."""
TEXT = "Exceeds the quota of '127.0.0.1': 0.001 requests per second, at most 3 at once"
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()
LESSONS = 5


@pytest.fixture
def unix(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/grpc"


@pytest.fixture
def start(serve: Serve, tmp_path: Path, unix: str) -> Start:
    """A daemon with model ``m``, which the native front end serves by itself, and ``gated``; given is the quota of
    127.0.0.1."""

    def started(**quota: Any) -> ApplianceProcess:
        write_fake(tmp_path / "models", "m")
        write_fake(tmp_path / "models", "gated", gate=tmp_path / "gate")
        quotas = {HERE: quota} if quota else {}
        return serve(
            tmp_path / "models", {"grpc": {"addresses": ["127.0.0.1:0", unix]}, **quotas, **FAKE_SECTIONS}
        )

    return started


@contextmanager
def clients(daemon: ApplianceProcess, unix: str) -> Iterator[tuple[Stub, Stub, Stub]]:
    """Two connections of one client, and one of another, who has taught what it could."""
    with ExitStack() as stack:
        one, two, other = (stack.enter_context(Stub(address)) for address in (daemon.grpc, daemon.grpc, unix))
        for _ in range(LESSONS):
            other.infer(ask("m", "lesson"))
        yield one, two, other


def over_http(daemon: ApplianceProcess, source: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of an inference asked from the address ``source``."""
    host, _, port = daemon.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20, source_address=(source, 0))
    try:
        connection.request("POST", "/v2/models/m/infer", BODY, headers)
        answer = connection.getresponse()
        return (
            answer.status,
            {key.lower(): value for key, value in answer.getheaders()},
            answer.read().decode(),
        )
    finally:
        connection.close()


def refusals(daemon: ApplianceProcess) -> dict[str, tuple[int, int]]:
    """By client: for want of tokens, for what is in flight."""
    refused = daemon.status()["quotas"]["refused"]
    return {each["label"]: (each["rate"], each["in_flight"]) for each in refused}


def test_two_connections_of_one_client_share_its_quota_and_another_does_not_feel_it(
    start: Start, unix: str
) -> None:
    daemon = start(**THREE)
    with clients(daemon, unix) as (one, two, other):
        for stub in (one, two, one):
            stub.infer(ask("m", "good"))
        for stub in (one, two):
            failure = stub.refusal(ask("m", "bad"))
            assert (failure.code, failure.text) == (
                "RESOURCE_EXHAUSTED",
                f"[request id: <id_unknown>] {TEXT}",
            )
            assert 900_000 < int(failure.trailers["grpc-retry-pushback-ms"]) <= 1_000_000
            other.infer(ask("m", "good"))
        assert one.call("ServerLive"), "only inferences are counted"
    daemon.wait_log("a client is over its quota")
    (line,) = [line for line in daemon.log().splitlines() if "over its quota" in line]
    assert json.loads(line)["client"] == "127.0.0.1"
    metrics = daemon.get("/metrics").decode()
    assert 'appliance_quota_refused_total{client="127.0.0.1",reason="rate"} 2\n' in metrics
    assert daemon.status()["models"][1]["requests"]["refused"] == 0, "no model is to blame"


def test_http_and_grpc_share_a_quota(start: Start, unix: str) -> None:
    daemon = start(**THREE)
    with clients(daemon, unix) as (one, _, _):
        assert over_http(daemon, "127.0.0.1")[0] == 200
        one.infer(ask("m", "good"))
        assert over_http(daemon, "127.0.0.1")[0] == 200
        assert one.refusal(ask("m", "bad")).code == "RESOURCE_EXHAUSTED"
        for odd in ({}, {"X-Odd": "1"}, {"Expect": "nothing"}, {"Connection": "close"}):
            status, headers, body = over_http(daemon, "127.0.0.1", **odd)
            assert (status, json.loads(body)) == (429, {"error": f"[request id: <id_unknown>] {TEXT}"})
            assert 900 < int(headers["retry-after"]) <= 1_000
            assert 900_000 < int(headers["retry-after-ms"]) <= 1_000_000
        assert over_http(daemon, ELSEWHERE)[0] == 200
    assert refusals(daemon)["127.0.0.1"] == (5, 0)
    assert 'appliance_http_responses_total{code="429"} 4\n' in daemon.get("/metrics").decode()


def test_a_request_that_the_front_end_passes_on_is_counted_once(start: Start, unix: str) -> None:
    """Whatever way requests take: known, with headers that only the edge understands, or on a connection of its own."""
    daemon = start(requests_per_s=0.001, burst=60)
    for odd in ({}, {"Expect": "nothing"}, {"Connection": "close"}) * 20:
        assert over_http(daemon, "127.0.0.1", **odd)[0] == 200
    assert over_http(daemon, "127.0.0.1")[0] == 429


def test_messages_of_a_stream_count(start: Start, unix: str) -> None:
    daemon = start(**THREE)
    with clients(daemon, unix) as (one, _, other):
        requests = [ask("m", str(number)) for number in range(5)]
        answers = list(one.stream(iter(requests)))
        errors = [answer for answer in answers if answer.error_message]
        assert sorted(answer.infer_response.id for answer in errors) == ["3", "4"]
        for answer in errors:
            assert answer.error_message == f"[request id: {answer.infer_response.id}] {TEXT}"
        with pytest.raises(Exception) as ended:  # noqa: PT011  gRPC's own class says nothing
            list(one.stream(iter(requests), metadata=(("triton_grpc_error", "true"),)))
        failure = failure_of(ended.value)
        assert (failure.code, failure.text) == ("RESOURCE_EXHAUSTED", f"[request id: 0] {TEXT}")
        assert int(failure.trailers["grpc-retry-pushback-ms"]) > 900_000
        assert [answer.error_message for answer in other.stream(iter(requests))] == [""] * 5


def test_what_is_in_flight_is_bounded_until_it_ends(start: Start, unix: str, tmp_path: Path) -> None:
    daemon = start(in_flight=2)
    with clients(daemon, unix) as (one, two, _), Stub(daemon.grpc) as three:
        for _ in range(2):
            with Gate(tmp_path / "gate") as gate:
                call = one.begin("ModelInfer", ask("gated", "unary"))
                gate.reached()
                sending = Sending(ask("gated", "streamed"))
                answers = two.stream(sending)
                daemon.until("both", lambda now: under_way(now, "gated") == 2)
                failure = three.refusal(ask("m", "bad"))
                assert failure.text.endswith("Exceeds the quota of '127.0.0.1': 2 requests in flight")
                assert failure.trailers["grpc-retry-pushback-ms"] == "1"
                assert over_http(daemon, "127.0.0.1")[0] == 429
                assert over_http(daemon, ELSEWHERE)[0] == 200
            call.result()
            assert not next(answers).error_message
            sending.end()
            assert list(answers) == []
            assert over_http(daemon, "127.0.0.1")[0] == 200


def under_way(document: Any, model: str) -> int:
    """Requests for it that are waiting or with a worker."""
    return sum(each["queued"] + each["running"] for each in document["models"] if each["name"] == model)


@pytest.mark.parametrize("streamed", [False, True])
def test_who_goes_away_gives_its_place_back(start: Start, unix: str, tmp_path: Path, streamed: bool) -> None:
    daemon = start(in_flight=1)
    with clients(daemon, unix) as (one, two, _), Gate(tmp_path / "gate") as gate:
        request = ask("gated", "a")
        call = one.stream(Sending(request)) if streamed else one.begin("ModelInfer", request)
        gate.reached()
        assert two.refusal(ask("m", "b")).code == "RESOURCE_EXHAUSTED"
        call.cancel()
        while over_http(daemon, "127.0.0.1")[0] != 200:
            pass


def test_quotas_are_read_again_at_sighup(start: Start, unix: str) -> None:
    daemon = start()
    before = daemon.config_path.read_text()
    with clients(daemon, unix) as (one, two, other):
        for _ in range(9):
            one.infer(ask("m", "free"))
        daemon.config_path.write_text(f"{before}[{HERE}]\nrequests_per_s = 0.001\nburst = 1\n")
        daemon.signal(signal.SIGHUP)
        daemon.wait_log("quotas were read again")
        one.infer(ask("m", "good"))
        for stub in (one, two):
            assert stub.refusal(ask("m", "bad")).code == "RESOURCE_EXHAUSTED"
        other.infer(ask("m", "good"))
        daemon.config_path.write_text(f"{before}[quotas]\nrequests_per_s = -1\n")
        daemon.signal(signal.SIGHUP)
        daemon.wait_log("quotas cannot be read again; the old ones stay")
        assert one.refusal(ask("m", "bad")).code == "RESOURCE_EXHAUSTED"
        daemon.config_path.write_text(before)
        daemon.signal(signal.SIGHUP)
        for _ in range(1000):
            if daemon.log().count("quotas were read again") == 2:
                break
            daemon.get("/v2/health/live")
        one.infer(ask("m", "free again"))


def test_the_default_holds_for_each_address_and_not_for_unix_sockets(
    serve: Serve, tmp_path: Path, front_end: Sections
) -> None:
    write_fake(tmp_path / "models", "m")
    daemon = serve(tmp_path / "models", {"quotas": THREE, **FAKE_SECTIONS})
    for source in ("127.0.0.1", ELSEWHERE):
        assert [over_http(daemon, source)[0] for _ in range(5)] == [200, 200, 200, 429, 429]
    assert refusals(daemon)["*"] == (4, 0)
