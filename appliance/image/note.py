"""What the boot gate has to tell of a start that failed: a text in the state directory, which the version before finds.

It says what became of a version of the image, until a start passes; the agent tells it to the fleet.
"""

from __future__ import annotations

from pathlib import Path

from appliance.durable import sync_name
from appliance.store.layout import MACHINE

TEXT_MAX = 1024


def leave(state: Path, text: str) -> None:
    """Leave the text in the place of the one before. Raises OSError."""
    draft = state / f"{MACHINE}.new"
    draft.write_text(text[:TEXT_MAX], encoding="utf-8")
    draft.chmod(0o644)  # the gate is root's, the agent is not
    draft.replace(state / MACHINE)
    sync_name(state / MACHINE)


def remove(state: Path) -> None:
    """There is nothing to tell any more. Raises OSError."""
    (state / MACHINE).unlink(missing_ok=True)
