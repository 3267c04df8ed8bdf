"""What the machine has to tell the fleet: a text in the state directory, which the agent finds there.

One says what became of a version of the image, until a start passes; another why a configuration that the box was given
is not in force, until one is. Root writes them in a directory of the service's user, whose daemon may be anybody's by
then: nothing that stands there is followed or written to, and what is made belongs to that user.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from appliance.durable import RealFolder, remove_file, replace_file
from appliance.store.layout import MACHINE

TEXT_MAX = 1024


def leave(state: Path, text: str, name: str = MACHINE) -> None:
    """Leave the text, on one line, in the place of the one before. Raises OSError."""
    shown = "".join(each if each.isprintable() else " " for each in text[:TEXT_MAX])
    with closing(RealFolder(state)) as folder:
        replace_file(folder, name, f".{name}.new", shown.encode(errors="replace"))


def remove(state: Path, name: str = MACHINE) -> None:
    """There is nothing to tell any more. Raises OSError."""
    with closing(RealFolder(state)) as folder:
        remove_file(folder, name)
