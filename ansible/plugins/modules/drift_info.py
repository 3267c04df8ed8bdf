#!/usr/bin/python
"""Reports where boxes of a fleet are not as wanted."""

from __future__ import annotations

DOCUMENTATION = r"""
module: drift_info
short_description: Report where boxes of a fleet are not as wanted
version_added: 0.1.0
description:
  - Asks the controller what differs on each box from what is wanted, and who decided it by hand.
  - Runs where somebody is logged in at the controller, as M(edge.appliance.fleet_want).
  - Where the controller is away, the playbook C(edge.appliance.drift) reports from the inventory's cache.
options:
  devices:
    description: Only these devices; empty means all.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: It only reads.
    support: full
  diff_mode:
    description: It only reads.
    support: none
author:
  - Edge appliance maintainers (!UNKNOWN)
"""

EXAMPLES = r"""
- name: What is not as wanted
  edge.appliance.drift_info:
  delegate_to: controller.example.net
  run_once: true
  register: drift
"""

RETURN = r"""
devices:
  description: Devices that are not as wanted.
  returned: success
  type: list
  elements: dict
  sample:
    - name: north
      state: active
      seen_ms: 1795790928034
      converged: false
      problems: []
      by_hand: [{model: digits, what: pinned, version: 1, who: "ann (uid 1000)", since_ms: 1795790928034}]
      waiting: [{name: digits, wanted: 2, serving: 1, phase: transfer, reason: budget}]
in_order:
  description: How many devices are as wanted.
  returned: success
  type: int
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.appliance.plugins.module_utils.command import Appliance
from ansible_collections.edge.appliance.plugins.module_utils.drift import drift_of


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"devices": {"type": "list", "elements": "str", "default": []}},
        supports_check_mode=True,
    )
    asked = module.params["devices"]
    found: list[dict[str, Any]] = Appliance(module).document("fleet", "devices")
    if unknown := sorted(set(asked) - {each["name"] for each in found}):
        module.fail_json(msg=f"devices: the controller knows none called {', '.join(unknown)}")
    looked_at = [
        each for each in found if each["state"] != "revoked" and (not asked or each["name"] in asked)
    ]
    drifted = [drift for drift in map(drift_of, looked_at) if drift]
    module.exit_json(changed=False, devices=drifted, in_order=len(looked_at) - len(drifted))


if __name__ == "__main__":
    main()
