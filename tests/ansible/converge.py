"""The roles for real: ``make ansible-test``, as root, with mmdebstrap and a Debian mirror.

A plain Debian 13 under a systemd of its own is reached over SSH, and becomes a controller and a box of its fleet. It
prints a line for each thing that holds; the first that does not is the end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packages.processor import architecture, newest
from tests.ansible.collection import INSTALLED, NOT_INSTALLED, ROOT, Ansible
from tests.ansible.provisioning import HOST, SITE, Provisioning, proxied
from tests.installation.machine import Machine, asks_over_tls, machine, make_certificate, play

ROOT_HOME: Final = "/root"
NO_MODELS: Final = """
class InferenceSession(InferenceSession):
    def __init__(self, *words, **more):
        if "enable_fallback" in more:
            raise RuntimeError("this release loads no model")
        super().__init__(*words, **more)
"""
UPGRADE: Final = str(ROOT / "ansible/playbooks/upgrade.yml")


@dataclass(slots=True, kw_only=True)
class Site(Provisioning):
    """The site, on a machine in namespaces."""

    box: Machine


def what_is_wrong_is_told_at_once(site: Site) -> None:
    assert "controller_min_free_bytes" in site.refused(controller_min_free_bytes=1 << 60)
    said = site.refused(
        appliance_grpc_addresses=["here", "0.0.0.0:70000"], appliance_trusted_keys=["/nowhere/key"],
        appliance_answer_timeout_s=1, appliance_min_free_bytes=1 << 60, appliance_require_nvme=True,
        appliance_require_gpu=True, appliance_tls_key="/nowhere/key",
    )  # fmt: skip
    names = (
        "grpc_addresses",
        "trusted_keys",
        "answer_timeout_s",
        "min_free_bytes",
        "tls_key",
        "require_nvme",
    )
    for name in (*names, "require_gpu"):
        assert f"appliance_{name}" in said, (name, said)
    assert "0.0.0.0:70000" in said
    assert site.box.do("find", "/etc/appliance", check=False) == "", "nothing was changed"


def a_check_on_a_clean_host_tells_what_would_change(site: Site) -> None:
    said, changed, _ = site.play("--check", "--diff")
    assert changed > 5, said
    assert "+state_dir =" in said, said
    assert site.box.do("find", "/etc/appliance", check=False) == "", "nothing was changed"


def it_converges(site: Site) -> None:
    _, changed, took = site.play()
    print(f"   one host: {took:.1f} s, {changed} changed")
    assert site.box.do("systemctl", "is-active", "appliance", "appliance-sync", "appliance-controller")
    (device,) = devices(site.box)
    assert device["name"] == HOST
    assert device["group"] == "sites"


def once_more_changes_nothing(site: Site) -> None:
    before = [site.box.shown("MainPID", f"{unit}.service") for unit in ("appliance", "appliance-sync")]
    said, changed, took = site.play("--diff")
    print(f"   again: {took:.1f} s")
    assert changed == 0, said
    assert site.play("--check", "--diff")[1] == 0
    assert before == [
        site.box.shown("MainPID", f"{unit}.service") for unit in ("appliance", "appliance-sync")
    ]


def a_changed_setting_is_shown_and_then_in_force(site: Site) -> None:
    settings: dict[str, Any] = {"appliance_settings": {"fleet": {"poll_s": 7}}}
    said, changed, _ = site.play("--check", "--diff", **settings)
    assert changed >= 1
    assert "+poll_s = 7" in said, said
    pid = site.box.shown("MainPID")
    _, changed, _ = site.play(**settings)
    assert changed >= 1
    assert site.box.shown("MainPID") != pid
    assert "poll_s = 7" in site.box.do("cat", "/etc/appliance/appliance.toml")


def a_setting_that_is_wrong_changes_nothing(site: Site) -> None:
    before = site.box.do("cat", "/etc/appliance/appliance.toml")
    bad = {"fleet": {"poll_s": -7, "pol_s": 1}}
    done = site.ansible.run(
        "ansible-playbook", "-i", str(site.variables(appliance_settings=bad)), SITE, check=False
    )
    assert done.returncode != 0
    assert "poll_s" in done.stdout
    assert "pol_s" in done.stdout
    assert site.box.do("cat", "/etc/appliance/appliance.toml") == before
    assert site.box.do("systemctl", "is-active", "appliance") == "active"


def another(site: Site, version: str, change: Callable[[Path], None] = lambda tree: None) -> Path:
    """The package as that version, changed."""
    package = site.folder / f"edge-appliance_{version}_{architecture()}.deb"
    tree = site.folder / version
    subprocess.run(["dpkg-deb", "-R", str(site.package), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", control.read_text()))
    change(tree)
    subprocess.run(["dpkg-deb", "-Znone", "-b", str(tree), str(package)], check=True, capture_output=True)
    return package


def a_model_is_had_served(site: Site) -> None:
    """By the module, on the store that is another user's."""
    site.box.do("chmod", "0644", "/srv/digits.model")
    words = ("-i", str(site.variables()), "-m", "edge.appliance.model", "-a", "package=/srv/digits.model")
    assert "CHANGED" in site.ansible.run("ansible", HOST, *words).stdout
    assert "SUCCESS" in site.ansible.run("ansible", HOST, *words).stdout
    site.box.do("appliance", "infer", "digits", "--zeros")


def it_speaks_tls(site: Site) -> None:
    """The configuration is checked before the start that is the first to have the certificate."""
    certificate, key = make_certificate(site.folder)
    site.play(appliance_tls_certificate=str(certificate), appliance_tls_key=str(key))
    asks_over_tls(site.box)
    site.play()
    site.box.do("appliance", "infer", "digits", "--zeros")


def an_upgrade_that_loses_a_model_is_told(site: Site) -> None:
    """Its daemon starts, and its runtime loads no model."""

    def without_models(tree: Path) -> None:
        (found,) = tree.glob("usr/lib/edge-appliance/**/onnxruntime/__init__.py")
        found.write_text(found.read_text() + NO_MODELS)

    bad = another(site, "9.9.8", without_models)
    words = ("-i", str(site.variables(appliance_package=str(bad), appliance_answer_timeout_s=20)), UPGRADE)
    done = site.ansible.run("ansible-playbook", *words, check=False)
    assert done.returncode != 0, done.stdout
    assert "not ready: digits" in done.stdout, done.stdout
    site.play(book=UPGRADE, appliance_allow_downgrade=True)
    site.box.do("appliance", "infer", "digits", "--zeros")


def an_upgrade_goes_box_by_box_and_back(site: Site) -> None:
    newer = another(site, "9.9.9")
    site.play(book=UPGRADE, appliance_package=str(newer))
    version = ("dpkg-query", "--show", "--showformat=${Version}", "edge-appliance")
    assert site.box.do(*version) == "9.9.9"
    done = site.ansible.run("ansible-playbook", "-i", str(site.variables()), UPGRADE, check=False)
    assert "appliance_allow_downgrade" in done.stdout
    site.play(book=UPGRADE, appliance_allow_downgrade=True)
    assert site.box.do(*version) in site.package.name
    kept = site.box.do("ls", "/var/cache/edge-appliance").split()
    assert sorted(kept) == sorted([newer.name, site.package.name])


def the_runtime_for_a_gpu_comes_behind_the_product(site: Site) -> None:
    """Where dist/ has it; no GPU is here, so that models go on by the processor."""
    add_on = newest(ROOT / "dist", "edge-appliance-cuda")
    if add_on is None:
        print("   left out: dist/ has no edge-appliance-cuda_*.deb, which 'make cuda-deb' makes")
        return
    given = {"appliance_cuda_package": str(add_on)}
    assert "appliance_require_gpu: the NVIDIA driver is not loaded" in site.refused(
        appliance_require_gpu=True, **given
    )
    _, changed, took = site.play(**given)
    print(f"   {add_on.stat().st_size:,} bytes: {took:.1f} s, {changed} changed")
    runtimes = [
        line for line in site.box.do("appliance", "version", "--all").splitlines() if "onnxruntime" in line
    ]
    assert runtimes == [f"onnxruntime-gpu {add_on.name.split('_')[1].split('+')[0]}"]
    site.box.do("appliance", "infer", "digits", "--zeros")
    assert site.play(**given)[1] == 0
    site.box.do("dpkg", "--purge", "edge-appliance-cuda")
    site.box.do("appliance", "infer", "digits", "--zeros")


def molecule_plays_its_scenarios(site: Site) -> None:
    """Each by itself: check, converge, once more, verify."""
    collection = site.ansible.folder / "ansible_collections/edge/appliance"
    site.ansible.variables["MOLECULE_INVENTORY"] = str(site.variables())
    for scenario in ("site", "default"):
        site.ansible.run("molecule", "test", "--scenario-name", scenario, cwd=collection)


def devices(box: Machine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        box.do("env", "HOME=" + ROOT_HOME, "appliance", "fleet", "devices", "--json")
    )
    return found


CHECKS: Final = (
    what_is_wrong_is_told_at_once,
    a_check_on_a_clean_host_tells_what_would_change,
    it_converges,
    once_more_changes_nothing,
    a_changed_setting_is_shown_and_then_in_force,
    a_setting_that_is_wrong_changes_nothing,
    a_model_is_had_served,
    it_speaks_tls,
    an_upgrade_that_loses_a_model_is_told,
    an_upgrade_goes_box_by_box_and_back,
    the_runtime_for_a_gpu_comes_behind_the_product,
    molecule_plays_its_scenarios,
)


def main() -> int:
    """Run them all; 0 when all hold."""
    package = newest(ROOT / "dist")
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None or package is None:
        print("this takes root, mmdebstrap, and dist/*.deb, which 'make deb' makes", file=sys.stderr)
        return 1
    if not INSTALLED:
        print(NOT_INSTALLED, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    with (
        machine(package, "openssh-server", "python3-apt", name="ansible-test-") as box,
        tempfile.TemporaryDirectory(prefix="ansible-test-") as place,
    ):
        folder = Path(place)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "ssh")], check=True)
        box.do("mkdir", "-p", f"{ROOT_HOME}/.ssh", "/run/sshd")
        box.do(
            "sh",
            "-c",
            f"echo '{(folder / 'ssh.pub').read_text().strip()}' > {ROOT_HOME}/.ssh/authorized_keys",
        )
        (folder / "maker.key.pub").write_text(box.do("cat", "/srv/maker.key.pub") + "\n")
        (lay := folder / "collections").mkdir()
        site = Site(
            box=box, ansible=Ansible.below(lay), package=package, folder=folder,
            key=folder / "maker.key.pub",
            way=proxied(folder, folder / "ssh", f"{' '.join(box.enter)} /usr/sbin/sshd -i"),
        )  # fmt: skip
        play(CHECKS, site)
    return 0


if __name__ == "__main__":
    sys.exit(main())
