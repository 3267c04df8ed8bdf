"""What the agent notes for itself across restarts: with which wish it asked for what, the settings in force, contacts.

One file, replaced whole. It may be lost: then a version that failed is at worst tried once more, and settings are taken
from the document anew.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct, structs

from appliance.durable import Folder, read_whole, replace_file
from appliance.fleet.documents import Setting
from appliance.sync.freshness import Contact, Instant, heard
from appliance.sync.signed_metadata import Refused

FILE: Final = "agent.json"
TEMPORARY: Final = "agent.new"
BYTES_MAX: Final = 8 << 20


class Progress(Struct, frozen=True, kw_only=True):
    """See the module. ``asked`` is by ``NAME/VERSION``. ``clock_ahead_ms``: how far the controller's clock was ahead of
    the box's at the last contact; ``problem``: why not all that came was taken."""

    asked: dict[str, str] = {}
    settings: dict[str, Setting] = {}
    contact: Contact = Contact()
    clock_ahead_ms: int = 0
    problem: str = ""


def read(folder: Folder) -> Progress:
    """What was noted; nothing where that is lost or cannot be read. Raises OSError."""
    data = read_whole(folder, FILE, BYTES_MAX)
    try:
        return msgspec.json.decode(data, type=Progress) if data else Progress()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Progress()


def after_answer(progress: Progress, refused: Refused | None, now: Instant, *, rose: bool) -> Progress:
    """With an answer of the controller, from afar or carried here, of which all was taken but what was ``refused``;
    ``rose``: the timestamp got a higher version."""
    if refused is not None:
        return structs.replace(progress, problem=f"{refused.code}: {refused.text}")
    return structs.replace(progress, contact=heard(progress.contact, now, rose=rose), problem="")


def keep(folder: Folder, progress: Progress) -> None:
    """Note it, for good. Raises OSError."""
    replace_file(folder, FILE, TEMPORARY, msgspec.json.encode(progress))
