#!/usr/bin/python
"""Wishes for a version of a model in a group of the fleet, or on one device."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_want
short_description: Wish for a version of a model in a fleet
version_added: 0.1.0
description:
  - Runs where somebody is logged in at the controller (C(appliance fleet login)), which the role
    P(edge.appliance.controller#role) does for root of the controller's host.
options:
  model:
    description: Name of the model.
    type: str
    required: true
  version:
    description: Version, which was released; 0 serves nothing of it. Needed unless O(state=absent).
    type: int
  group:
    description: Group of devices; this or O(device).
    type: str
  device:
    description: One device; it goes before its group's wish.
    type: str
  state:
    description: V(absent) takes the wish back.
    type: str
    choices: [present, absent]
    default: present
  order:
    description: Whether it is served at once, whatever serves now, as a rollback.
    type: bool
    default: false
  downgrade:
    description: Whether it may be older than what was wanted before.
    type: bool
    default: false
  allow_interface_change:
    description: Whether clients change along with it.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would change, and changes nothing.
    support: full
  diff_mode:
    description: Shows the wish before and after.
    support: full
author:
  - Edge appliance maintainers (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Version 2 for the canaries
  edge.appliance.fleet_want:
    model: digits
    version: 2
    group: canary
  delegate_to: controller.example.net
  run_once: true
"""

RETURN = r"""
wish:
  description: What is wished now, empty where nothing is.
  returned: success
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.appliance.plugins.module_utils.command import Appliance

KEYS = ("version", "order", "downgrade", "interface_change")


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "model": {"type": "str", "required": True},
            "version": {"type": "int"},
            "group": {"type": "str"},
            "device": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "order": {"type": "bool", "default": False},
            "downgrade": {"type": "bool", "default": False},
            "allow_interface_change": {"type": "bool", "default": False},
        },
        required_one_of=[("group", "device")],
        mutually_exclusive=[("group", "device")],
        required_if=[("state", "present", ("version",))],
        supports_check_mode=True,
    )
    asked = module.params
    appliance = Appliance(module)
    scope, name = ("group", asked["group"]) if asked["group"] else ("device", asked["device"])

    def wish() -> dict[str, Any]:
        found = appliance.document("fleet", f"{scope}s")
        wishes = next((each["wishes"] for each in found if each["name"] == name), None)
        if wishes is None and scope == "device":
            module.fail_json(msg=f"device: the controller knows no device '{name}'")
        there = (wishes or {}).get(asked["model"])
        return {key: there[key] for key in KEYS} if there else {}

    before = wish()
    after = {}
    if asked["state"] == "present":
        values = (asked["version"], asked["order"], asked["downgrade"], asked["allow_interface_change"])
        after = dict(zip(KEYS, values, strict=True))
    changed = before != after
    if changed and not module.check_mode:
        flags = [key for key in ("order", "downgrade", "allow_interface_change") if asked[key]]
        words = [f"--{key.replace('_', '-')}" for key in flags] if after else ["--withdraw"]
        appliance.run(
            "fleet", "want", f"--{scope}", name, *words, f"{asked['model']}={asked['version'] or 0}"
        )
    module.exit_json(
        changed=changed, wish=before if module.check_mode else wish(), diff={"before": before, "after": after}
    )


if __name__ == "__main__":
    main()
