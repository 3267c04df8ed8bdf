"""One model read for a source: what trips its reader is that model's problem alone.

``read_model_directory`` raises nothing for what is in a directory, and hostile files look for the place where that is
not true. So whatever it does raise is told as what is wrong with the one model, and all others are served.
"""

from __future__ import annotations

import traceback

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import Problem
from appliance.repository.model_directory import (
    BrokenVersion,
    ModelReading,
    printable,
    read_model_directory,
)


def read_model(
    root: str, entry: str, settings: RepositoryConfig, config: bytes | None = None
) -> ModelReading | None:
    """As ``read_model_directory``, which says what it takes and gives."""
    try:
        return read_model_directory(root, entry, settings, config)
    except Exception as error:  # noqa: BLE001  a defect ends the reading of its own model
        name = printable(entry)
        problem = Problem(
            file=name, key="", text=f"cannot be read, for a reason that nobody foresaw: {_words(error)}"
        )
        return ModelReading(broken=(BrokenVersion(name=name, version="", problems=(problem,)),))


def _words(error: Exception) -> str:
    """What was raised, and where, for the log."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = "".join(traceback.format_exception_only(error)).strip()
    return f"{what[:500]} (in {last.name}, line {last.lineno})"
