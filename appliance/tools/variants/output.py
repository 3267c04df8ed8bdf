"""Variants on disk: the next version numbers of the original's home, or homes of their own.

A version directory is complete before it has its name, so that a server that watches the home never sees half of one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from appliance.domain.golden import (
    GOLDEN_DIRECTORY,
    Tolerance,
    VariantMark,
    read_golden,
    read_tensors,
    write_golden,
)
from appliance.repository.model_directory import CONFIG_FILE
from appliance.tools.subject import Subject

MODEL_FILE: Final = "model.onnx"


def next_version(home: str) -> int:
    """A number above those that the home's versions have."""
    numbers = [int(name) for name in os.listdir(home) if name.isascii() and name.isdigit()] if home else []
    return max(numbers, default=0) + 1


def write_variant(
    subject: Subject,
    method: str,
    file: str,
    target: str,
    number: int,
    tolerances: Mapping[str, Tolerance],
    servable: bool,
) -> str:
    """Put the variant in ``file`` into the model's directory ``target`` as version ``number``, with the golden set of
    the original, held to ``tolerances`` where given and marked as ``servable`` or not. Gives the version's directory.
    Raises OSError and what reading the golden set raises."""
    golden = read_golden(subject.version.golden)
    tensors = bytes(read_tensors(subject.version.golden, golden))
    mark = VariantMark(of=subject.version.key, method=method, servable=servable)
    os.makedirs(target, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f".{number}.", dir=target)
    try:
        name = subject.version.model_file if subject.home else MODEL_FILE
        shutil.copyfile(file, os.path.join(folder, name))
        beside = f"{file}.data"
        if os.path.exists(beside):
            shutil.copyfile(beside, os.path.join(folder, os.path.basename(beside)))
        write_golden(
            os.path.join(folder, GOLDEN_DIRECTORY),
            replace(golden, tolerances={**golden.tolerances, **tolerances}, variant=mark),
            tensors,
        )
        os.chmod(folder, 0o755)
        path = os.path.join(target, str(number))
        os.rename(folder, path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return path


def copy_home(subject: Subject, target: str) -> None:
    """What the variants' own home ``target`` needs beside its versions: configuration, labels, warm-up data."""
    if not subject.home:
        return
    files = [
        CONFIG_FILE,
        *subject.version.label_files.values(),
        *(
            os.path.relpath(each.file, subject.home)
            for warmup in subject.version.warmups
            for each in warmup.inputs
            if each.file
        ),
    ]
    for relative in files:
        source = Path(subject.home, relative)
        if source.is_file():
            place = Path(target, relative)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)  # a link that lies there would lead the bytes elsewhere
            shutil.copyfile(source, place)
