"""Files beside a model file that belong to a version: tensors, golden set, class labels.

Found in the model's own directory, and held against what the version serves. The digest of a golden set's tensor file
is left to the worker, which reads the file anyway.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Final

from appliance.domain.errors import ArtefactError, ModelInvalid
from appliance.domain.golden import (
    GOLDEN_DIRECTORY,
    SET_BYTES_MAX,
    SET_FILE,
    TENSORS_NAME,
    decode_golden,
    misfits,
)
from appliance.repository.agreement import Agreement
from appliance.repository.findings import Findings, Place
from appliance.repository.model_files import ModelFile, ModelHome
from appliance.repository.onnx.firewall import reference_flaws
from appliance.repository.onnx.summary import GraphSummary
from appliance.repository.tensor_config import TensorConfig

FOREIGN_FILES_MAX: Final = 1_000
"""They are looked at on every look at the models; formats have a handful."""


def external_files(
    graph: GraphSummary, home: ModelHome, start: PurePosixPath, place: Place, findings: Findings
) -> tuple[ModelFile, ...]:
    """The distinct files that tensors of the graph refer to, looked for from ``start``; of each location the
    first thing that is wrong is a problem."""
    found: dict[str, ModelFile] = {}

    def size_of(location: str) -> int:
        found[location] = home.file(PurePosixPath(location), start=start, links=False)
        return found[location].size

    for flaw in reference_flaws(graph, size_of):
        findings.problem(place, str(flaw))
    return tuple({file.path: file for file in found.values()}.values())


def foreign_files(home: ModelHome, version: PurePosixPath) -> tuple[ModelFile, ...]:
    """The files of a version whose format is not read here, but for its golden set: all that a worker can read below
    its directory, by name, FOREIGN_FILES_MAX at most. What is no file of the model is the runtime's to refuse."""
    found: list[ModelFile] = []
    waiting = [version]
    while waiting and len(found) < FOREIGN_FILES_MAX:
        folder = waiting.pop()
        with suppress(OSError), os.scandir(os.path.join(home.path, folder)) as entries:
            for entry in sorted(islice(entries, FOREIGN_FILES_MAX), key=attrgetter("name")):
                if not entry.is_dir(follow_symlinks=False):
                    with suppress(ArtefactError):
                        found.append(home.file(folder / entry.name))
                elif (folder, entry.name) != (version, GOLDEN_DIRECTORY):
                    waiting.append(folder / entry.name)
    return tuple(found[:FOREIGN_FILES_MAX])


def golden_files(
    home: ModelHome, version: PurePosixPath, name: str, agreement: Agreement, findings: Findings
) -> tuple[ModelFile, ...]:
    """``set.json`` and ``tensors.bin`` of the version in the directory ``version`` of the model ``name`` ("": of a file
    alone); none when it has no golden set. What is wrong with them is a problem."""
    for relative in (version / SET_FILE, PurePosixPath(SET_FILE)):
        if os.path.lexists(os.path.join(home.path, relative)):
            return tuple(_golden_pair(home, relative, name, agreement, findings))
    return ()


def _golden_pair(
    home: ModelHome, relative: PurePosixPath, name: str, agreement: Agreement, findings: Findings
) -> Sequence[ModelFile]:
    place = Place(file=str(PurePosixPath(name) / relative))
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
        findings.problem(Place(file=str(PurePosixPath(name) / beside)), str(error))
        return ()
    return file, tensors


def read_labels(
    outputs: Sequence[TensorConfig], home: ModelHome, max_bytes: int, findings: Findings
) -> Mapping[str, tuple[str, ...]]:
    """Output name to labels, for the outputs that name a file; what cannot be used is a problem."""
    labels: dict[str, tuple[str, ...]] = {}
    of_file: dict[PurePosixPath, tuple[str, ...]] = {}
    for output in outputs:
        if not output.label_file:
            continue
        path = PurePosixPath(output.label_file)
        try:
            if path not in of_file:
                of_file[path] = _lines(home.file(path).read(max_bytes))
            labels[output.name] = of_file[path]
            if not any(of_file[path]):
                findings.note(
                    output.section.place("label_filename"),
                    f"'{output.label_file}' holds no label: classes are told without one",
                )
        except ArtefactError as error:
            findings.problem(output.section.place("label_filename"), f"'{output.label_file}' {error}")
    return labels


def _lines(data: bytes) -> tuple[str, ...]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArtefactError(f"is not UTF-8 text (byte {error.start})") from error
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
