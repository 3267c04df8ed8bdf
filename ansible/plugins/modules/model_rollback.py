#!/usr/bin/python
"""Takes a model on a box one step back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_rollback
short_description: Have the version of a model served that was wanted before
version_added: 0.1.0
description:
  - Goes back from a version that is named, so that a second run changes nothing.
options:
  name:
    description: Name of the model.
    type: str
    required: true
  from_version:
    description: The version to go back from; where another one is wanted, nothing is done.
    type: int
    required: true
  wait:
    description: Whether to wait until a running appliance has the other one live.
    type: bool
    default: true
  timeout:
    description: Seconds to wait at most, 1 to 86400.
    type: int
    default: 600
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
    description: Says whether it would go back; to which version, only the box decides.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
author:
  - Edge appliance maintainers (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Version 3 is bad
  edge.appliance.model_rollback:
    name: digits
    from_version: 3
"""

RETURN = r"""
wanted:
  description: The version that is wanted now.
  returned: success
  type: int
  sample: 2
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.appliance.plugins.module_utils.command import Appliance

WAIT_MOST_S = 86400


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "from_version": {"type": "int", "required": True},
            "wait": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 600},
            "config": {"type": "path", "default": "/etc/appliance/appliance.toml"},
            "state_dir": {"type": "path", "default": "/var/lib/appliance"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    if not 1 <= asked["timeout"] <= WAIT_MOST_S:
        module.fail_json(msg=f"timeout: {asked['timeout']} is not from 1 to {WAIT_MOST_S}")
    appliance = Appliance(module, asked["state_dir"])
    place = ["--config", asked["config"], "--state-dir", asked["state_dir"]]

    def wanted() -> int:
        found = appliance.versions(asked["config"], asked["state_dir"])
        return next(
            (each["version"] for each in found if each["name"] == asked["name"] and "wanted" in each["wish"]),
            0,
        )

    before = wanted()
    changed = before == asked["from_version"]
    if changed and not module.check_mode:
        live = ["--wait", "--timeout", str(asked["timeout"])] if asked["wait"] else []
        appliance.run("model", "rollback", *place, *live, asked["name"])
    module.exit_json(changed=changed, wanted=before if module.check_mode else wanted())


if __name__ == "__main__":
    main()
