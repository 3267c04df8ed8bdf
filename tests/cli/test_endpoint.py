"""Where an appliance answers: one address for every command, by either of its ports, however it was said."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from appliance.cli import connection
from appliance.cli.connection import other_port
from appliance.cli.endpoint import ENVIRONMENT, endpoint_of, listening, parsed
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.main import main
from appliance.cli.tls import GRPC, HTTP
from tests.conftest import Serve
from tests.frontend.grpc.certificate_files import make_authority, make_named

COMMANDS = (
    ["infer", "mlp", "--zeros"],
    ["status", "mlp"],
    ["top", "--once", "--interval", "0.1"],
    ["model", "list", "mlp"],
)
NO_TLS = {"ca": None, "cert": None, "key": None, "server_name": ""}


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)


@pytest.mark.every_front_end
def test_either_port_does_for_every_command(
    serve: Serve,
    model_directory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon = serve(model_directory("mlp"))
    for command, address in product(COMMANDS, (daemon.grpc, daemon.http)):
        for said in (address, f"http://{address}"):
            assert main([*command, "--url", said]) == Exit.OK, capsys.readouterr().err
        monkeypatch.setenv(ENVIRONMENT, address)
        assert main(command) == Exit.OK, capsys.readouterr().err
        assert "mlp" in capsys.readouterr().out
    monkeypatch.setenv(ENVIRONMENT, "127.0.0.1:1")
    assert main(["status", "--url", daemon.grpc]) == Exit.OK
    assert main(["status"]) == Exit.UNREACHABLE
    assert f"127.0.0.1:1 ({ENVIRONMENT})" in capsys.readouterr().err


@pytest.mark.every_front_end
def test_the_configuration_says_it_with_tls(
    serve: Serve, model_directory: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = make_authority(tmp_path, "authority")
    server = make_named(tmp_path, "server", authority, "/CN=box", "DNS:*.site.example")
    tls = {"tls_certificate": str(server.certificate), "tls_key": str(server.key)}
    daemon = serve(model_directory("mlp"), {"grpc": tls, "http": tls})
    config = tmp_path / "box.toml"
    lines = []
    for section, address in (("grpc", daemon.grpc), ("http", daemon.http)):
        lines += [f"[{section}]", f'addresses = ["{address}"]', *(f'{key} = "{tls[key]}"' for key in tls)]
    config.write_text("\n".join(lines))
    trust = ["--ca", str(authority.certificate), "--server-name", "a.site.example"]
    for command in COMMANDS:
        assert main([*command, "--config", str(config)]) == Exit.OK, capsys.readouterr().err
        for address in (daemon.grpc, daemon.http):
            assert main([*command, "--url", address, *trust]) == Exit.OK, capsys.readouterr().err


def test_what_is_said_goes_before_what_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "a.toml"
    config.write_text('[grpc]\naddresses = ["0.0.0.0:3"]\n[http]\naddresses = ["unix:/x", "[::]:4"]\n')

    def found(protocol: str, **said: Any) -> str:
        return str(endpoint_of(Namespace(**{"url": None, "config": None, **NO_TLS, **said}), protocol))

    assert (found(GRPC), found(HTTP)) == ("127.0.0.1:8001", "127.0.0.1:8000")
    assert found(GRPC, config=config) == f"127.0.0.1:3 ({config})"
    assert found(HTTP, config=config) == f"[::1]:4 ({config})"
    monkeypatch.setenv(ENVIRONMENT, "box:2")
    assert found(GRPC, config=config) == f"box:2 ({ENVIRONMENT})"
    assert found(GRPC, config=config, url="box:1") == "box:1"


@pytest.mark.parametrize(
    ("addresses", "url"),
    [
        ([], ""),
        (["systemd:NAME", "127.0.0.1:0"], ""),
        (["systemd:NAME", "unix:/x", "127.0.0.1:0"], "unix:/x"),
        (["[::]:80"], "[::1]:80"),
        (["unix:/x", "box:8080", "0.0.0.0:1"], "box:8080"),
    ],
)
def test_where_an_appliance_answers_on_this_machine(addresses: list[str], url: str) -> None:
    assert listening(addresses) == url


@pytest.mark.parametrize(
    "said",
    [
        "", "127.0.0.1:80x", "ftp://box:1", "unix:", "http://", ":8000", "box:70000", "a b", "a\nb:1", "x\x1b",
        "http://a\tb",
    ],
)  # fmt: skip
def test_what_is_no_address_is_told_with_what_is(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["status"], ["infer", "mlp", "--zeros"]):
        assert main([*command, "--url", said]) == Exit.USAGE
        told = capsys.readouterr().err
        assert f"'{printable(said)}' is not an address" in told
        assert told.count("\n") == 1
        assert "give HOST:PORT, http(s)://HOST:PORT or unix:PATH" in told


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Have an appliance tell these as its addresses for HTTP."""

    def tell(urls: object) -> None:
        monkeypatch.setattr(connection, "_told_over_grpc", lambda endpoint: {"http": urls})

    return tell


@pytest.mark.parametrize(
    ("asked", "told", "found"),
    [
        ("box:8001", ["http://0.0.0.0:80"], "box:80"),
        ("[::5]:8001", ["http://[::]:80"], "[::5]:80"),
        ("127.0.0.1:8001", ["unix:/none", "http://127.0.0.1:80"], "http://127.0.0.1:80"),
        ("unix:/x", ["http://0.0.0.0:80"], "127.0.0.1:80"),
        ("box:8001", ["http://10.0.0.5:80"], "http://10.0.0.5:80"),
    ],
)
def test_the_other_port_is_the_one_that_can_be_reached(
    telling: Callable[[object], None], asked: str, told: list[str], found: str
) -> None:
    telling(told)
    assert str(other_port(parsed(asked, GRPC, None), HTTP)) == found


@pytest.mark.parametrize(
    ("asked", "told", "said"),
    [
        ("box:8001", ["http://127.0.0.1:80"], "which is not this machine"),
        ("127.0.0.1:8001", [], "speaks HTTP nowhere"),
        ("127.0.0.1:8001", None, "but not in HTTP"),
        ("127.0.0.1:8001", [5], "but not in HTTP"),
    ],
)
def test_another_port_that_cannot_be_reached_is_told(
    telling: Callable[[object], None], asked: str, told: object, said: str
) -> None:
    telling(told)
    with pytest.raises(CommandFailed, match=said) as caught:
        other_port(parsed(asked, GRPC, None), HTTP)
    assert caught.value.status == Exit.UNREACHABLE
