"""A version's trial in words, from ``trial`` in ``/status.json``. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def trial_words(fields: Mapping[str, Any]) -> Iterator[str]:
    """Which requests are its own, and what was seen of it so far; nothing of what there is none of."""
    if fields["percent"]:
        header = str(fields.get("header", ""))
        share, of = f"{fields['percent']:g} %", f"clients by {header}" if header else "requests"
        yield f"requests with {header}" if ":" in header else f"{share} of the {of}"
    if fields["compared"]:
        yield f"{fields['compared']} answers compared, {fields['differing']} different"
    if fields["answered"] or fields["failed"]:
        yield f"{fields['answered']} answered, {fields['failed']} failed"
