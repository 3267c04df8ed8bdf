"""The settings of ports: limits, certificates, and what is told when they do not fit."""

from __future__ import annotations

import re
import ssl
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from appliance.config import loading
from appliance.config.grpc import GrpcConfig
from appliance.config.listening import client_name_problems, inherits
from appliance.configuration import load
from appliance.domain.errors import ConfigInvalid, OperatorError
from appliance.frontend.listening.certificates import bearer_of, certificate_problems, read_certificates
from appliance.frontend.native.package import CONSTANTS, PACKAGE, SETTINGS, limits_of, native_problem
from tests.architecture.sources import ROOT
from tests.frontend.grpc.certificate_files import make_authority, make_named, make_signed

CONTRACT = ROOT / "native" / "python" / "edge_appliance_native" / "__init__.pyi"


def test_every_limit_of_the_contract_has_a_setting() -> None:
    text = CONTRACT.read_text().partition("LIMITS: Final")[2]
    assert set(re.findall(r"``(\w+_\w+|connections)``", text)) - {"RST_STREAM"} == set(
        limits_of(GrpcConfig())
    )


def test_every_limit_that_clients_can_run_into_is_counted_by_its_setting() -> None:
    """``bytes_in_flight`` counts what there is now, and what was refused under other names."""
    counted = {name.removesuffix("_refused") for name in {**SETTINGS, **CONSTANTS}}
    counted -= {"connection_bytes", "answer_bytes"}
    assert counted == set(limits_of(GrpcConfig())) - {"keepalive_ms"}
    settings = {field.name for field in fields(GrpcConfig)}
    bounds = {setting.removesuffix("_connection").removesuffix("_answers") for setting in SETTINGS.values()}
    assert bounds <= settings
    assert not settings & set(CONSTANTS.values())


@pytest.mark.parametrize("name", ["camera", "*.site.example", "spiffe://site/camera", "gateway 7", "Süd"])
def test_names_of_clients(name: str) -> None:
    assert list(client_name_problems([name])) == []


@pytest.mark.parametrize(
    "name",
    ["", "*", "*.", "a*.example", "*.*.example", "**", "a.*.example", "*.spiffe://x", "a\tb", "x" * 256],
)
def test_what_is_no_name_of_a_client(name: str) -> None:
    (problem,) = client_name_problems([name, "camera"])
    assert "name" in problem


def test_limits_are_whole_and_in_the_front_ends_units() -> None:
    config = GrpcConfig(
        keepalive_s=1.5, client_ping_interval_s=3, max_connection_age_s=0, body_stall_s=0.0101
    )
    limits = limits_of(config)
    assert limits["keepalive_ms"] == 1500
    assert limits["pings_per_connection"] == 6
    assert limits["connection_age_ms"] == 0
    assert limits["idle_body_ms"] == 11
    assert all(type(limit) is int for limit in limits.values())


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("systemd", True),
        ("systemd:grpc", True),
        ("systemd:8001", False),
        ("systemdx:1", False),
        ("unix:/s", False),
    ],
)
def test_what_stands_for_inherited_sockets(address: str, is_one: bool) -> None:
    assert inherits(address) is is_one


def test_a_package_that_is_not_there_or_does_not_fit_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, f"{PACKAGE}._native", raising=False)
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    assert "make native" in native_problem()
    monkeypatch.delitem(sys.modules, PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / PACKAGE).mkdir()
    module = tmp_path / PACKAGE / "__init__.py"
    module.write_text("import edge_appliance_native._native")
    assert native_problem().startswith("it does not load (No module named")
    module.write_text("raise ImportError('GLIBC_9.9 not found')")
    assert native_problem().startswith("it does not load (GLIBC_9.9 not found)")
    module.write_text("LIMITS = ('message_bytes',)\n__version__ = '0.0.1'")
    assert native_problem().startswith("the installed one, 0.0.1, is not of this version")
    monkeypatch.delitem(sys.modules, PACKAGE)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("tls_certificate = 'a'", "tls_certificate and tls_key go together"),
        ("tls_client_ca = 'a'", "tls_client_ca asks clients for certificates"),
        ("tls_client_names = ['a']", "for which tls_client_ca asks"),
        (
            "tls_certificate = 'a'\ntls_key = 'b'\naddresses = ['unix:/run/a', 'unix:/run/b']",
            "all addresses are Unix sockets",
        ),
        ("max_messages_bytes = 2048", "max_messages_bytes is 2048, less than one message"),
        ("door = 'grpcio'", "frontend.kind chooses one front end for gRPC and HTTP"),
    ],
)
def test_what_does_not_go_together_is_told(tmp_path: Path, section: str, words: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[grpc]\n{section}\n")
    with pytest.raises(ConfigInvalid, match=words) as told:
        loading.load(file)
    assert all(problem.key.startswith("grpc") for problem in told.value.problems)


def test_all_that_does_not_go_together_is_told_at_once_of_both_ports(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    wrong = "tls_key = 'a'\ntls_client_ca = 'b'\n"
    file.write_text(f"[grpc]\n{wrong}max_messages_bytes = 2048\n[http]\n{wrong}tls_client_names = ['a']\n")
    with pytest.raises(ConfigInvalid) as told:
        loading.load(file)
    texts = {problem.key: problem.text for problem in told.value.problems}
    for section in ("grpc", "http"):
        assert "go together" in texts[section]
        assert "asks clients for certificates" in texts[section]
    assert "less than one message" in texts["grpc"]


def test_whom_a_certificate_names_and_until_when(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    for name, subject, alternative, names in (
        ("a", "/CN=box", "DNS:*.site.example,IP:127.0.0.1", ("*.site.example", "127.0.0.1")),
        ("b", "/CN=box", "", ("box",)),
        ("c", "/O=site", "", ()),
    ):
        pair = make_named(tmp_path, name, authority, subject, alternative)
        bearer = bearer_of(GrpcConfig(tls_certificate=str(pair.certificate), tls_key=str(pair.key)))
        assert bearer is not None
        assert bearer.names == names
        assert 86_400 < ssl.cert_time_to_seconds(bearer.until) - time.time() < 3 * 86_400
    mixed = GrpcConfig(tls_certificate=str(pair.certificate), tls_key=str(authority.key))
    assert bearer_of(mixed) is None


def test_certificates_are_read_and_checked(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    server = make_signed(tmp_path, "server", authority)
    good = GrpcConfig(
        tls_certificate=str(server.certificate),
        tls_key=str(server.key),
        tls_client_ca=str(authority.certificate),
    )
    assert not list(certificate_problems(good))
    certificates = read_certificates(good, "grpc")
    assert certificates is not None
    assert certificates.client_ca == authority.certificate.read_bytes()
    assert read_certificates(GrpcConfig(), "grpc") is None
    junk = tmp_path / "junk"
    junk.write_text("junk")
    wrong = {
        "tls_certificate": replace(good, tls_certificate=str(junk)),
        "tls_key": replace(good, tls_key=str(tmp_path / "none")),
        "tls_client_ca": replace(good, tls_client_ca=str(junk)),
    }
    for key, config in wrong.items():
        assert [found for found, _ in certificate_problems(config)] == [key]
        with pytest.raises(OperatorError, match=f"grpc.{key}: "):
            read_certificates(config, "grpc")
    other = replace(good, tls_key=str(authority.key))
    assert "key values mismatch" in dict(certificate_problems(other))["tls_certificate"]


def test_the_configuration_is_asked_for_the_certificates_of_both_ports(tmp_path: Path) -> None:
    file, keys = tmp_path / "c.toml", ("tls_certificate", "tls_key", "tls_client_ca")
    wrong = "".join(f"{key} = '/none/{key}'\n" for key in keys)
    file.write_text(f"models = '{tmp_path}'\n[grpc]\n{wrong}[http]\n{wrong}")
    with pytest.raises(ConfigInvalid) as told:
        load(file)
    found = {problem.key for problem in told.value.problems}
    assert {f"{section}.{key}" for section in ("grpc", "http") for key in keys} <= found
