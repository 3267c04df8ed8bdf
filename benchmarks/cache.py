"""Where the kit keeps what it installs and makes, outside the repository."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/edge-appliance-bench`, by default under `~/.cache`; created when absent."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(base) / "edge-appliance-bench"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
