"""The product's own command line, as modules run it: every decision is made there, and nowhere else."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


CATALOG = "catalog.json"


class Appliance:
    """Runs ``appliance`` commands for a module, and ends the module where one fails."""

    def __init__(self, module: AnsibleModule, state_dir: str = "") -> None:
        self._module = module
        self._program = module.get_bin_path("appliance", required=True)
        self._as_owner = self._words_for(state_dir)

    def _words_for(self, state_dir: str) -> list[str]:
        """A store belongs to one user; what root wrote in it, that user could not read."""
        if not state_dir or os.geteuid() != 0:
            return []
        try:
            owner = os.stat(state_dir)
        except OSError as error:
            self._module.fail_json(msg=f"state_dir: '{state_dir}' cannot be looked at: {error.strerror}")
        if owner.st_uid == 0:
            return []
        return ["setpriv", f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups"]

    def run(self, *words: str) -> str:
        """What it prints."""
        status, out, error = self._module.run_command([*self._as_owner, self._program, *words])
        if status != 0:
            said = " ".join((error or out).split())
            self._module.fail_json(msg=f"appliance {' '.join(words[:2])}: {said}", rc=status)
        return str(out)

    def versions(self, config: str, state_dir: str) -> list[dict[str, Any]]:
        """The versions that are installed in a store, also in one that nothing was installed in yet."""
        if not os.path.exists(os.path.join(state_dir, CATALOG)):
            return []
        found = self.document("model", "list", "--config", config, "--state-dir", state_dir)["versions"]
        return [each for each in found if each["installed_at_ms"]]

    def document(self, *words: str) -> Any:
        """What it prints as JSON."""
        out = self.run(*words, "--json")
        try:
            return json.loads(out)
        except ValueError as error:
            self._module.fail_json(msg=f"appliance {' '.join(words[:2])} printed no JSON: {error}")
