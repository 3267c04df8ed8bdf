"""Ask for a factory reset: the next start erases what the box kept, all of it or all but its models.

The request for all of it is the firmware's variable that systemd-repart knows; it outlives what is erased. The milder
one is a file among what is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from appliance.domain.errors import OperatorError
from appliance.durable import sync_name

VARIABLE: Final = "sys/firmware/efi/efivars/FactoryReset-8cf2644b-4b0b-428f-9387-6d876050dc67"
SETTINGS: Final = "var/lib/appliance-image/reset-settings"
_KEPT_BY_FIRMWARE: Final = (0x7).to_bytes(4, "little")
"""Kept without power, readable while the machine starts and while it runs."""


def ask(root: Path = Path("/"), *, keep_models: bool) -> None:
    """Leave the request. Raises OperatorError where it cannot be kept."""
    path = root / (SETTINGS if keep_models else VARIABLE)
    try:
        if keep_models:
            path.touch()
            sync_name(path)
        else:
            path.write_bytes(_KEPT_BY_FIRMWARE + "t".encode("utf-16-le"))
    except OSError as error:
        raise OperatorError(f"the request cannot be left in '{path}': {error.strerror}") from error
