"""The roots of a controller: the newest, to be changed by a ceremony elsewhere, and the next one that came of it.

A root that changes the controller's keys has every document signed anew, each with the next generation: boxes believe
none that the keys before have signed, once they follow the root.
"""

from __future__ import annotations

from pathlib import Path

from appliance.controller import tables
from appliance.controller.by_hand import Desk
from appliance.controller.home import LOCK
from appliance.controller.root import root_plan, root_status
from appliance.domain.errors import OperatorError, StoreBusy
from appliance.durable import WriterLock


def newest_root(desk: Desk) -> tuple[int, bytes]:
    """Its version and its bytes."""
    with desk.store.transaction() as rows:
        found = rows.all(tables.roots)[-1]
    return int(found.version), bytes(found.data)


def publish_root(desk: Desk, folder: Path, root: bytes, who: str, now_ms: int) -> int:
    """Have boxes follow ``root``, which comes after the newest; gives how many documents are signed anew. The
    controller in ``folder`` does not run meanwhile: it knows its keys from its start. Raises OperatorError; then
    nothing changed."""
    try:
        lock = WriterLock(folder / LOCK)
    except StoreBusy as error:
        raise OperatorError(f"the controller in '{folder}' runs; stop it while its root changes") from error
    try:
        _, newest = newest_root(desk)
        status = root_status(root, newest)
        if not status.complete:
            raise OperatorError(
                f"root {status.version} lacks signatures: {status.missing} of its own keys, {status.missing_previous} "
                "of those before; see 'appliance fleet root show'"
            )
        before, plan = root_plan(newest), root_plan(root)
        ours = {role: key.keyid for role, key in desk.keys.public().items()}
        if {role: key.keyid for role, key in plan.online.items()} != ours:
            raise OperatorError(
                f"root {status.version} names other keys than those in '{folder / 'keys'}'; put its keys there first"
            )
        changed = {role: key.keyid for role, key in before.online.items()} != ours
        with desk.store.transaction() as rows:
            rows.put(tables.roots, version=status.version, data=root)
            rows.note(now_ms, who, "root published", version=status.version, keys_changed=changed)
            return rows.change(tables.devices, {}, document=b"", revision=-1) if changed else 0
    finally:
        lock.release()
