#!/usr/bin/python
"""Has a version of a model in the store of a box, served, pinned, or gone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model
short_description: Have a version of a model on a box
version_added: 0.1.0
description:
  - Installs, serves, pins, unpins and removes versions in the store of a box, by the product's own command.
  - What it does counts as decided by hand; on a box of a fleet the fleet leaves that model alone until
    C(appliance model resume).
options:
  name:
    description: Name of the model. Needed without O(package), which says it by itself.
    type: str
  version:
    description: Version; without it, O(state=absent) means all of the model. Needed without O(package) else.
    type: int
  package:
    description: Package C(NAME-VERSION.model) on the box, readable by the store's user.
    type: path
  state:
    description:
      - V(served) installs the version where it is not there, and has it served.
      - V(present) only installs it.
      - V(absent) takes it out of the store. It fails for the last version that has served on the box while another is
        wanted that has not.
    type: str
    choices: [served, present, absent]
    default: served
  pinned:
    description: Whether the version is kept in the store, wanted or not. Without it, that stays as it is.
    type: bool
  wait:
    description: Whether to wait until a running appliance has it live.
    type: bool
    default: true
  timeout:
    description: Seconds to wait at most, 1 to 86400.
    type: int
    default: 600
  downgrade:
    description: Whether it may be older than what was wanted of the model.
    type: bool
    default: false
  allow_interface_change:
    description: Whether it may go live although clients of what serves cannot talk to it.
    type: bool
    default: false
  config:
    description: Configuration of the appliance.
    type: path
    default: /etc/appliance/appliance.toml
  state_dir:
    description: Directory of the store.
    type: path
    default: /var/lib/appliance
attributes:
  check_mode:
    description: Says what would change, and changes nothing.
    support: full
  diff_mode:
    description: Shows what is installed, wanted and pinned of the model before and after.
    support: full
author:
  - Edge appliance maintainers (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Serve version 2, from a package that was copied to the box
  edge.appliance.model:
    package: /var/cache/edge-appliance/digits-2.model

- name: Go back to version 1, and keep it
  edge.appliance.model:
    name: digits
    version: 1
    downgrade: true
    pinned: true

- name: Remove all of a model
  edge.appliance.model:
    name: digits
    state: absent
"""

RETURN = r"""
versions:
  description: What is installed of the model, before in check mode; by version what is wished of it.
  returned: success
  type: dict
  sample: {"1": "pinned", "2": "wanted"}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.appliance.plugins.module_utils.command import Appliance

WAIT_MOST_S = 86400


class Wish:
    """What is to be of a version, and what is missing for it."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._asked = module.params
        self._appliance = Appliance(module, module.params["state_dir"])
        self._place = ["--config", module.params["config"], "--state-dir", module.params["state_dir"]]
        self.name, self.version = self._which()

    def _which(self) -> tuple[str, int]:
        """Name and version; all that is wrong with what was asked is told at once."""
        asked, problems = self._asked, []
        name, version = asked["name"] or "", asked["version"] or 0
        if asked["package"]:
            (found,) = self._appliance.document(
                "model", "verify", asked["package"], "--config", asked["config"]
            )
            said_name, said_version = str(found["model"]).rsplit("/", 1)
            if name and name != said_name:
                problems.append(f"name: the package holds '{said_name}', not '{name}'")
            if version and version != int(said_version):
                problems.append(f"version: the package holds {said_version}, not {version}")
            name, version = said_name, int(said_version)
        elif not name:
            problems.append("name: needed without a package")
        if asked["version"] is not None and asked["version"] < 1:
            problems.append(f"version: {asked['version']} is none; they begin at 1")
        elif not version and asked["state"] != "absent":
            problems.append(f"version: needed for state {asked['state']} without a package")
        if asked["state"] == "absent" and asked["pinned"]:
            problems.append("pinned: what is absent cannot be pinned")
        if not 1 <= asked["timeout"] <= WAIT_MOST_S:
            problems.append(f"timeout: {asked['timeout']} is not from 1 to {WAIT_MOST_S}")
        if problems:
            self._module.fail_json(msg="; ".join(problems))
        return name, version

    def there(self) -> dict[int, list[str]]:
        """What is installed of the model, and what is wished of it."""
        found = self._appliance.versions(self._asked["config"], self._asked["state_dir"])
        return {
            each["version"]: sorted(word.strip() for word in each["wish"].split(",") if word.strip())
            for each in found
            if each["name"] == self.name
        }

    def after(self, before: dict[int, list[str]]) -> dict[int, list[str]]:
        """What is to be there."""
        if self._asked["state"] == "absent":
            return {version: wish for version, wish in before.items() if self.version not in (version, 0)}
        after = {version: list(wish) for version, wish in before.items()}
        mine = set(after.get(self.version, ()))
        if self._asked["state"] == "served" and "wanted" not in mine:
            for wish in after.values():
                if "wanted" in wish:
                    wish.remove("wanted")
            mine.add("wanted")
        if self._asked["pinned"] is not None:
            mine = mine | {"pinned"} if self._asked["pinned"] else mine - {"pinned"}
        after[self.version] = sorted(mine)
        return after

    def fulfil(self, before: dict[int, list[str]], after: dict[int, list[str]]) -> None:
        """Do what is missing."""
        which = f"{self.name}/{self.version}"
        if self._asked["state"] == "absent":
            for version in sorted(before.keys() - after.keys()):
                if "pinned" in before[version]:
                    self._appliance.run("model", "unpin", *self._place, f"{self.name}/{version}")
            self._appliance.run("model", "uninstall", *self._place, which if self.version else self.name)
            return
        mine = before.get(self.version)
        live = ["--wait", "--timeout", str(self._asked["timeout"])] if self._asked["wait"] else []
        changes = [
            f"--{name.replace('_', '-')}"
            for name in ("downgrade", "allow_interface_change")
            if self._asked[name]
        ]
        if mine is None:
            if not self._asked["package"]:
                self._module.fail_json(msg=f"{which} is not installed; give the package that holds it")
            words = ["--no-want"] if self._asked["state"] == "present" else live
            self._appliance.run("model", "install", *self._place, *words, *changes, self._asked["package"])
        elif "wanted" in after[self.version] and "wanted" not in mine:
            self._appliance.run("model", "want", *self._place, *live, *changes, which)
        pinned = "pinned" in after[self.version]
        if pinned != ("pinned" in (mine or ())):
            self._appliance.run("model", "pin" if pinned else "unpin", *self._place, which)


def shown(versions: dict[int, list[str]]) -> dict[str, str]:
    """The versions as people read them."""
    return {str(version): ", ".join(versions[version]) or "installed" for version in sorted(versions)}


def main() -> None:
    """Run the module."""
    arguments: dict[str, Any] = {
        "name": {"type": "str"},
        "version": {"type": "int"},
        "package": {"type": "path"},
        "state": {"type": "str", "choices": ["served", "present", "absent"], "default": "served"},
        "pinned": {"type": "bool"},
        "wait": {"type": "bool", "default": True},
        "timeout": {"type": "int", "default": 600},
        "downgrade": {"type": "bool", "default": False},
        "allow_interface_change": {"type": "bool", "default": False},
        "config": {"type": "path", "default": "/etc/appliance/appliance.toml"},
        "state_dir": {"type": "path", "default": "/var/lib/appliance"},
    }
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    wish = Wish(module)
    before = wish.there()
    after = wish.after(before)
    changed = before != after
    if changed and not module.check_mode:
        wish.fulfil(before, after)
    found = before if module.check_mode else wish.there()
    module.exit_json(
        changed=changed, versions=shown(found), diff={"before": shown(before), "after": shown(after)}
    )


if __name__ == "__main__":
    main()
