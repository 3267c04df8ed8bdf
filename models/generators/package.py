"""What a generated model is as values, and the one place where it becomes files.

A package is complete in memory before anything is written, so a builder that fails leaves no half model behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Expectation(Enum):
    """What must become of a sample model when a server reads its directory."""

    SERVES = "serves"
    UNSERVABLE_TYPE = "loads in the runtime, but has an input or output that is not a tensor: refuse it"
    CONFIG_DISAGREES = "loads in the runtime, but its config.pbtxt contradicts the graph: refuse it"
    RUNTIME_REFUSES = "the runtime cannot load it"
    UNSAFE_PATH = "reaches for a file outside its own directory: refuse it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPackage:
    """The files of one model version. `side_files` are paths relative to the version directory."""

    model: bytes
    config: str | None = None
    side_files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleModel:
    """A model that can be made on demand; `summary` is one line for people."""

    name: str
    summary: str
    build: Callable[[], ModelPackage]
    expectation: Expectation = Expectation.SERVES


def write_package(package: ModelPackage, name: str, root: Path, *, version: int = 1) -> Path:
    """Write the files under `root/name/` and return that directory; existing files are replaced."""
    home = root / name
    release = home / str(version)
    release.mkdir(parents=True, exist_ok=True)
    (release / "model.onnx").write_bytes(package.model)
    for relative, content in package.side_files.items():
        (release / relative).write_bytes(content)
    if package.config is not None:
        (home / "config.pbtxt").write_text(package.config, encoding="utf-8")
    return home
