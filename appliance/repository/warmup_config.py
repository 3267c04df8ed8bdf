"""The ``model_warmup`` part of a model's configuration, and its meeting with the model's inputs and files.

A warm-up input from a file holds one row, in the raw form of the wire; every row of the warm-up batch is that
row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from appliance.domain.errors import ArtefactError, InvalidRequest
from appliance.domain.model import Warmup, WarmupInput
from appliance.domain.tensor import Datatype, TensorSpec, byte_size, element_count, split_bytes
from appliance.repository.findings import Findings, shown_names
from appliance.repository.model_files import ModelFile, ModelHome
from appliance.repository.section import INT64_MAX, NAME_BYTES_MAX, Section
from appliance.repository.tensor_config import read_datatype

WARMUP_DIRECTORY: Final = "warmup"
COUNT_MAX: Final = 10_000
STRING_BYTES_MIN: Final = 4
WARMUPS_MAX: Final = 1_000
STRINGS_BYTES_MAX: Final = 64 << 20
REQUEST_BYTES_MAX: Final = 1 << 30
"""Of all inputs of a warm-up, which a worker makes; above what any request may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupTensor:
    """One input as written. ``file`` "" means zeros, or random values when ``random``."""

    section: Section
    name: str
    datatype: Datatype | None
    dims: tuple[int, ...]
    random: bool
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupConfig:
    """One warm-up request as written."""

    section: Section
    name: str
    batch_size: int
    count: int
    tensors: tuple[WarmupTensor, ...]


def read_warmup(section: Section) -> WarmupConfig:
    """One ``model_warmup { ... }``."""
    if not section.has("name"):
        section.problem("name", "is missing; every warm-up needs one")
    warmup = WarmupConfig(
        section=section,
        name=section.text("name", longest=NAME_BYTES_MAX),
        batch_size=section.integer("batch_size"),
        count=section.integer("count", maximum=COUNT_MAX),
        tensors=tuple(_read_tensor(name, inner) for name, inner in section.entries("inputs")),
    )
    section.close()
    return warmup


def _read_tensor(name: str, section: Section) -> WarmupTensor:
    zeros, random = section.flag("zero_data"), section.flag("random_data")
    file = section.text("input_data_file")
    if zeros + random + bool(file) != 1:
        section.problem("", "needs exactly one of zero_data: true, random_data: true, input_data_file")
    tensor = WarmupTensor(
        section=section,
        name=name,
        datatype=read_datatype(section),
        dims=section.integers("dims", minimum=1, maximum=INT64_MAX),
        random=random,
        file=file,
    )
    section.close()
    return tensor


def warmup_files(
    warmups: Sequence[WarmupConfig], home: ModelHome, findings: Findings
) -> Mapping[str, ModelFile]:
    """The data files that the warm-ups name, by that name; what cannot be used is a problem."""
    found: dict[str, ModelFile] = {}
    for tensor in (tensor for warmup in warmups for tensor in warmup.tensors):
        if not tensor.file or tensor.file in found:
            continue
        try:
            found[tensor.file] = home.file(PurePosixPath(WARMUP_DIRECTORY) / tensor.file)
        except ArtefactError as error:
            findings.problem(tensor.section.place(), f"input_data_file '{tensor.file}' {error}")
    return found


def plan_warmup(
    config: WarmupConfig,
    inputs: Sequence[TensorSpec],
    max_batch_size: int,
    files: Mapping[str, ModelFile],
    findings: Findings,
) -> Warmup:
    """The warm-up request for a model with these inputs; what does not fit is a problem."""
    rows = config.batch_size or 1
    if rows > max(1, max_batch_size):
        limit = f"max_batch_size is {max_batch_size}" if max_batch_size else "the model is not batched"
        findings.problem(config.section.place(), f"batch_size {rows} is too large; {limit}")
    specs = {spec.name: spec for spec in inputs}
    given = {tensor.name for tensor in config.tensors}
    missing = [spec.name for spec in inputs if spec.name not in given and not spec.optional]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        findings.problem(
            config.section.place(),
            f"gives nothing for the input{plural} {shown_names(missing, len(missing))}",
        )
    planned = [
        _plan_tensor(tensor, specs[tensor.name], files, findings)
        for tensor in config.tensors
        if _is_known(tensor, specs, findings)
    ]
    if sum(_row_bytes(each) for each in planned) * rows > REQUEST_BYTES_MAX:
        findings.problem(
            config.section.place(), f"is a request of more than {REQUEST_BYTES_MAX} bytes; make it smaller"
        )
    return Warmup(name=config.name, batch_size=rows, count=config.count or 1, inputs=tuple(planned))


def _row_bytes(planned: WarmupInput) -> int:
    """What a row of it takes, strings without their contents."""
    size = planned.spec.datatype.size or STRING_BYTES_MIN
    for dimension in planned.spec.shape:
        size *= dimension
    return size


def _is_known(tensor: WarmupTensor, specs: Mapping[str, TensorSpec], findings: Findings) -> bool:
    if tensor.name in specs:
        return True
    known = shown_names(specs, len(specs))
    findings.problem(
        tensor.section.place(), f"the model has no input {shown_names((tensor.name,), 1)}; it has {known}"
    )
    return False


def _plan_tensor(
    tensor: WarmupTensor, spec: TensorSpec, files: Mapping[str, ModelFile], findings: Findings
) -> WarmupInput:
    if tensor.datatype not in (None, spec.datatype):
        findings.problem(
            tensor.section.place(),
            f"data_type is {tensor.datatype.config_name if tensor.datatype else ''}, but the input is "
            f"{spec.datatype.config_name}",
        )
    fits = len(tensor.dims) == len(spec.shape) and all(
        want in (-1, have) for want, have in zip(spec.shape, tensor.dims, strict=True)
    )
    if not fits:
        findings.problem(
            tensor.section.place(), f"dims {list(tensor.dims)} do not fit the input's {list(spec.shape)}"
        )
    elif tensor.file in files:
        _check_file(tensor, spec.datatype, files[tensor.file], findings)
    path = files[tensor.file].path if tensor.file in files else ""
    planned = TensorSpec(name=spec.name, datatype=spec.datatype, shape=tensor.dims, optional=spec.optional)
    return WarmupInput(spec=planned, random=tensor.random, file=path)


def _check_file(tensor: WarmupTensor, datatype: Datatype, file: ModelFile, findings: Findings) -> None:
    """Hold the file's size to the dims; for strings, its elements."""
    what = f"input_data_file '{tensor.file}'"
    try:
        if datatype is not Datatype.BYTES:
            wanted = byte_size(datatype, tensor.dims)
            if file.size != wanted:
                findings.problem(
                    tensor.section.place(),
                    f"{what} has {file.size} bytes; one row of {datatype.config_name} {list(tensor.dims)} "
                    f"has {wanted}",
                )
            return
        found = sum(1 for _ in split_bytes(memoryview(file.read(STRINGS_BYTES_MAX))))
        if found != element_count(tensor.dims):
            findings.problem(
                tensor.section.place(),
                f"{what} has {found} strings; dims {list(tensor.dims)} are {element_count(tensor.dims)}",
            )
    except (InvalidRequest, ArtefactError) as error:
        findings.problem(tensor.section.place(), f"{what}: {error}")
