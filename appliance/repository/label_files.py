"""Class labels of outputs: one per line, UTF-8, in a file of the model's directory, read once for all that name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from appliance.domain.errors import ArtefactError
from appliance.repository.findings import Findings
from appliance.repository.model_files import ModelHome
from appliance.repository.tensor_config import TensorConfig


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
        except ArtefactError as error:
            findings.problem(output.label_place, f"'{output.label_file}' {error}")
    return labels


def _lines(data: bytes) -> tuple[str, ...]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArtefactError(f"is not UTF-8 text (byte {error.start})") from error
    lines = tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
    if not any(lines):
        raise ArtefactError("holds no label")
    return lines
