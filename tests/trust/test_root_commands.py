"""'appliance fleet root' as holders of keys use it, one after another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.controller.online_keys import OnlineKeys
from appliance.controller.signing import sign_document
from appliance.sync.trust import begin, examine, keys_of_packages
from tests.trust.repository import DEVICE, NONE, NOW, polled, state


def fleet(*words: object) -> int:
    return main(["fleet", "root", *map(str, words)])


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Three holders' keys, a maker's, and the controller's."""
    for name in ("ann", "bob", "cid", "maker"):
        assert main(["model", "keygen", str(tmp_path / name)]) == 0
    assert fleet("keys", tmp_path / "online") == 0
    capsys.readouterr()
    return tmp_path


def first(desk: Path) -> Path:
    """The first root, not signed."""
    root = desk / "root-1.json"
    keys = [word for name in ("ann", "bob") for word in ("--key", desk / f"{name}.pub")]
    online = desk / "online"
    assert fleet("make", *keys, "--threshold", 2, "--online", online, "-o", desk) == 0
    return root


def test_a_fleet_begins_and_changes_hands(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = first(desk)
    assert "root 1, to be signed by 2 of 2" in capsys.readouterr().out
    assert fleet("show", one) == 1
    assert "signatures are missing: 2 of its own keys" in capsys.readouterr().out
    assert fleet("sign", one, "--key", desk / "ann") == 0
    assert "1 of its own keys" in capsys.readouterr().out
    assert fleet("sign", one, "--key", desk / "bob") == 0
    assert "all signatures are there" in capsys.readouterr().out
    assert fleet("show", one) == 0
    trusted = begin(one.read_bytes())

    two = desk / "root-2.json"
    changes = ["--key", desk / "bob.pub", "--key", desk / "cid.pub", "--package-key", desk / "maker.pub"]
    assert fleet("make", "--previous", one, *changes, "-o", two) == 0
    assert fleet("sign", two, "--previous", one, "--key", desk / "bob", "--key", desk / "cid") == 0
    assert "signatures are missing: 1 of the keys of the root before" in capsys.readouterr().out
    assert fleet("sign", two, "--previous", one, "--key", desk / "ann") == 0
    capsys.readouterr()
    assert fleet("show", two, "--previous", one, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["complete"], said["threshold"], len(said["packages"])) == (2, True, 2, 1)

    keys = OnlineKeys.open(desk / "online")
    metadata = sign_document(keys, state(1), NONE, NOW)
    trusted, refused = examine(trusted, polled(metadata, [two.read_bytes()]), DEVICE)
    assert (refused, trusted.root_version, len(keys_of_packages(trusted))) == (None, 2, 1)


def test_who_has_no_say_cannot_sign(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = first(desk)
    before = one.read_bytes()
    assert fleet("sign", one, "--key", desk / "cid") == 1
    assert "has no say in this root" in capsys.readouterr().err
    assert one.read_bytes() == before


def test_what_is_missing_or_there_already_is_told(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("make", "--key", desk / "ann.pub") == 2
    assert "--threshold and --online" in capsys.readouterr().err
    assert fleet("keys", desk / "online") == 1
    assert "already has a key" in capsys.readouterr().err
    one = first(desk)
    assert (
        fleet("make", "--key", desk / "ann.pub", "--threshold", 1, "--online", desk / "online", "-o", one)
        == 2
    )
    assert "--force" in capsys.readouterr().err
    assert fleet("show", desk / "ann") == 1
    assert "no root" in capsys.readouterr().err
    assert fleet("make", "--key", desk / "ann.pub", "--threshold", 1, "--online", desk) == 2
    assert "targets.pem.pub" in capsys.readouterr().err
