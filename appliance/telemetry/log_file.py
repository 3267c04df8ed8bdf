"""What the log is written to: standard error, or a file that is moved away when it is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from appliance.config.telemetry import LogConfig
from appliance.domain.errors import OperatorError
from appliance.telemetry.sink import DescriptorTarget, FileTarget, Target

STDERR: Final = 2


def file_problems(file: str) -> Iterator[str]:
    """What keeps ``file`` from being appended to and, unless it is a device or a pipe, from being moved away when it is
    full. Creates nothing; empty is standard error."""
    if not file:
        return
    folder = os.path.dirname(file) or "."
    moved = os.path.isfile(file) or not os.path.exists(file)
    if os.path.isdir(file):
        yield f"'{file}' is a directory; give the name of a file in it"
    elif moved and not os.path.isdir(folder):
        yield f"directory '{folder}' does not exist; make it, or give a file in another one"
    elif moved and not os.access(folder, os.W_OK | os.X_OK):
        yield f"directory '{folder}' is not writable; allow it, or give a file in another one"
    elif os.path.exists(file) and not os.access(file, os.W_OK):
        yield f"'{file}' is not writable; allow it, or give another file"


def target_of(config: LogConfig) -> Target:
    """What the configuration says. Raises OperatorError where the file cannot be opened."""
    if not config.file:
        return DescriptorTarget(STDERR)
    try:
        return FileTarget(Path(config.file), config.max_file_bytes)
    except OSError as error:
        raise OperatorError(
            f"log file '{config.file}' cannot be opened: {error.strerror}; change log.file in the configuration"
        ) from error
