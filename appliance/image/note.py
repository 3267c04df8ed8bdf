"""What the machine has to tell the fleet: a text in the state directory, which the agent finds there.

One says what became of a version of the image, until a start passes; another why a configuration that the box was given
is not in force, until one is.
"""

from __future__ import annotations

from pathlib import Path

from appliance.durable import sync_name
from appliance.store.layout import MACHINE

TEXT_MAX = 1024


def leave(state: Path, text: str, name: str = MACHINE) -> None:
    """Leave the text in the place of the one before. Raises OSError."""
    draft = state / f"{name}.new"
    draft.write_text(text[:TEXT_MAX], encoding="utf-8")
    draft.chmod(0o644)  # it is root's, the agent is not
    draft.replace(state / name)
    sync_name(state / name)


def remove(state: Path, name: str = MACHINE) -> None:
    """There is nothing to tell any more. Raises OSError."""
    (state / name).unlink(missing_ok=True)
