"""What a version is made of."""

from __future__ import annotations

from enum import StrEnum


class Artifact(StrEnum):
    """What a version runs from: its files as they came, or what was made of them on this box. Blame for a made one is
    not the version's."""

    AS_PACKAGED = "as packaged"
    PACKED = "packed"
