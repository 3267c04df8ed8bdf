"""The collection where Ansible looks for it, and Ansible itself in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BIN: Final = ROOT / ".venv-ansible" / "bin"
INSTALLED: Final = (BIN / "ansible-playbook").exists()
NOT_INSTALLED: Final = "Ansible is not installed here: make install-ansible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ansible:
    """Ansible's commands, with the collection below ``folder`` and nothing of this machine's own configuration."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def below(cls, folder: Path, **variables: str) -> Ansible:
        """Lay the collection out below an empty ``folder``; its commands see these ``variables``."""
        place = folder / "ansible_collections" / "edge"
        place.mkdir(parents=True)
        (place / "appliance").symlink_to(ROOT / "ansible")
        return cls(folder=folder, variables=variables)

    @property
    def environment(self) -> dict[str, str]:
        """What its commands see."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(self.folder),
            "ANSIBLE_HOME": str(self.folder / ".ansible"),
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_PYTHON_INTERPRETER": "auto_silent",
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s",
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            **self.variables,
        }

    def run(
        self, *words: str, cwd: Path | None = None, check: bool = True, limit_s: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run one; where it fails, so does this, with all that it said."""
        environment = self.environment
        environment["PATH"] = f"{BIN}:{environment['PATH']}"
        done = subprocess.run(
            [str(BIN / words[0]), *words[1:]], env=environment, cwd=cwd or self.folder, capture_output=True,
            text=True, timeout=limit_s, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}{done.stderr}"
        return done
