"""``python -m benchmarks.ansible_scale``: how the role's work grows with the number of hosts.

Plays the configuring half of the role ``appliance`` in check mode for 10, 25 and 50 hosts that are all this machine,
five at a time, so that what is measured is Ansible and the role, and no link. Prints a line of JSON for each number,
with the seconds for each host; they are to be alike.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.ansible.collection import INSTALLED, NOT_INSTALLED, Ansible

HOSTS = (10, 25, 50)
FORKS = 5


def main() -> None:
    """Print the results."""
    if not INSTALLED:
        sys.exit(NOT_INSTALLED)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (lay := folder / "lay").mkdir()
        ansible = Ansible.below(lay)
        (folder / "key.pub").write_text("a key")
        include = {"name": "edge.appliance.appliance", "tasks_from": "configure.yml"}
        variables = {
            "appliance_trusted_keys": [str(folder / "key.pub")],
            "appliance__service": {"changed": False},
        }
        play = {
            "hosts": "all", "connection": "local", "gather_facts": False,
            "tasks": [{"ansible.builtin.include_role": include, "vars": variables}],
        }  # fmt: skip
        (folder / "play.json").write_text(json.dumps([play]))
        for count in HOSTS:
            names = "".join(f"box-{number}," for number in range(count))
            interpreter = f"ansible_python_interpreter={sys.executable}"
            begun = time.monotonic()
            ansible.run(
                "ansible-playbook",
                "--check",
                "-f",
                str(FORKS),
                "-i",
                names,
                "-e",
                interpreter,
                str(folder / "play.json"),
            )
            took = time.monotonic() - begun
            print(
                json.dumps({"hosts": count, "s": round(took, 1), "s_per_host": round(took / count, 3)}),
                flush=True,
            )


if __name__ == "__main__":
    main()
