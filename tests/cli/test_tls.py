"""``appliance infer`` at a port that speaks TLS, and the line to copy that names what it takes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.cli.serve import tls_words
from appliance.config.grpc import GrpcConfig
from tests.conftest import Serve
from tests.frontend.grpc.certificate_files import Pair, make_authority, make_named, make_signed

ASK = ("infer", "mlp", "--zeros", "--url")


@pytest.fixture
def authority(tmp_path: Path) -> Pair:
    return make_authority(tmp_path, "authority")


def over_tls(server: Pair, **settings: str) -> dict[str, dict[str, str]]:
    return {"grpc": {"tls_certificate": str(server.certificate), "tls_key": str(server.key), **settings}}


@pytest.mark.every_front_end
def test_the_line_to_copy_works_over_tls(
    serve: Serve, model_directory: Any, tmp_path: Path, authority: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make_named(tmp_path, "server", authority, "/CN=box", "DNS:*.site.example")
    daemon = serve(model_directory("mlp"), over_tls(server))
    daemon.wait_log("Try:")
    (line,) = [line for line in daemon.log().splitlines() if line.startswith("Try:")]
    assert main(shlex.split(line.removeprefix("Try:"))[1:]) == Exit.OK, capsys.readouterr().err
    assert "mlp version 1" in capsys.readouterr().out
    assert main([*ASK, daemon.grpc]) == Exit.UNREACHABLE
    assert "where that speaks TLS (grpc.tls_certificate), give --ca FILE" in capsys.readouterr().err
    assert main([*ASK, daemon.grpc, "--ca", str(authority.certificate)]) == Exit.UNREACHABLE
    assert "TLS with it failed: IP address mismatch" in capsys.readouterr().err
    stranger = make_authority(tmp_path, "stranger")
    assert main([*ASK, daemon.grpc, "--ca", str(stranger.certificate)]) == Exit.UNREACHABLE
    told = capsys.readouterr().err
    assert "TLS with it failed: unable to get local issuer certificate" in told
    assert told.count("\n") == 1


@pytest.mark.every_front_end
def test_a_certificate_is_shown_to_a_server_that_wants_one(
    serve: Serve, model_directory: Any, tmp_path: Path, authority: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    server, own = make_signed(tmp_path, "server", authority), make_signed(tmp_path, "own", authority)
    daemon = serve(model_directory("mlp"), over_tls(server, tls_client_ca=str(authority.certificate)))
    words = [*ASK, daemon.grpc, "--ca", str(authority.certificate)]
    assert main([*words, "--cert", str(own.certificate), "--key", str(own.key)]) == Exit.OK
    capsys.readouterr()
    assert main(words) == Exit.UNREACHABLE
    told = capsys.readouterr().err
    assert "certificate required" in told or "clients must show a certificate, give --cert" in told


@pytest.mark.every_front_end
def test_status_and_top_over_tls(
    serve: Serve, model_directory: Any, tmp_path: Path, authority: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make_named(tmp_path, "server", authority, "/CN=box", "DNS:box.site.example")
    own = make_signed(tmp_path, "own", authority)
    settings = {"tls_certificate": str(server.certificate), "tls_key": str(server.key)}
    settings |= {"tls_client_ca": str(authority.certificate)}
    daemon = serve(model_directory("mlp"), {"http": settings})
    trust = ["--ca", str(authority.certificate), "--server-name", "box.site.example"]
    shown = ["--cert", str(own.certificate), "--key", str(own.key)]
    for url in (daemon.http, f"http://{daemon.http}", f"https://{daemon.http}"):
        assert main(["status", "--url", url, *trust, *shown]) == Exit.OK
        assert "mlp" in capsys.readouterr().out
    assert (
        main(["top", "--once", "--json", "--interval", "0.1", "--url", daemon.http, *trust, *shown])
        == Exit.OK
    )
    assert main(["model", "list", "--url", daemon.http, *trust, *shown]) == Exit.OK
    assert "mlp" in capsys.readouterr().out
    for words, told in (
        ([], "speaks TLS"),
        (["--ca", str(own.certificate)], "TLS with it failed: "),
        ([*trust[:2], *shown], "TLS with it failed: IP address mismatch"),
        (
            trust,
            "--cert and --key",
        ),  # "certificate required", or the connection's end where that overtakes it
    ):
        assert main(["status", "--url", daemon.http, *words]) in (Exit.REFUSED, Exit.UNREACHABLE)
        assert told in capsys.readouterr().err, words
    assert main(["status", "--url", daemon.http, "--cert", "a"]) == Exit.USAGE


def test_what_the_line_to_copy_says_of_tls(tmp_path: Path, authority: Pair) -> None:
    server = make_signed(tmp_path, "server", authority)
    config = GrpcConfig(tls_certificate=str(server.certificate), tls_key=str(server.key))
    assert tls_words(GrpcConfig(), "127.0.0.1:1") == ""
    assert tls_words(config, "unix:/run/appliance") == ""
    assert tls_words(config, "127.0.0.1:1") == f" --ca {server.certificate}"
    assert tls_words(config, "0.0.0.0:1") == f" --ca {server.certificate} --server-name localhost"
    asking = GrpcConfig(
        tls_certificate=str(server.certificate),
        tls_key=str(server.key),
        tls_client_ca=str(server.certificate),
    )
    assert tls_words(asking, "[::1]:1").endswith("--server-name localhost --cert FILE --key FILE")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--cert", "a"), "--cert and --key go together"),
        (("--cert", "a", "--key", "b"), "which takes --ca"),
        (("--server-name", "a"), "which takes --ca"),
        (("--ca", "none.pem"), "'none.pem' cannot be read: No such file"),
        (("--ca", "junk.pem"), "'junk.pem' cannot be used as --ca"),
        (("--ca", "binary"), "'binary' cannot be used as --ca"),
        (("--ca", "authority.pem", "--cert", "junk.pem", "--key", "authority.key"), "belong together"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path,
    authority: Pair,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("junk.pem").write_text("junk")
    Path("binary").write_bytes(bytes(range(256)))
    assert main([*ASK, "127.0.0.1:1", *words]) == Exit.USAGE
    assert text in capsys.readouterr().err
