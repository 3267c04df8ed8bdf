"""Modules and inventory, by a real Ansible, on a real store and with a real controller."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.collection import INSTALLED, NOT_INSTALLED, ROOT, Ansible

APPLIANCE = str(Path(sys.executable).parent / "appliance")

pytestmark = [pytest.mark.skipif(not INSTALLED, reason=NOT_INSTALLED), pytest.mark.timeout(300)]


def appliance(*words: str | Path, **more: str) -> str:
    """What a command prints; it has to succeed."""
    environment = {**os.environ, **more}
    done = subprocess.run(
        [APPLIANCE, *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Desk:
    """Ansible on a machine that is a box, or has a person who is logged in at a controller."""

    ansible: Ansible
    folder: Path

    def module(self, which: str, /, *flags: str, **asked: object) -> dict[str, Any]:
        """The result of a module."""
        words = ("localhost", "-i", "localhost,", "-c", "local", "-m", f"edge.appliance.{which}")
        interpreter = ("-e", f"ansible_python_interpreter={sys.executable}")
        done = self.ansible.run("ansible", *words, *interpreter, "-a", json.dumps(asked), *flags, check=False)
        found = re.search(r"localhost \| \w+!? => (\{.*\})", done.stdout, re.DOTALL)
        assert found is not None, done.stdout + done.stderr
        result: dict[str, Any] = json.loads(found[1])
        return result

    def model(self, *flags: str, which: str = "model", **asked: object) -> dict[str, Any]:
        """A module on the store, which nothing serves."""
        place = {"config": str(self.folder / "appliance.toml"), "state_dir": str(self.folder / "state")}
        return self.module(which, *flags, **place, wait=False, **asked)


@pytest.fixture(name="desk")
def _desk(tmp_path: Path) -> Desk:
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (lay := tmp_path / "lay").mkdir()
    return Desk(ansible=Ansible.below(lay, **environment), folder=tmp_path)


@pytest.fixture(name="packages")
def _packages(desk: Desk) -> list[str]:
    folder = desk.folder
    appliance("model", "keygen", folder / "maker.key")
    for version in ("1", "2"):
        words = (
            "pack",
            ROOT / "models/digits",
            "--version",
            version,
            "--key",
            folder / "maker.key",
            "--no-proof",
        )
        appliance("model", *words, "-o", folder)
    (folder / "appliance.toml").write_text(f'[packages]\ntrusted_keys = ["{folder}/maker.key.pub"]\n')
    (folder / "state").mkdir()
    return [str(folder / f"digits-{version}.model") for version in (1, 2)]


def test_a_version_is_had_served_pinned_and_removed_once(desk: Desk, packages: list[str]) -> None:
    first, second = packages
    there = desk.model("--check", package=first)
    assert (there["changed"], there.get("versions")) == (True, {}), there
    assert desk.model(package=first)["versions"] == {"1": "wanted"}
    assert not desk.model(package=first)["changed"]
    found = desk.model(package=second, state="present", pinned=True)
    assert found["versions"] == {"1": "wanted", "2": "pinned"}
    assert desk.model("--check", name="digits", version=2)["changed"]
    assert desk.model(name="digits", version=2)["versions"] == {"1": "installed", "2": "pinned, wanted"}
    assert not desk.model(name="digits", version=2, pinned=True)["changed"]
    assert desk.model(name="digits", version=2, pinned=False)["versions"] == {"1": "installed", "2": "wanted"}
    assert not desk.model(name="digits", version=7, state="absent")["changed"]
    assert desk.model(name="digits", version=1, state="absent")["versions"] == {"2": "wanted"}
    assert desk.model(name="digits", version=2, pinned=True)["changed"]
    assert desk.model(name="digits", state="absent")["versions"] == {}
    assert not desk.model(name="digits", state="absent")["changed"]


def test_a_model_goes_back_from_the_version_that_is_named(desk: Desk, packages: list[str]) -> None:
    for package in packages:
        desk.model(package=package)
    for flags, changed, wanted in ((["--check"], True, 2), ([], True, 1), ([], False, 1)):
        found = desk.model(*flags, which="model_rollback", name="digits", from_version=2)
        assert (found["changed"], found["wanted"]) == (changed, wanted)


def test_all_that_was_asked_wrong_is_told_at_once(desk: Desk, packages: list[str]) -> None:
    said = desk.model(name="other", version=3, package=packages[0], state="absent", pinned=True, timeout=0)[
        "msg"
    ]
    for what in ("'digits', not 'other'", "1, not 3", "pinned:", "timeout: 0"):
        assert what in said, said
    assert "name: needed" in desk.model(version=0)["msg"]
    assert "give the package" in desk.model(name="digits", version=4)["msg"]


def test_a_package_that_nobody_signed_is_refused_with_the_reason(desk: Desk, packages: list[str]) -> None:
    appliance("model", "keygen", desk.folder / "other.key")
    (desk.folder / "appliance.toml").write_text(
        f'[packages]\ntrusted_keys = ["{desk.folder}/other.key.pub"]\n'
    )
    assert "trusted" in desk.model(package=packages[0])["msg"]
    assert desk.model(name="digits", state="absent")["versions"] == {}


@dataclass
class Fleet:
    """A controller that is served, a box of it, and the person who is logged in."""

    desk: Desk
    url: str
    process: subprocess.Popen[str]

    def inventory(
        self, *words: str, check: bool = True, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run ``ansible-inventory``, or another command, on the plugin's file."""
        folder = self.desk.folder
        path = folder / "fleet.appliance.yml"
        plugin = {
            "plugin": "edge.appliance.controller", "profile": str(folder / "profile.json"),
            "keep": str(folder / "kept" / "inventory.json"), **options,
        }  # fmt: skip
        path.write_text(json.dumps(plugin))
        command, *rest = words or ("ansible-inventory", "--list")
        return self.desk.ansible.run(command, "-i", str(path), *rest, check=check)

    def host(self, name: str) -> dict[str, Any]:
        """The variables of a host."""
        found: dict[str, Any] = json.loads(self.inventory().stdout)["_meta"]["hostvars"][name]
        return found


@pytest.fixture(name="fleet")
def _fleet(desk: Desk, packages: list[str]) -> Iterator[Fleet]:
    folder = desk.folder
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url, home = f"https://127.0.0.1:{port}", folder / "controller"
    words = ("--url", url, "--address", f"127.0.0.1:{port}", "--package-key", folder / "maker.key.pub")
    token = appliance("controller", "init", home, *words).rpartition("shown once: ")[2].strip()
    process = subprocess.Popen(
        [APPLIANCE, "controller", "serve", str(home)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert "listens at" in process.stdout.readline()
        profile = {"url": url, "token": token, "authority": (home / "authority.crt").read_text()}
        (folder / "profile.json").write_text(json.dumps(profile))
        said = {"APPLIANCE_CONTROLLER": str(folder / "profile.json")}
        for name, group in (("north", "sites"), ("localhost", "sites"), ("10.1", "sites")):
            made = appliance("fleet", "token", "--group", group, **said).strip()
            appliance("sync", "enrol", made, "--name", name, "--state-dir", folder / f"box-{name}")
        for package in packages:
            appliance("fleet", "release", package, **said)
        desk.ansible.variables.update(said)
        yield Fleet(desk=desk, url=url, process=process)
    finally:
        process.terminate()
        process.communicate()


def test_a_wish_is_made_once_and_taken_back(fleet: Fleet) -> None:
    wish = {"model": "digits", "version": 2, "group": "sites"}
    assert fleet.desk.module("fleet_want", "--check", **wish)["wish"] == {}
    made = fleet.desk.module("fleet_want", **wish)
    assert made["changed"]
    assert made["wish"] == {"version": 2, "order": False, "downgrade": False, "interface_change": False}
    assert not fleet.desk.module("fleet_want", **wish)["changed"]
    assert fleet.desk.module("fleet_want", **wish, order=True)["wish"]["order"]
    assert fleet.desk.module("fleet_want", **wish, state="absent")["wish"] == {}
    assert not fleet.desk.module("fleet_want", **wish, state="absent")["changed"]
    assert (
        "no device 'south'"
        in fleet.desk.module("fleet_want", model="digits", version=1, device="south")["msg"]
    )
    assert "digits/9" in fleet.desk.module("fleet_want", model="digits", version=9, group="sites")["msg"]


def test_drift_is_told_of_each_device(fleet: Fleet) -> None:
    found = fleet.desk.module("drift_info", devices=["north"])
    assert [each["name"] for each in found["devices"]] + found["in_order"] * ["north"] == ["north"]
    assert "none called south" in fleet.desk.module("drift_info", devices=["south", "north"])["msg"]


def test_devices_are_hosts_and_no_name_leads_elsewhere(fleet: Fleet) -> None:
    found = fleet.inventory(suffix=".example.net")
    document = json.loads(found.stdout)
    assert document["fleet_sites"]["hosts"] == ["north.example.net"]
    assert document["state_active"]["hosts"] == ["north.example.net"]
    told = document["_meta"]["hostvars"]["north.example.net"]
    untrusted = [told["appliance_device"], told["appliance_group"]]
    assert untrusted == [{"__ansible_unsafe": "north"}, {"__ansible_unsafe": "sites"}], "no template"
    assert told["appliance_facts_age_s"] < 60
    assert "'localhost' is left out" in found.stderr
    assert "'10.1' is left out" in found.stderr
    kept = fleet.desk.folder / "kept" / "inventory.json"
    assert kept.stat().st_mode & 0o777 == 0o600


def test_while_the_controller_is_away_it_is_what_was_said_last(fleet: Fleet) -> None:
    fleet.inventory()
    fleet.process.terminate()
    fleet.process.wait()
    kept = fleet.desk.folder / "kept" / "inventory.json"
    document = json.loads(kept.read_text())
    document["at_s"] -= 7200
    kept.write_text(json.dumps(document))
    found = fleet.inventory()
    assert "does not answer" in found.stderr
    assert "2.0 hours ago" in found.stderr
    age = json.loads(found.stdout)["_meta"]["hostvars"]["north"]["appliance_facts_age_s"]
    assert 7200 <= age < 7300
    drift = fleet.inventory("ansible-playbook", str(ROOT / "ansible/playbooks/drift.yml"), check=False)
    assert drift.returncode == 2, drift.stdout
    assert re.search(r"north, as of 72\d\d s ago: not converged", drift.stdout), drift.stdout
    for damage in (b"{}", b"[", json.dumps({**document, "url": "https://other"}).encode()):
        kept.write_bytes(damage)
        assert "does not answer" in fleet.inventory(check=False).stderr
        assert "north" not in fleet.inventory(check=False).stdout


def test_what_a_device_says_is_no_template(fleet: Fleet) -> None:
    fleet.inventory()
    kept = fleet.desk.folder / "kept" / "inventory.json"
    fleet.process.terminate()
    fleet.process.wait()
    document = json.loads(kept.read_text())
    (north,) = (each for each in document["devices"] if each["name"] == "north")
    north["problems"] = [
        "{{ lookup('ansible.builtin.pipe', 'touch " + str(fleet.desk.folder / "taken") + "') }}"
    ]
    north["ansible_connection"] = "local"
    kept.write_text(json.dumps(document))
    said = fleet.inventory("ansible-playbook", str(ROOT / "ansible/playbooks/drift.yml"), check=False).stdout
    assert "lookup(" in said
    assert not (fleet.desk.folder / "taken").exists()
    assert "ansible_connection" not in fleet.host("north")


def test_a_token_that_is_not_good_is_told_and_nothing_old_stands_in(fleet: Fleet) -> None:
    fleet.inventory()
    path = fleet.desk.folder / "profile.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "token": "init:nothing"}))
    found = fleet.inventory(check=False)
    assert "refuses the token" in found.stderr
    assert "north" not in found.stdout
    assert "timeout_s: 0" in fleet.inventory(check=False, timeout_s=0).stderr
    path.unlink()
    assert "appliance fleet login" in fleet.inventory(check=False).stderr
