"""What the [quotas] section refuses, all of it at once, and how it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance import configuration
from appliance.cli.config import as_toml
from appliance.config.quotas import ClientQuota
from appliance.domain.errors import ConfigInvalid
from tests.config.texts import parse

EVERYTHING = """
models = "MODELS"
[quotas]
requests_per_s = 10
in_flight = -1
client = 3
[quotas.clients."10.0.0.0/8"]
[quotas.clients."*.*.example"]
in_flight = 2.5
[quotas.clients."::1"]
burst = 4
[quotas.clients."2001:db8::1"]
[quotas.clients."2001:db8::2"]
"""


def problems_of(text: str, folder: Path) -> list[str]:
    path = folder / "config.toml"
    path.write_text(text.replace("MODELS", str(folder)))
    with pytest.raises(ConfigInvalid) as refused:
        configuration.load(path)
    return [f"{problem.key}: {problem.text}" for problem in refused.value.problems]


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    told = "\n".join(problems_of(EVERYTHING, tmp_path))
    for expected in (
        "quotas.client: is not a known key; did you mean 'clients'?",
        "quotas.in_flight: must be at least 0, got -1",
        "in_flight: must be an integer, got 2.5",
        "burst bounds what comes at once of requests_per_s",
    ):
        assert expected in told


def test_names_that_nobody_can_have_are_refused(tmp_path: Path) -> None:
    names = ("10.0.0.0/8", "*.*.example", "", "2001:db8::1", "2001:db8::2")
    text = "".join(f'[quotas.clients."{name}"]\nin_flight = 1\n' for name in names)
    told = "\n".join(problems_of(f'models = "MODELS"\n{text}', tmp_path))
    for expected in (
        "'10.0.0.0/8' is a network",
        "'*.*.example': a wildcard is only '*.' at the front",
        "'' is no name",
        "'2001:db8::2' and '2001:db8::1' are one client",
    ):
        assert expected in told


def test_names_need_certificates(tmp_path: Path) -> None:
    named = "".join(f"[quotas.clients.{name}]\nin_flight = 1\n" for name in ('"camera.site.example"', "unix"))
    (told,) = problems_of(f'models = "MODELS"\n{named}', tmp_path)
    assert told.startswith(
        "quotas.clients.camera.site.example: is no address, and only certificates tell names"
    )


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        f'models = "{tmp_path}"\n[quotas]\nin_flight = 9\n'
        '[quotas.clients."10.0.0.1"]\nrequests_per_s = 30\nburst = 60\n[quotas.clients.unix]\nin_flight = 2\n'
    )
    config = configuration.load(path)
    assert config.quotas.clients["10.0.0.1"] == ClientQuota(requests_per_s=30.0, burst=60)
    shown = as_toml(config)
    assert parse(shown) == config


def test_what_is_wrong_elsewhere_keeps_nobody_from_new_quotas(tmp_path: Path) -> None:
    path, nowhere = tmp_path / "config.toml", '[grpc]\ntls_certificate = "nowhere"\ntls_key = "nowhere"\n'
    path.write_text(f'models = "{tmp_path}"\n[quotas]\nin_flight = 9\n{nowhere}')
    with pytest.raises(ConfigInvalid):
        configuration.load(path)
    assert configuration.reload(path, {}, "quotas").quotas.in_flight == 9


@pytest.mark.parametrize("quotas", ["in_flight = -1", "in_flight = ", "flight = 1"])
def test_quotas_that_are_wrong_are_not_taken_over(tmp_path: Path, quotas: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'models = "{tmp_path}"\n[quotas]\n{quotas}\n')
    with pytest.raises(ConfigInvalid):
        configuration.reload(path, {}, "quotas")
