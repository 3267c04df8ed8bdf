"""Golden cases that a person gives: files with one value per input, or values as ``appliance infer`` takes them."""

from __future__ import annotations

import json
import sys
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from appliance.cli.array import Array, encode, fit_shape, parse_values, plain_array, read_npy
from appliance.cli.failure import CommandFailed, printable
from appliance.cli.infer import build_inputs
from appliance.cli.picture import SUFFIXES, read_picture
from appliance.cli.terminal import print_text
from appliance.domain.errors import system_reason
from appliance.domain.golden import GoldenCase, GoldenSet, TensorFile, write_golden
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, TensorSpec

CASE_FILE_BYTES_MAX: Final = 256 << 20

_NPZ_ERRORS: Final = (
    OSError,
    ValueError,
    AttributeError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading an archive raises that is none, is damaged, or is packed in a way that is not read here."""

Arrays = Mapping[str, Array]


def write_cases(version: ModelVersion, files: Sequence[Path], words: Sequence[str], folder: str) -> int:
    """Write the cases into ``folder`` in the form of a golden set whose answers are not known yet: inputs stand in
    their place. Gives their number. Raises CommandFailed."""
    specs = _full_specs(version)
    file = TensorFile()
    cases = []
    for path in files:
        tensors = tuple(
            file.add(spec.name, spec.datatype, shape, raw)
            for spec, shape, raw in _fitted(specs, _told(read_case(path, specs)), path.name)
        )
        cases.append(GoldenCase(name=path.stem[:200], inputs=tensors, outputs=tensors))
    if words:
        inputs = build_inputs(version.name, specs, words, zero_fill=False)
        _tell(each.note for each in inputs)
        tensors = tuple(file.add(each.name, each.datatype, each.shape, each.raw) for each in inputs)
        cases.append(GoldenCase(name="given", inputs=tensors, outputs=tensors))
    write_golden(folder, GoldenSet(cases=tuple(cases), tolerances={}), file.data())
    return len(cases)


def _told(arrays: Arrays) -> Arrays:
    """The arrays; what was changed of them is told."""
    _tell(each.note for each in arrays.values())
    return arrays


def _tell(notes: Iterable[str]) -> None:
    for note in filter(None, notes):
        print_text(printable(note), sys.stderr)


def read_case(path: Path, specs: Sequence[TensorSpec]) -> Arrays:
    """The values in a .npz or .json file by input, or those of the only input in a .npy file or a picture."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _read_npz(path)
    if suffix == ".json":
        return _read_json(path)
    if len(specs) != 1:
        raise CommandFailed(
            f"'{path}' can be a case of a model with one input only; for {len(specs)} inputs give .npz or .json files"
        )
    if suffix == ".npy":
        return {specs[0].name: read_npy(path)}
    if suffix in SUFFIXES:
        return {specs[0].name: read_picture(path, specs[0].shape, specs[0].name)}
    raise CommandFailed(
        f"'{path}' is neither .npz, .json, .npy nor a picture ({', '.join(sorted(SUFFIXES))})"
    )


def _full_specs(version: ModelVersion) -> Sequence[TensorSpec]:
    """Inputs with the batch dimension, as a client sees them."""
    if not version.max_batch_size:
        return version.inputs
    return tuple(
        TensorSpec(name=spec.name, datatype=spec.datatype, shape=(FREE, *spec.shape), optional=spec.optional)
        for spec in version.inputs
    )


def _fitted(specs: Sequence[TensorSpec], arrays: Arrays, file: str) -> list[tuple[TensorSpec, Any, bytes]]:
    known = {spec.name: spec for spec in specs}
    for name in arrays:
        if name not in known:
            raise CommandFailed(
                f"'{file}' has '{name}', which is no input of the model; it has {', '.join(known)}"
            )
    fitted = []
    for name, array in arrays.items():
        spec = known[name]
        fitted.append((spec, fit_shape(array, spec.shape, name), encode(array, spec.datatype, name)))
    return fitted


def _read_npz(path: Path) -> Arrays:
    import numpy

    try:
        with zipfile.ZipFile(path) as members:
            unfolded = sum(member.file_size for member in members.infolist())
        if max(unfolded, path.stat().st_size) > CASE_FILE_BYTES_MAX:
            raise CommandFailed(f"'{path}' is larger than {CASE_FILE_BYTES_MAX} bytes")
        with numpy.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except _NPZ_ERRORS as error:
        raise CommandFailed(f"'{path}' cannot be read as a .npz file: {system_reason(error)}") from error
    return {
        name: plain_array(array, f"'{path}' holds {array.dtype} as '{name}'")
        for name, array in arrays.items()
    }


def _read_json(path: Path) -> Arrays:
    try:
        if path.stat().st_size > CASE_FILE_BYTES_MAX:
            raise CommandFailed(f"'{path}' is larger than {CASE_FILE_BYTES_MAX} bytes")
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CommandFailed(f"'{path}' cannot be read as JSON: {system_reason(error)}") from error
    if not isinstance(document, dict):
        raise CommandFailed(f"'{path}' must be one object: {{INPUT: VALUES, ...}}")
    return {name: parse_values(json.dumps(values)) for name, values in document.items()}
