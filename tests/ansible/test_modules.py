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


Task = dict[str, Any]


def task(which: str, /, *, check: bool = False, **asked: object) -> Task:
    """A module and what it is asked for; ``check``: what would change is to be told alone."""
    return {f"edge.appliance.{which}": asked, "check_mode": check, "ignore_errors": True}


@dataclass
class Desk:
    """Ansible on a machine that is a box, or has a person who is logged in at a controller."""

    ansible: Ansible
    folder: Path

    def play(self, *tasks: Task) -> list[dict[str, Any]]:
        """The results of modules, one after another: of all in one run, as each costs seconds."""
        names = [f"result_{number}" for number, _ in enumerate(tasks)]
        told = self.folder / "results.json"
        tell = {"content": "{{ [" + ", ".join(names) + "] | to_json }}", "dest": str(told)}
        play = {
            "hosts": "localhost", "connection": "local", "gather_facts": False,
            "vars": {"ansible_python_interpreter": sys.executable},
            "tasks": [
                *({**each, "register": name} for each, name in zip(tasks, names, strict=True)),
                {"ansible.builtin.copy": tell},
            ],
        }  # fmt: skip
        book = self.folder / "play.yml"
        book.write_text(json.dumps([play]))
        self.ansible.run("ansible-playbook", "-i", "localhost,", str(book))
        found: list[dict[str, Any]] = json.loads(told.read_text())
        return found

    def model(self, *, check: bool = False, which: str = "model", **asked: object) -> Task:
        """A module on the store, which nothing serves."""
        place = {"config": str(self.folder / "appliance.toml"), "state_dir": str(self.folder / "state")}
        return task(which, check=check, **place, wait=False, **asked)


@pytest.fixture(name="maker", scope="module")
def _maker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a key and the two packages lie that it signed; nothing there changes."""
    folder = tmp_path_factory.mktemp("maker")
    appliance("model", "keygen", folder / "maker.key")
    for version in ("1", "2"):
        words = ("--version", version, "--key", folder / "maker.key", "--no-proof")
        appliance("model", "pack", ROOT / "models/digits", *words, "-o", folder)
    return folder


@pytest.fixture(name="packages", scope="module")
def _packages(maker: Path) -> list[str]:
    return [str(maker / f"digits-{version}.model") for version in (1, 2)]


@pytest.fixture(name="desk")
def _desk(tmp_path: Path, maker: Path) -> Desk:
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (lay := tmp_path / "lay").mkdir()
    (tmp_path / "appliance.toml").write_text(f'[packages]\ntrusted_keys = ["{maker}/maker.key.pub"]\n')
    (tmp_path / "state").mkdir()
    return Desk(ansible=Ansible.below(lay, **environment), folder=tmp_path)


def test_a_version_is_had_served_pinned_and_removed_once(desk: Desk, packages: list[str]) -> None:
    first, second = packages
    steps: list[tuple[Task, bool, dict[str, str] | None]] = [
        (desk.model(check=True, package=first), True, {}),
        (desk.model(package=first), True, {"1": "wanted"}),
        (desk.model(package=first), False, {"1": "wanted"}),
        (desk.model(package=second, state="present", pinned=True), True, {"1": "wanted", "2": "pinned"}),
        (desk.model(check=True, name="digits", version=2), True, None),
        (desk.model(name="digits", version=2), True, {"1": "installed", "2": "pinned, wanted"}),
        (desk.model(name="digits", version=2, pinned=True), False, None),
        (desk.model(name="digits", version=2, pinned=False), True, {"1": "installed", "2": "wanted"}),
        (desk.model(name="digits", version=7, state="absent"), False, None),
        (desk.model(name="digits", version=1, state="absent"), True, {"2": "wanted"}),
        (desk.model(name="digits", version=2, pinned=True), True, None),
        (desk.model(name="digits", state="absent"), True, {}),
        (desk.model(name="digits", state="absent"), False, {}),
    ]
    found = desk.play(*(asked for asked, _, _ in steps))
    for number, (result, (_, changed, versions)) in enumerate(zip(found, steps, strict=True)):
        assert (number, result["changed"]) == (number, changed), result
        if versions is not None:
            assert (number, result["versions"]) == (number, versions), result


def test_a_model_goes_back_from_the_version_that_is_named(desk: Desk, packages: list[str]) -> None:
    back: dict[str, Any] = {"which": "model_rollback", "name": "digits", "from_version": 2}
    _, _, *found = desk.play(
        *(desk.model(package=package) for package in packages),
        desk.model(check=True, **back),
        desk.model(**back),
        desk.model(**back),
    )
    assert [(each["changed"], each["wanted"]) for each in found] == [(True, 2), (True, 1), (False, 1)]


def test_all_that_was_asked_wrong_is_told_at_once(desk: Desk, packages: list[str]) -> None:
    wrong, nameless, absent = desk.play(
        desk.model(name="other", version=3, package=packages[0], state="absent", pinned=True, timeout=0),
        desk.model(version=0),
        desk.model(name="digits", version=4),
    )
    for what in ("'digits', not 'other'", "1, not 3", "pinned:", "timeout: 0"):
        assert what in wrong["msg"], wrong
    assert "name: needed" in nameless["msg"]
    assert "give the package" in absent["msg"]


def test_a_package_that_nobody_signed_is_refused_with_the_reason(desk: Desk, packages: list[str]) -> None:
    appliance("model", "keygen", desk.folder / "other.key")
    (desk.folder / "appliance.toml").write_text(
        f'[packages]\ntrusted_keys = ["{desk.folder}/other.key.pub"]\n'
    )
    refused, absent = desk.play(desk.model(package=packages[0]), desk.model(name="digits", state="absent"))
    assert "trusted" in refused["msg"]
    assert absent["versions"] == {}


@dataclass
class Controller:
    """A controller with boxes in ``folder``; ``profile`` is of the person who is logged in."""

    folder: Path
    profile: dict[str, str]
    process: subprocess.Popen[str] | None = None

    def serve(self) -> None:
        """Have it served, if it is not."""
        if self.process is None:
            words = [APPLIANCE, "controller", "serve", str(self.folder)]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert self.process.stdout is not None
            assert "listens at" in self.process.stdout.readline()

    def stop(self) -> None:
        """Have it gone."""
        if self.process is not None:
            self.process.terminate()
            self.process.communicate()
            self.process = None


@dataclass
class Fleet:
    """A controller that is served, a box of it, and the person who is logged in."""

    desk: Desk
    controller: Controller

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


@pytest.fixture(name="controller", scope="module")
def _controller(
    tmp_path_factory: pytest.TempPathFactory, maker: Path, packages: list[str]
) -> Iterator[Controller]:
    folder = tmp_path_factory.mktemp("fleet")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url, home = f"https://127.0.0.1:{port}", folder / "controller"
    words = ("--url", url, "--address", f"127.0.0.1:{port}", "--package-key", maker / "maker.key.pub")
    token = appliance("controller", "init", home, *words).rpartition("shown once: ")[2].strip()
    profile = {"url": url, "token": token, "authority": (home / "authority.crt").read_text()}
    (folder / "profile.json").write_text(json.dumps(profile))
    controller = Controller(home, profile)
    try:
        controller.serve()
        said = {"APPLIANCE_CONTROLLER": str(folder / "profile.json")}
        for name in ("north", "localhost", "10.1"):
            made = appliance("fleet", "token", "--group", "sites", **said).strip()
            appliance("sync", "enrol", made, "--name", name, "--state-dir", folder / f"box-{name}")
        for package in packages:
            appliance("fleet", "release", package, **said)
        yield controller
    finally:
        controller.stop()


@pytest.fixture(name="fleet")
def _fleet(desk: Desk, controller: Controller) -> Fleet:
    """One that is served, whatever a test before did."""
    controller.serve()
    profile = desk.folder / "profile.json"
    profile.write_text(json.dumps(controller.profile))
    desk.ansible.variables["APPLIANCE_CONTROLLER"] = str(profile)
    return Fleet(desk=desk, controller=controller)


def test_a_wish_is_made_once_and_taken_back(fleet: Fleet) -> None:
    wish: dict[str, Any] = {"model": "digits", "version": 2, "group": "sites"}
    planned, made, again, ordered, gone, absent, strange, unknown = fleet.desk.play(
        task("fleet_want", check=True, **wish),
        task("fleet_want", **wish),
        task("fleet_want", **wish),
        task("fleet_want", **wish, order=True),
        task("fleet_want", **wish, state="absent"),
        task("fleet_want", **wish, state="absent"),
        task("fleet_want", model="digits", version=1, device="south"),
        task("fleet_want", model="digits", version=9, group="sites"),
    )
    assert planned["wish"] == {}
    assert made["changed"]
    assert made["wish"] == {"version": 2, "order": False, "downgrade": False, "interface_change": False}
    assert not again["changed"]
    assert ordered["wish"]["order"]
    assert gone["wish"] == {}
    assert not absent["changed"]
    assert "no device 'south'" in strange["msg"]
    assert "digits/9" in unknown["msg"]


def test_drift_is_told_of_each_device(fleet: Fleet) -> None:
    found, strange = fleet.desk.play(
        task("drift_info", devices=["north"]), task("drift_info", devices=["south", "north"])
    )
    assert [each["name"] for each in found["devices"]] + found["in_order"] * ["north"] == ["north"]
    assert "none called south" in strange["msg"]


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
    fleet.controller.stop()
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
        found = fleet.inventory(check=False)
        assert "does not answer" in found.stderr
        assert "north" not in found.stdout


def test_what_a_device_says_is_no_template(fleet: Fleet) -> None:
    fleet.inventory()
    kept = fleet.desk.folder / "kept" / "inventory.json"
    fleet.controller.stop()
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
