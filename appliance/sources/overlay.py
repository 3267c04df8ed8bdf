"""Models that came over the control socket instead of from a source: their files, in a directory of the daemon's own.

A model that is given anew gets a fresh directory, because workers may still map the files of the last one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from appliance.errors import InvalidRequest

FILES_MAX: Final = 1_000
DEPTH_MAX: Final = 4


class Overlay:
    """Directories of given models, removed with ``close``. Calls block."""

    def __init__(self) -> None:
        self._root: Path | None = None

    def put(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write the files of model ``name``, by their paths in its directory; gives the repository that holds it, and
        raises InvalidRequest with all that is wrong with the paths."""
        problems = [text for path in files for text in path_problems(path)]
        if len(files) > FILES_MAX:
            problems.append(f"{len(files)} files are given; at most {FILES_MAX} can be")
        if problems:
            raise InvalidRequest("; ".join(problems))
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="appliance-given-"))
        repository = Path(tempfile.mkdtemp(dir=self._root))
        for path, content in files.items():
            target = repository / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        for entry in (repository, *repository.rglob("*")):
            entry.chmod(0o755 if entry.is_dir() else 0o644)
        self._root.chmod(0o755)
        return repository

    def close(self) -> None:
        """Remove everything."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)


def path_problems(path: str) -> list[str]:
    """What keeps ``path`` from being one of a file inside a model's directory."""
    shown = path[:100]
    parts = PurePosixPath(path).parts
    if not path or "\0" in path or path.startswith("/") or path != "/".join(parts):
        return [f"'{shown}' is no path inside a model's directory, such as 1/model.onnx"]
    if any(part in (".", "..") or part.startswith(".") or len(part) > 128 for part in parts):
        return [f"'{shown}' has a part that begins with '.' or is longer than 128 bytes"]
    if len(parts) > DEPTH_MAX:
        return [f"'{shown}' lies deeper than {DEPTH_MAX} directories"]
    return []
