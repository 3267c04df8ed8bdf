"""Models that lie where none is looked for, and where they belong.

A model is ``NAME/VERSION/model.onnx`` below the directory of models. What is told here is shown to clients as well, so
it names places below that directory alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from appliance.domain.errors import ArtefactError
from appliance.repository.model_files import ModelHome
from appliance.repository.onnx.foreign import HEAD_BYTES, foreign_format

SUFFIX: Final = ".onnx"
LOOKED_AT: Final = 100
"""Entries of a directory that is no model: more tell no more."""

_NUMBER: Final = re.compile(r"[0-9]+")
_LIKE_A_VERSION: Final = re.compile(r"(?i:v|ver|version)[._-]?0*([1-9][0-9]{0,18})")


def misplaced_file(root: str, name: str) -> str:
    """Say where the ONNX file ``name`` belongs, which lies in the directory of models itself."""
    if _NUMBER.fullmatch(os.path.basename(root)):
        return _two_too_deep(root)
    stem = name.removesuffix(SUFFIX)
    return f"lies in the directory of models itself; move it to {stem}/1/model.onnx there"


def misplaced(root: str, name: str, listing: Collection[str]) -> str:
    """Say what is wrong with the places of what lies in ``root/name``, which has neither a configuration nor a version
    directory and holds ``listing``; "" where no model lies there."""
    looked_at = sorted(listing)[:LOOKED_AT]
    file = next((entry for entry in looked_at if entry.endswith(SUFFIX)), "")
    if _NUMBER.fullmatch(name) and file:
        model = os.path.basename(root)
        return f"is a version of the model '{model}'; give the directory that holds '{model}' as --models"
    if file:
        return f"holds {file} itself; move it to {name}/1/model.onnx"
    for entry in looked_at:
        found = _LIKE_A_VERSION.fullmatch(entry)
        if found and any(_names(os.path.join(root, name, entry))):
            return (
                f"has '{entry}' where a version directory is a number alone; rename it to {name}/{found[1]}"
            )
    models = [entry for entry in looked_at if _is_model(os.path.join(root, name, entry))]
    if models:
        shown = ", ".join(models[:3]) + (", ..." if len(models) > 3 else "")
        return f"holds models ({shown}) and is none; move them up, or give '{name}' below it as --models"
    return ""


def in_its_place(home: ModelHome, directory: PurePosixPath) -> str:
    """Say what the version's ``directory`` holds in the place of its model's file; "" where nothing is recognised."""
    for name in sorted(_names(os.path.join(home.path, directory)))[:LOOKED_AT]:
        if name.endswith(SUFFIX):
            return f'there is {name}: rename it, or have config.pbtxt say default_model_filename: "{name}"'
        if name.endswith(".savedmodel"):
            return f"{name} is a TensorFlow SavedModel; convert it with 'python -m tf2onnx.convert --saved-model'"
        try:
            with home.file(directory / name).open() as descriptor:
                foreign = foreign_format(os.pread(descriptor, HEAD_BYTES, 0))
        except (ArtefactError, OSError):
            continue
        if foreign:
            return f"{name} is {foreign}"
    return ""


def _two_too_deep(root: str) -> str:
    model = os.path.basename(os.path.dirname(root))
    return f"is the file of a version of the model '{model}'; give the directory that holds '{model}' as --models"


def _is_model(path: str) -> bool:
    names = list(_names(path))
    return "config.pbtxt" in names or any(
        _NUMBER.fullmatch(name) and any(_onnx_files(os.path.join(path, name))) for name in names[:LOOKED_AT]
    )


def _onnx_files(path: str) -> Iterator[str]:
    return (name for name in _names(path) if name.endswith(SUFFIX))


def _names(path: str) -> Sequence[str]:
    """The entries of a directory that is no link; none where it cannot be listed."""
    try:
        return [] if os.path.islink(path) else os.listdir(path)
    except OSError:
        return []
