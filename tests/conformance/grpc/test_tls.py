"""TLS of the gRPC port: certificates that are shown, read again, and asked of clients."""

from __future__ import annotations

import json
import signal
import ssl
from pathlib import Path

import grpc
import pytest

from appliance.config.grpc import GrpcConfig
from appliance.frontend.listening.certificates import bearer_of
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub, failure_of
from tests.conformance.grpc.tls import infer, mutual_tls, over_tls
from tests.conftest import Serve
from tests.faults.fake_models import write_fake
from tests.frontend.grpc.certificate_files import Pair, make_authority, make_signed


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory with one model, ``m``."""
    write_fake(tmp_path / "models", "m")
    return tmp_path / "models"


@pytest.fixture
def authority(tmp_path: Path) -> Pair:
    return make_authority(tmp_path, "authority")


def _reload(daemon: ApplianceProcess) -> None:
    daemon.messages.clear()
    daemon.signal(signal.SIGHUP)
    daemon.wait_for("RELOADING=1")
    daemon.wait_for("READY=1")


def test_certificates_are_shown_and_read_again(
    serve: Serve, models: Path, tmp_path: Path, authority: Pair
) -> None:
    server = make_signed(tmp_path, "server", authority)
    daemon = serve(models, {"grpc": {"tls_certificate": str(server.certificate), "tls_key": str(server.key)}})
    old = over_tls(daemon.grpc, authority)
    assert infer(old)
    successor = make_authority(tmp_path, "successor")
    renewed = make_signed(tmp_path, "renewed", successor)
    server.certificate.write_bytes(renewed.certificate.read_bytes())
    server.key.write_bytes(renewed.key.read_bytes())
    _reload(daemon)
    daemon.wait_log("certificates were read again")
    (line,) = [line for line in daemon.log().splitlines() if "read again" in line]
    bearer = bearer_of(GrpcConfig(tls_certificate=str(server.certificate), tls_key=str(server.key)))
    assert bearer is not None
    assert json.loads(line)["until"] == bearer.until
    assert daemon.status()["certificates"] == {"grpc": ssl.cert_time_to_seconds(bearer.until)}
    with over_tls(daemon.grpc, successor) as channel:
        assert infer(channel)
    assert infer(old), "a connection outlives the certificate that it began with"
    old.close()
    server.key.write_text("junk")
    _reload(daemon)
    daemon.wait_log("certificates cannot be used; the old ones stay")
    with over_tls(daemon.grpc, successor) as channel:
        assert infer(channel)


def test_clients_show_certificates_when_they_must(
    serve: Serve, models: Path, tmp_path: Path, authority: Pair
) -> None:
    path = f"unix:{tmp_path}/s"
    settings = {**mutual_tls(tmp_path, authority), "addresses": ["127.0.0.1:0", path]}
    daemon = serve(models, {"grpc": settings})
    with over_tls(daemon.grpc, authority, make_signed(tmp_path, "client", authority)) as channel:
        assert infer(channel)
    stranger = make_signed(tmp_path, "stranger", make_authority(tmp_path, "other"))
    for own in (None, stranger):
        with over_tls(daemon.grpc, authority, own) as channel, pytest.raises(grpc.RpcError) as refused:
            infer(channel)
        assert failure_of(refused.value).code == "UNAVAILABLE"
    with grpc.insecure_channel(daemon.grpc) as channel, pytest.raises(grpc.RpcError):
        infer(channel)
    with Stub(path) as stub:
        assert stub.call("ServerLive"), "Unix sockets are in the clear"


def test_the_authorities_of_clients_are_read_again(
    serve: Serve, models: Path, tmp_path: Path, authority: Pair
) -> None:
    trusted, successor = (make_authority(tmp_path, name) for name in ("trusted", "successor"))
    before, after = (make_signed(tmp_path, f"of {each.key.stem}", each) for each in (trusted, successor))
    settings = {**mutual_tls(tmp_path, authority), "tls_client_ca": str(trusted.certificate)}
    daemon = serve(models, {"grpc": settings})
    with over_tls(daemon.grpc, authority, before) as channel:
        assert infer(channel)
    trusted.certificate.write_bytes(successor.certificate.read_bytes())
    _reload(daemon)
    with over_tls(daemon.grpc, authority, after) as channel:
        assert infer(channel)
    with over_tls(daemon.grpc, authority, before) as channel, pytest.raises(grpc.RpcError):
        infer(channel)
