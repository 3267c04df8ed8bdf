"""``appliance config`` and the configuration tree."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from appliance.cli.config import as_plain, as_toml
from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.config import loading
from appliance.config.tree import ApplianceConfig
from appliance.domain.errors import ConfigInvalid
from tests.config.texts import parse


def test_the_listing_reads_back_as_the_same_tree() -> None:
    assert parse(as_toml(ApplianceConfig())) == ApplianceConfig()


def test_a_changed_tree_reads_back_too() -> None:
    text = 'models = "m\\u00fc\\"x"\n[log]\nformat = "json"\n[arena]\nclasses = [[4096, 2]]\n'
    config = parse(text)
    assert config.models == 'm\u00fc"x'
    assert config.arena.classes == ((4096, 2),)
    assert parse(as_toml(config)) == config


def test_check_accepts_what_show_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["config", "show"]) == Exit.OK
    file = tmp_path / "shown.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(file)]) == Exit.OK


def test_the_file_is_named_alone_or_as_other_commands_take_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.toml"
    file.write_text("[engine]\nslow_request_ms = 7\n")
    for action, says in (("show", "slow_request_ms = 7"), ("check", "no problems")):
        for words in ([str(file)], ["--config", str(file)]):
            assert main(["config", action, *words]) == Exit.OK
            assert says in capsys.readouterr().out
        assert main(["config", action, str(file), "--config", str(file)]) == Exit.USAGE
        assert "FILE is given twice" in capsys.readouterr().err
    assert main(["config", "check"]) == Exit.USAGE
    assert "there is nothing to check" in capsys.readouterr().err


def test_check_lists_every_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "bad.toml"
    file.write_text('modles = "x"\n[grpc]\nmax_message_bytes = "big"\n[log]\nlevel = "loud"\n')
    assert main(["config", "check", str(file)]) == Exit.REFUSED
    shown = capsys.readouterr().out
    for word in ("3 problems", "modles", "models", "grpc.max_message_bytes", "log.level"):
        assert word in shown


def test_show_json_is_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[engine]\nslow_request_ms = 7\n")
    assert main(["config", "show", str(file), "--json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["engine"]["slow_request_ms"] == 7
    assert shown == as_plain(loading.load(file))


@pytest.mark.parametrize("content", [b"[grpc\n", b"a = \n", b"\xff\xfe"])
def test_what_is_not_toml_is_one_problem(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigInvalid) as caught:
        loading.load(file)
    assert len(caught.value.problems) == 1
    assert str(file) in str(caught.value)


def test_a_setting_that_is_called_otherwise_now_says_how(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[engine]\ngrant_limit = 1\n")
    with pytest.raises(ConfigInvalid) as caught:
        loading.load(file)
    assert [(each.key, each.text) for each in caught.value.problems] == [
        ("engine.grant_limit", "is called 'engine.lease_limit' now")
    ]


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(tmp_path / "none.toml")]) == Exit.USAGE
    assert "cannot be read" in capsys.readouterr().err


def test_every_key_says_what_it_is_for() -> None:
    missing = []
    for section in fields(ApplianceConfig):
        value = getattr(ApplianceConfig(), section.name)
        keys = fields(value) if is_dataclass(value) else ()
        missing += [f"{section.name}.{key.name}" for key in keys if not key.metadata.get("help")]
        assert section.metadata.get("help"), section.name
    assert not missing
