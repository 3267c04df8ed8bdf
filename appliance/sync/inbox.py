"""What a person's command leaves for the agent that runs: answers of the controller that came by hand, already checked.

One file for each, with its name when it is whole. The agent looks at each as at an answer over the link, and removes
it; it does so before it clears away what was carried here and is not wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from appliance.domain.digest import digest_of, is_digest
from appliance.durable import Folder, ensure_directory, read_whole, remove_file, replace_file
from appliance.fleet.messages import ANSWER_BYTES_MAX, Acknowledged, Polled

INBOX: Final = "inbox"
_ARRIVING: Final = "arriving"


class Delivery(Struct, frozen=True, array_like=True):
    """An answer to a poll, and what the controller has of our telemetry."""

    polled: Polled
    acknowledged: Annotated[tuple[Acknowledged, ...], Meta(max_length=4096)] = ()


def deliver(folder: Folder, delivery: Delivery) -> None:
    """Leave it for the agent, whose ``folder`` this is. Raises OSError."""
    ensure_directory(folder, INBOX)
    data = msgspec.msgpack.encode(delivery)
    replace_file(folder, f"{INBOX}/{digest_of(data)}", f"{INBOX}/{_ARRIVING}", data)


def deliveries(folder: Folder) -> Iterator[tuple[str, Delivery]]:
    """What was left, each with its name for ``remove``. What cannot be read is removed. Raises OSError."""
    if folder.status(INBOX) is None:
        return
    for name in folder.names(INBOX):
        if not is_digest(name):
            continue
        data = read_whole(folder, f"{INBOX}/{name}", 2 * ANSWER_BYTES_MAX)
        try:
            yield name, msgspec.msgpack.decode(data or b"", type=Delivery)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            remove(folder, name)


def remove(folder: Folder, name: str) -> None:
    """It was looked at, whatever came of it. Raises OSError."""
    remove_file(folder, f"{INBOX}/{name}")
    folder.sync_directory(INBOX)
