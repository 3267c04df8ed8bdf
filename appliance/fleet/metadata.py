"""Signed metadata of the fleet: the roles of TUF, what each may weigh, the names in it, what is read out of it. Values
only; nothing here decides what is trusted (``appliance.sync.trust``) or signs (``appliance.controller.signing``).

Each device has a repository of its own with one target, its desired state. ``root`` is the same for the whole fleet.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from appliance.fleet.documents import Count

ROOT: Final = "root"
TIMESTAMP: Final = "timestamp"
SNAPSHOT: Final = "snapshot"
TARGETS: Final = "targets"
ONLINE_ROLES: Final = (TARGETS, SNAPSHOT, TIMESTAMP)
"""Those whose keys the controller holds, in the order in which they are signed."""

DESIRED: Final = "desired"
"""The one target: the document of ``appliance.fleet.documents``."""
PACKAGE_KEYS: Final = "x-package-keys"
"""The field of ``root`` with the keys that packages may be signed with, by key id."""

ROOT_BYTES_MAX: Final = 512_000
TIMESTAMP_BYTES_MAX: Final = 16 << 10
SNAPSHOT_BYTES_MAX: Final = 32 << 10
TARGETS_BYTES_MAX: Final = 64 << 10
KEYS_MAX: Final = 64
"""Of one role, and of packages."""
ROOTS_PER_ANSWER_MAX: Final = 256

TIMESTAMP_PERIOD_S: Final = 24 * 3600
"""How often the controller signs the timestamp anew, with a higher version, though nothing else changed."""


class Counters(Struct, frozen=True, kw_only=True):
    """The versions of a device's metadata, as both sides count them; 0: none. ``targets`` is the generation."""

    timestamp: Count = 0
    snapshot: Count = 0
    targets: Count = 0
