"""The golden set of a version on disk: found, read, and held against what the version serves.

A set in the version's own directory counts, else the one in the model's home. The digest of the tensor file is left to
the worker, which reads the file anyway.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePosixPath

from appliance.domain.errors import ArtefactError, ModelInvalid
from appliance.domain.golden import SET_BYTES_MAX, SET_FILE, TENSORS_NAME, decode_golden, misfits
from appliance.repository.agreement import Agreement
from appliance.repository.findings import Findings, Place
from appliance.repository.model_files import ModelFile, ModelHome


def golden_files(
    home: ModelHome, version: PurePosixPath, name: str, agreement: Agreement, findings: Findings
) -> tuple[ModelFile, ...]:
    """``set.json`` and ``tensors.bin`` of the version in the directory ``version`` of the model ``name``; none when it
    has no golden set. What is wrong with them is a problem."""
    for relative in (version / SET_FILE, PurePosixPath(SET_FILE)):
        if os.path.lexists(os.path.join(home.path, relative)):
            return tuple(_read(home, relative, name, agreement, findings))
    return ()


def _read(
    home: ModelHome, relative: PurePosixPath, name: str, agreement: Agreement, findings: Findings
) -> Sequence[ModelFile]:
    place = Place(file=f"{name}/{relative}")
    try:
        file = home.file(relative)
        golden = decode_golden(file.read(SET_BYTES_MAX), place.file)
    except ModelInvalid as error:
        for problem in error.problems:
            findings.problem(Place(file=problem.file, key=problem.key), problem.text)
        return ()
    except ArtefactError as error:
        findings.problem(place, str(error))
        return ()
    for text in misfits(golden, agreement.inputs, agreement.outputs, agreement.max_batch_size):
        findings.problem(place, text)
    beside = relative.with_name(TENSORS_NAME)
    try:
        tensors = home.file(beside)
        if tensors.size != golden.tensors_bytes:
            raise ArtefactError(f"has {tensors.size} bytes; {place.file} says {golden.tensors_bytes}")
    except ArtefactError as error:
        findings.problem(Place(file=f"{name}/{beside}"), str(error))
        return ()
    return file, tensors
