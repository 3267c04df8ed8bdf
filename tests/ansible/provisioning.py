"""A site that is one host, controller and box of its fleet, and who provisions it, by whatever way in."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.ansible.collection import ROOT, Ansible

HOST: Final = "site-1"
SITE: Final = str(ROOT / "ansible/playbooks/site.yml")
RECAP: Final = re.compile(rf"^{HOST}\s*: ok=(\d+)\s+changed=(\d+)\s+unreachable=0\s+failed=0", re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class Provisioning:
    """``way`` is how Ansible comes in, ``key`` what models are signed with, ``fixed`` what else is always given."""

    ansible: Ansible
    package: Path
    folder: Path
    key: Path
    way: Mapping[str, object]
    fixed: Mapping[str, object] = field(default_factory=dict)
    limit_s: float = 600

    def variables(self, **more: object) -> Path:
        """Write the inventory."""
        host = {
            **self.way,
            "controller_package": str(self.package),
            "controller_url": "https://127.0.0.1:8443",
            "controller_package_keys": [str(self.key)],
            "appliance_package": str(self.package),
            "appliance_trusted_keys": [str(self.key)],
            "enrol_controller": HOST,
            "enrol_group": "sites",
            **self.fixed,
            **more,
        }
        groups = {"controllers": {"hosts": {HOST: None}}, "boxes": {"hosts": {HOST: None}}}
        path = self.folder / "inventory.yml"
        path.write_text(json.dumps({"all": {"hosts": {HOST: host}, "children": groups}}))
        return path

    def play(self, *words: str, book: str = SITE, **more: object) -> tuple[str, int, float]:
        """What it said, how much it changed, and how long it took."""
        begun = time.monotonic()
        inventory = str(self.variables(**more))
        done = self.ansible.run("ansible-playbook", "-i", inventory, book, *words, limit_s=self.limit_s)
        recap = RECAP.search(done.stdout)
        assert recap is not None, done.stdout
        return done.stdout, int(recap[2]), time.monotonic() - begun

    def refused(self, book: str = SITE, **more: object) -> str:
        """What it says where the variables are wrong."""
        done = self.ansible.run(
            "ansible-playbook", "-i", str(self.variables(**more)), book, "--check", check=False
        )
        assert done.returncode != 0, done.stdout
        return done.stdout


def over_ssh(folder: Path, key: Path, options: str = "") -> dict[str, object]:
    """The way in as root, by the private ``key``, with these ``options`` of ssh; it remembers no host."""
    return {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": (
            f"{options} -o UserKnownHostsFile={folder / 'known'} -o StrictHostKeyChecking=no"
        ).strip(),
    }


def proxied(folder: Path, key: Path, command: str) -> dict[str, object]:
    """The way in over the standard streams of a ``command``, which is an SSH server."""
    return over_ssh(folder, key, f"-o ProxyCommand='{command}'")
