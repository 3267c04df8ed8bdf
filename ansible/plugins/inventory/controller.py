"""The devices of a fleet as an inventory, also while its controller is away."""

from __future__ import annotations

DOCUMENTATION = r"""
name: controller
short_description: The devices of a fleet, from its controller or from what it said last
version_added: 0.1.0
description:
  - Each device of the fleet is a host, each group of the fleet a group C(fleet_NAME), and each state C(state_NAME).
  - What the controller said is kept in a file. While it is away that is what the inventory is made of, with a warning,
    and C(appliance_facts_age_s) says of each host how old it is.
  - What is known of a device are variables C(appliance_...) of its host; nothing that a device says becomes another
    variable or a template. A device whose name would lead to another machine (C(localhost), an address) is left out,
    with a warning.
  - Revoked devices are left out.
extends_documentation_fragment:
  - constructed
options:
  plugin:
    description: Must be V(edge.appliance.controller).
    type: str
    required: true
    choices: [edge.appliance.controller]
  profile:
    description:
      - File that C(appliance fleet login) wrote, with the controller's URL, its authority and a token.
      - A viewer's token is enough.
    type: path
    default: ~/.config/edge-appliance/controller.json
    env:
      - name: APPLIANCE_CONTROLLER
  keep:
    description: File in which what the controller said last is kept, for its owner alone.
    type: path
    default: ~/.cache/edge-appliance/inventory.json
  timeout_s:
    description: Seconds that the controller has to answer, 1 to 600.
    type: int
    default: 20
  suffix:
    description: What follows the device's name in the name of its host, as C(.sites.example.net).
    type: str
    default: ""
author:
  - Edge appliance maintainers (!UNKNOWN)
"""

EXAMPLES = r"""
# fleet.appliance.yml
plugin: edge.appliance.controller
suffix: .sites.example.net
keyed_groups:
  - key: appliance_agent
    prefix: agent
groups:
  drifted: appliance_drift | length > 0
"""

import http.client
import ipaddress
import json
import os
import re
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ansible.errors import AnsibleParserError
from ansible_collections.edge.appliance.plugins.module_utils.drift import drift_of

from ansible.plugins.inventory import BaseInventoryPlugin, Constructable

ENDINGS = (".appliance.yml", ".appliance.yaml")
MOST_BYTES = 256 << 20
NAME = re.compile(r"[a-z0-9_][a-z0-9._-]{0,63}")
TOLD = (
    "group", "state", "seen_ms", "generation", "told_generation", "freshness", "converged", "serving", "agent",
    "models", "problems", "outbox_bytes", "certificate_expires_ms", "settings",
)  # fmt: skip


class ControllerAway(Exception):
    """It cannot be asked now."""


class InventoryModule(BaseInventoryPlugin, Constructable):
    """What Ansible loads."""

    NAME = "edge.appliance.controller"

    def verify_file(self, path: str) -> bool:
        """Whether this plugin is meant: the file ends in ``.appliance.yml``."""
        return bool(super().verify_file(path)) and path.endswith(ENDINGS)

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Fill the inventory."""
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        timeout_s = self.get_option("timeout_s")
        if not 1 <= timeout_s <= 600:
            raise AnsibleParserError(f"timeout_s: {timeout_s} is not from 1 to 600")
        kept = Path(self.get_option("keep")).expanduser()
        try:
            profile = _profile(Path(self.get_option("profile")).expanduser())
            devices = _asked(profile, timeout_s)
            at_s = time.time()
            _keep(kept, profile["url"], at_s, devices)
        except ControllerAway as away:
            devices, at_s = self._kept(kept, profile["url"], str(away))
        for device in devices:
            self._add(device, max(0, int(time.time() - at_s)))

    def _kept(self, path: Path, url: str, why: str) -> tuple[list[Any], float]:
        """What the controller said last."""
        try:
            document = json.loads(path.read_bytes())
            if document["url"] != url:
                raise AnsibleParserError(
                    f"{why}; what '{path}' keeps is of another controller, {document['url']}"
                )
            devices, at_s = document["devices"], float(document["at_s"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AnsibleParserError(f"{why}; and nothing is kept of it in '{path}': {error}") from error
        age_h = (time.time() - at_s) / 3600
        self.display.warning(f"{why}; the inventory is what it said {age_h:.1f} hours ago")
        return devices, at_s

    def _add(self, device: Any, age_s: int) -> None:
        try:
            name, facts = device["name"], {f"appliance_{key}": device[key] for key in TOLD}
            drift = drift_of(device)
        except (KeyError, TypeError) as error:
            raise AnsibleParserError(
                f"the controller told of a device without {error}; is it another release?"
            ) from error
        if facts["appliance_state"] == "revoked":
            return
        if not NAME.fullmatch(str(name)) or _leads_elsewhere(name):
            self.display.warning(
                f"device {name!r} is left out: as a host's name that could be another machine"
            )
            return
        host = f"{name}{self.get_option('suffix')}"
        self.inventory.add_host(host)
        facts |= {"appliance_device": name, "appliance_drift": drift, "appliance_facts_age_s": age_s}
        for (
            key,
            value,
        ) in facts.items():  # none of them is a template: only what the control node's own files say is one
            self.inventory.set_variable(host, key, value)
        for prefix, key in (("fleet", "appliance_group"), ("state", "appliance_state")):
            group = self._sanitize_group_name(f"{prefix}_{facts[key]}")
            self.inventory.add_host(host, group=self.inventory.add_group(group))
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), facts, host, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), facts, host, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), facts, host, strict=strict)


def _leads_elsewhere(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.replace(".", "").isdigit()
    return True


def _profile(path: Path) -> dict[str, str]:
    try:
        document = json.loads(path.read_bytes())
        return {key: str(document[key]) for key in ("url", "token", "authority")}
    except FileNotFoundError as error:
        raise AnsibleParserError(
            f"profile: '{path}' is not there; 'appliance fleet login URL' writes it, APPLIANCE_CONTROLLER names another"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AnsibleParserError(f"profile: '{path}' cannot be read ({error}); log in again") from error


def _asked(profile: dict[str, str], timeout_s: int) -> list[Any]:
    """The devices, from the controller."""
    place = urlsplit(profile["url"])
    if place.scheme != "https" or not place.hostname:
        raise AnsibleParserError(f"profile: '{profile['url']}' is no URL of a controller: https://HOST:PORT")
    context = ssl.create_default_context(cadata=profile["authority"] or None)
    connection = http.client.HTTPSConnection(
        place.hostname, place.port or 443, timeout=timeout_s, context=context
    )
    try:
        connection.request("GET", "/api/v1/devices", headers={"Authorization": f"Bearer {profile['token']}"})
        answer = connection.getresponse()
        data = answer.read(MOST_BYTES + 1)
    except ssl.SSLCertVerificationError as error:
        raise AnsibleParserError(
            f"who answers at {profile['url']} is not the controller: {error.verify_message}; log in with its authority"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise ControllerAway(f"the controller at {profile['url']} does not answer ({error})") from error
    finally:
        connection.close()
    if answer.status in (401, 403):
        raise AnsibleParserError(f"the controller at {profile['url']} refuses the token; log in again")
    if answer.status != 200 or len(data) > MOST_BYTES:
        raise ControllerAway(f"what answers at {profile['url']} tells no devices (status {answer.status})")
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ControllerAway(f"what answers at {profile['url']} is no controller") from error
    if not isinstance(found, list):
        raise ControllerAway(f"what answers at {profile['url']} is no controller")
    return found


def _keep(path: Path, url: str, at_s: float, devices: list[Any]) -> None:
    """Keep what was said: whole, or as it was before."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"url": url, "at_s": at_s, "devices": devices}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
