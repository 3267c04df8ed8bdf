"""Which front end serves, and what the Python one is asked for in vain."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from appliance.config.listening import FrontEndKind
from appliance.config.loading import load
from appliance.config.tree import ApplianceConfig
from appliance.domain.errors import ConfigInvalid, OperatorError
from appliance.frontend import choice
from appliance.frontend.choice import NATIVE_ONLY, chosen, front_end_problems, passed_over, region_problems
from tests.appliance_process import ApplianceProcess
from tests.config.texts import parse
from tests.fronts import Sections

AUTO, NATIVE, PYTHON = FrontEndKind.AUTO, FrontEndKind.NATIVE, FrontEndKind.PYTHON
ASKED = """
[grpc]
addresses = ["systemd", "127.0.0.1:0"]
max_connections = 9
keepalive_s = 9
tls_certificate = "c"
tls_key = "k"
tls_client_ca = "a"
tls_client_names = ["camera"]
[http]
addresses = ["systemd:http"]
max_connections = 9
max_connections_per_peer = 9
[quotas]
in_flight = 3
[quotas.clients.unix]
in_flight = 3
[engine]
lease_limit = 8
"""
KEYS = {
    "grpc.addresses",
    "grpc.max_connections",
    "grpc.tls_client_names",
    "http.addresses",
    "http.max_connections_per_peer",
    "quotas.in_flight",
    "quotas.clients",
    "engine.lease_limit",
}


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the native front end were not installed."""
    monkeypatch.setattr(choice, "native_problem", lambda: "it is not installed; 'make native' builds it")


@pytest.fixture
def with_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the native front end were there."""
    monkeypatch.setattr(choice, "native_problem", lambda: "")


def config_of(kind: str, text: str = ASKED) -> ApplianceConfig:
    return parse(f'[frontend]\nkind = "{kind}"\n{text}')


@pytest.mark.usefixtures("without_native")
def test_without_the_native_front_end() -> None:
    assert chosen(AUTO) is chosen(PYTHON) is PYTHON
    with pytest.raises(
        OperatorError, match="the native front end cannot be used: it is not installed; 'make native'"
    ):
        chosen(NATIVE)
    assert dict(front_end_problems(config_of("native"))).keys() == {"frontend.kind"}
    for kind, way_out in (
        ("auto", "'make native' builds it; install it, or remove"),
        ("python", "to native, or"),
    ):
        told = dict(front_end_problems(config_of(kind)))
        assert told.keys() == KEYS
        assert all("only the native front end" in text and way_out in text for text in told.values())


@pytest.mark.usefixtures("with_native")
def test_with_the_native_front_end() -> None:
    assert chosen(AUTO) is chosen(NATIVE) is NATIVE
    assert chosen(PYTHON) is PYTHON
    assert not list(front_end_problems(config_of("auto")))
    assert not list(front_end_problems(config_of("native")))
    assert dict(front_end_problems(config_of("python"))).keys() == KEYS


@pytest.mark.usefixtures("without_native")
@pytest.mark.parametrize("kind", ["auto", "python"])
def test_the_defaults_and_what_asks_for_nothing_are_no_problem(kind: str) -> None:
    assert not list(front_end_problems(config_of(kind, "")))
    assert not list(front_end_problems(config_of(kind, "[engine]\nlease_limit = 0")))


@pytest.mark.usefixtures("with_native")
@pytest.mark.parametrize(
    ("kind", "addresses", "reached"),
    [
        ("native", "", False),
        ("native", '[grpc]\naddresses = ["unix:/run/a"]', True),
        ("native", '[grpc]\naddresses = ["systemd:grpc"]', True),
        ("python", '[grpc]\naddresses = ["unix:/run/a"]', False),
        ("python", '[http]\naddresses = ["127.0.0.1:0", "unix:/run/a"]', True),
    ],
)
def test_users_of_shared_memory_can_be_told_somewhere(kind: str, addresses: str, reached: bool) -> None:
    assert not list(region_problems(config_of(kind, "")))
    told = dict(region_problems(config_of(kind, f'{addresses}\n[shared_memory]\nusers = ["root"]')))
    assert ("add an address unix:/path" in told.get("shared_memory.users", "")) is not reached


def test_every_setting_that_only_the_native_front_end_keeps_is_one() -> None:
    for section, keys in NATIVE_ONLY.items():
        assert keys <= {field.name for field in fields(getattr(ApplianceConfig(), section))}, section


def test_an_installed_front_end_that_is_passed_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem, installed, told in (
        ("it is old", True, "it is old"),
        ("it is not there", False, ""),
        ("", True, ""),
    ):
        monkeypatch.setattr(choice, "native_problem", lambda problem=problem: problem)
        monkeypatch.setattr(choice, "find_spec", lambda _, installed=installed: installed or None)
        assert passed_over(AUTO) == told
        assert passed_over(PYTHON) == ""


@pytest.mark.parametrize(("section", "key"), [("grpc", "door"), ("http", "native")])
def test_settings_that_chose_before_name_the_one_that_does(tmp_path: Path, section: str, key: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[{section}]\n{key} = 'native'\n")
    with pytest.raises(ConfigInvalid, match=rf"{section}\.{key}.*frontend\.kind chooses"):
        load(file)


def test_a_daemon_that_cannot_keep_a_setting_does_not_start(tmp_path: Path) -> None:
    sections: Sections = {"frontend": {"kind": "python"}, "quotas": {"in_flight": 1}}
    with ApplianceProcess(tmp_path, sections) as process:
        assert process.process.wait(30) == 2
        assert "quotas.in_flight: only the native front end keeps it; set frontend.kind to" in process.log()
