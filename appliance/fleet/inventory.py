"""What boxes say that they are made of, as it is kept of them: within bounds, whatever a box says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from appliance.fleet.records import Inventory, RecordInvalid, decode

FACTS_MAX: Final = 64
CHARACTERS_MAX: Final = 256
BOOT: Final = "boot"
"""The fact that tells one start of a machine from another: no two say the same."""
KIND: Final = b"\xa9inventory"
"""The kind of the record in msgpack, behind the byte that begins an array."""


def bounded(facts: Mapping[str, str]) -> dict[str, str]:
    """The first of the ``facts``, cut to what is kept."""
    kept = islice(facts.items(), FACTS_MAX)
    return {name[:CHARACTERS_MAX]: fact[:CHARACTERS_MAX] for name, fact in kept}


def newest(records: Sequence[bytes]) -> dict[str, str] | None:
    """What the last of the ``records`` that tells it says; None: none does."""
    for data in reversed(records):
        if not data.startswith(KIND, 1):
            continue
        try:
            record = decode(data)
        except RecordInvalid:
            continue
        if isinstance(record, Inventory):
            return bounded(record.facts)
    return None
