"""How much memory there is for models."""

from __future__ import annotations

from typing import NamedTuple


class Budget(NamedTuple):
    """So many bytes of ``device`` are for models: ``configured`` by an operator, or what the machine has."""

    device: str
    bytes: int
    configured: bool = False
