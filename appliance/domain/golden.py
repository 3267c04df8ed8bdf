"""The golden set of a model version: requests with the answers that are known to be right, and how near answers must
be.

On disk: ``golden/set.json`` and ``golden/tensors.bin`` in the version's directory, or in the model's home for all of
its versions that have none of their own. Rules kept here: everything is bounded, what is wrong with a set is told all
at once, a set without a case has a promise, the set names the size and blake3 digest of its tensors, so that two files
that do not belong together are never compared with. Reading and writing of these two files; comparing is in
``output_difference``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Final, NoReturn

from appliance.domain.binding import bind
from appliance.domain.digest import digest_of, is_digest
from appliance.domain.errors import ArtefactError, ConfigInvalid, InvalidRequest, ModelInvalid, Problem
from appliance.domain.manifest import LatencyPromise
from appliance.domain.quantity import counted
from appliance.domain.regular_file import read_file
from appliance.domain.tensor import FREE, Datatype, TensorSpec, byte_size, element_count, split_bytes

GOLDEN_DIRECTORY: Final = "golden"
SET_FILE: Final = "golden/set.json"
TENSORS_NAME: Final = "tensors.bin"
FORMAT: Final = 1

SET_BYTES_MAX: Final = 4 << 20
TENSORS_BYTES_MAX: Final = 256 << 20
CASES_MAX: Final = 1_024
PROBLEMS_MAX: Final = 1_000
MISFITS_MAX: Final = 100
CASE_TENSORS_MAX: Final = 256
TENSOR_ALIGNMENT: Final = 64
NAME_CHARACTERS_MAX: Final = 1_024
ROWS_MAX: Final = 1 << 20
P99_US_MAX: Final = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenTensor:
    """One tensor of a case: its full shape, batch dimension included, and where its raw wire bytes lie in the tensor
    file."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...] = field(metadata={"min": 0})
    offset: int = field(metadata={"min": 0, "max": TENSORS_BYTES_MAX})
    length: int = field(metadata={"min": 0, "max": TENSORS_BYTES_MAX})


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """One request and its answer. ``name`` says to a person which it is."""

    name: str
    inputs: tuple[GoldenTensor, ...]
    outputs: tuple[GoldenTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a value of an output may be from the right one: ``absolute + relative * |right|``. Both 0: exact.
    Integers, truth values and strings are exact whatever is said here."""

    absolute: float = field(default=0.0, metadata={"min": 0})
    relative: float = field(default=0.0, metadata={"min": 0})

    def __post_init__(self) -> None:
        if not (math.isfinite(self.absolute) and math.isfinite(self.relative)):
            raise ValueError("must be finite numbers")


EXACT: Final = Tolerance()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantMark:
    """Says that the version was derived from ``of`` (``name/version``) by ``method``, and whether its answers stayed
    within the tolerances: one that is not ``servable`` is neither packed nor served."""

    of: str
    method: str
    servable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSet:
    """All cases (none: there is only a promise), a tolerance per output (one without is compared exactly), what the
    version promises (None: nothing), and the size and blake3 digest of the tensor file. ``note`` says where the cases
    come from, ``file`` which model file it is of, where others may lie beside it ("": whichever does)."""

    cases: tuple[GoldenCase, ...]
    tolerances: Mapping[str, Tolerance]
    promise: LatencyPromise | None = None
    variant: VariantMark | None = None
    tensors_bytes: int = field(default=0, metadata={"min": 0, "max": TENSORS_BYTES_MAX, "unit": "bytes"})
    tensors_digest: str = ""
    note: str = ""
    file: str = ""

    def tolerance(self, output: str) -> Tolerance:
        """How near the values of ``output`` must be."""
        return self.tolerances.get(output, EXACT)


class TensorFile:
    """Lays tensors out one after the other, aligned, for a set that is being made. One owner: its maker."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, name: str, datatype: Datatype, shape: Sequence[int], raw: bytes) -> GoldenTensor:
        """Append the raw wire bytes of a tensor. Raises ArtefactError when the file would be too large to be read."""
        offset = len(self._data) + -len(self._data) % TENSOR_ALIGNMENT
        if offset + len(raw) > TENSORS_BYTES_MAX:
            raise ArtefactError(
                f"a golden set holds at most {TENSORS_BYTES_MAX:,} bytes of tensors; '{name}' would make it "
                f"{offset + len(raw):,}; take fewer or smaller cases"
            )
        self._data.extend(bytes(offset - len(self._data)))
        self._data.extend(raw)
        return GoldenTensor(name=name, datatype=datatype, shape=tuple(shape), offset=offset, length=len(raw))

    def data(self) -> bytes:
        """Everything so far: the contents of the tensor file."""
        return bytes(self._data)


# --- the file


def encode_golden(golden: GoldenSet) -> bytes:
    """The bytes of ``set.json``: the same set always gives the same."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "tensors_bytes": golden.tensors_bytes,
        "tensors_digest": golden.tensors_digest,
        "cases": [asdict(case) for case in golden.cases],
        "tolerances": {name: asdict(tolerance) for name, tolerance in sorted(golden.tolerances.items())},
    }
    if golden.promise is not None:
        document["promise"] = asdict(golden.promise)
    if golden.variant is not None:
        document["variant"] = asdict(golden.variant)
    if golden.note:
        document["note"] = golden.note
    if golden.file:
        document["file"] = golden.file
    return (
        json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False, default=_wire) + "\n"
    ).encode()


def decode_golden(data: bytes, file: str = SET_FILE) -> GoldenSet:
    """The set that these bytes of ``set.json`` say; ``file`` is named in errors. Raises ModelInvalid with all that is
    wrong."""
    if len(data) > SET_BYTES_MAX:
        raise ModelInvalid([_problem(file, "", f"has {len(data)} bytes; at most {SET_BYTES_MAX} are read")])
    wrong: list[Problem] = []
    try:
        document = _DECODER.decode(str(data, "utf-8"))
        if not isinstance(document, dict):
            raise ValueError("must be one JSON object")
        json.dumps(document, ensure_ascii=False).encode()  # refuses halves of characters
        said = document.pop("format", None)
        if said != FORMAT or isinstance(said, bool):
            wrong.append(_problem(file, "format", f"must be one of {FORMAT}, got {said!r}"))
        golden = bind(GoldenSet, document, file)
    except ConfigInvalid as error:
        raise ModelInvalid([*wrong, *error.problems]) from None
    except RecursionError:
        raise ModelInvalid([_problem(file, "", "is nested too deeply to be a golden set")]) from None
    except ValueError as error:
        raise ModelInvalid([_problem(file, "", f"is not a golden set: {error}")]) from None
    if wrong := [*wrong, *islice(_set_problems(golden, file), PROBLEMS_MAX)]:
        raise ModelInvalid(wrong)
    return golden


def read_golden(path: str, digest: str = "") -> GoldenSet:
    """The set in the file ``path``. Raises ModelInvalid with all that is wrong, ArtefactError when it cannot be
    read or has another ``digest`` ("": none is known)."""
    return decode_golden(read_file(path, SET_BYTES_MAX, digest, SET_FILE))


def read_tensors(path: str, golden: GoldenSet) -> memoryview:
    """The contents of the tensor file beside the ``set.json`` at ``path``, with the size, digest and strings that the
    set says. Raises ArtefactError otherwise."""
    what = f"{GOLDEN_DIRECTORY}/{TENSORS_NAME}"
    data = read_file(os.path.join(os.path.dirname(path), TENSORS_NAME), TENSORS_BYTES_MAX, called=what)
    if len(data) != golden.tensors_bytes:
        raise ArtefactError(f"{what} has {len(data)} bytes; its set says {golden.tensors_bytes}")
    if digest_of(data) != golden.tensors_digest:
        raise ArtefactError(f"{what} is not the file that its set was made with: the digests differ")
    view = memoryview(data)
    for case in golden.cases:
        for tensor in (*case.inputs, *case.outputs):
            _check_strings(tensor, view, f"{what}: case '{case.name}'")
    return view


def tensor_data(tensors: memoryview, tensor: GoldenTensor) -> memoryview:
    """The raw wire bytes of one tensor in the tensor file."""
    return tensors[tensor.offset : tensor.offset + tensor.length]


def write_golden(folder: str, golden: GoldenSet, tensors: bytes) -> GoldenSet:
    """Write both files into ``folder``, made when it is missing, each by renaming; gives the set with the size and
    digest of its tensors. Raises OSError, and ModelInvalid, before anything is written, when the set could not be read
    again."""
    whole = replace(golden, tensors_bytes=len(tensors), tensors_digest=digest_of(tensors))
    document = encode_golden(whole)
    decode_golden(document)
    os.makedirs(folder, exist_ok=True)
    for name, data in ((TENSORS_NAME, tensors), (os.path.basename(SET_FILE), document)):
        temporary = os.path.join(folder, f".{name}.new")
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, os.path.join(folder, name))
    return whole


def holds_answers(files: Iterable[tuple[str, int]]) -> bool:
    """Whether a version with these files, each a path and a size, has golden answers to be held to; a set that only
    promises has no bytes of tensors."""
    return any(
        size > 0 and tuple(path.split("/")[-2:]) == (GOLDEN_DIRECTORY, TENSORS_NAME) for path, size in files
    )


# --- a set and the model it is of


def misfits(
    golden: GoldenSet, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], max_batch_size: int
) -> tuple[str, ...]:
    """Why a model with these inputs and outputs cannot be held to the set: the first MISFITS_MAX reasons and whether
    there are more, none when it can."""
    found = _misfits(golden, inputs, outputs, max_batch_size)
    first = tuple(islice(found, MISFITS_MAX))
    return first if next(found, None) is None else (*first, "there is more that does not fit")


def _misfits(
    golden: GoldenSet, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], max_batch_size: int
) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for case in golden.cases:
        for text in _case_misfits(case, inputs, outputs, max_batch_size):
            found.setdefault(text, []).append(case.name)
    for text, (first, *alike) in found.items():
        more = f" ({counted(len(alike), 'more case')} alike)" if alike else ""
        yield f"case '{first}' {text}{more}"
    known = {spec.name for spec in outputs}
    for name in golden.tolerances:
        if name not in known:
            yield f"there is a tolerance for the output '{name}', which the model does not have"
    free = [spec.name for spec in inputs if not spec.optional and FREE in spec.shape]
    if free and not golden.cases:
        yield (
            f"there is a promise and no case, and the input '{free[0]}' has free dimensions, so that nothing says what "
            "to measure; make cases with 'appliance model golden'"
        )
    if golden.promise is not None and golden.promise.rows > max(1, max_batch_size):
        yield f"the promise is for {golden.promise.rows} rows; the model takes {max(1, max_batch_size)}"
    if golden.variant is not None and not golden.variant.servable:
        yield (
            f"the version is a variant ({golden.variant.method}) of {golden.variant.of} that left its tolerances; "
            "make it again with 'appliance model optimise' or serve the original"
        )


def _case_misfits(
    case: GoldenCase, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], max_batch_size: int
) -> Iterator[str]:
    """What goes on from the case's name, so that cases that are alike are found."""
    given = {tensor.name for tensor in case.inputs}
    for spec in inputs:
        if not spec.optional and spec.name not in given:
            yield f"gives nothing for the input '{spec.name}'"
    yield from _side_misfits("input", case.inputs, inputs, max_batch_size)
    yield from _side_misfits("output", case.outputs, outputs, max_batch_size)
    rows = {tensor.shape[:1] for tensor in (*case.inputs, *case.outputs)}
    if max_batch_size and len(rows) > 1:
        yield "has tensors with different numbers of rows"


def _side_misfits(
    side: str, tensors: Iterable[GoldenTensor], specs: Sequence[TensorSpec], max_batch_size: int
) -> Iterable[str]:
    known = {spec.name: spec for spec in specs}
    for tensor in tensors:
        spec = known.get(tensor.name)
        what = f"has the {side} '{tensor.name}'"
        if spec is None:
            yield f"{what}, which the model does not have"
            continue
        if tensor.datatype is not spec.datatype:
            yield f"{what} as {tensor.datatype.wire}; the model's is {spec.datatype.wire}"
        shape = tensor.shape[1:] if max_batch_size else tensor.shape
        batched = not max_batch_size or (tensor.shape and 1 <= tensor.shape[0] <= max_batch_size)
        if not batched or not _fits(shape, spec.shape):
            wanted = [FREE, *spec.shape] if max_batch_size else list(spec.shape)
            limit = f", at most {max_batch_size} rows" if max_batch_size else ""
            yield f"{what} in shape {list(tensor.shape)}; the model's is {wanted}{limit}"


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(
        want in (FREE, have) for have, want in zip(shape, wanted, strict=True)
    )


# --- reading


def _set_problems(golden: GoldenSet, file: str) -> Iterable[Problem]:
    if not (golden.promise is None) <= len(golden.cases) <= CASES_MAX:
        text = f"must be 1 to {CASES_MAX}, or none beside a promise, got {len(golden.cases)}"
        yield _problem(file, "cases", text)
    if not is_digest(golden.tensors_digest):
        yield _problem(file, "tensors_digest", "must be 64 lower-case hex digits, the blake3 digest")
    if (promise := golden.promise) is not None:
        if not 1 <= promise.rows <= ROWS_MAX:
            yield _problem(file, "promise.rows", f"must be 1 to {ROWS_MAX} rows, got {promise.rows}")
        if not 1 <= promise.p99_us <= P99_US_MAX:
            yield _problem(file, "promise.p99_us", f"must be 1 to {P99_US_MAX} us, got {promise.p99_us}")
    known = {tensor.name for case in golden.cases for tensor in case.outputs}
    for name in golden.tolerances:
        if name not in known:
            yield _problem(file, "tolerances", f"has '{name}', which is an output of no case")
    for index, case in enumerate(golden.cases[:CASES_MAX]):
        if len(case.name) > NAME_CHARACTERS_MAX:
            yield _problem(file, f"cases[{index}].name", f"has more than {NAME_CHARACTERS_MAX} characters")
        if not case.outputs:
            yield _problem(file, f"cases[{index}].outputs", "are none; nothing could be compared")
        for side, tensors in (("inputs", case.inputs), ("outputs", case.outputs)):
            key = f"cases[{index}].{side}"
            if len(tensors) > CASE_TENSORS_MAX:
                yield _problem(file, key, f"are {len(tensors)}; at most {CASE_TENSORS_MAX} are read")
                continue
            if len({tensor.name for tensor in tensors}) != len(tensors):
                yield _problem(file, key, "name a tensor twice")
            for position, tensor in enumerate(tensors):
                for text in _tensor_problems(tensor, golden.tensors_bytes):
                    yield _problem(file, f"{key}[{position}]", text)


def _tensor_problems(tensor: GoldenTensor, tensors_bytes: int) -> Iterable[str]:
    if not 1 <= len(tensor.name) <= NAME_CHARACTERS_MAX:
        yield f"must have a name of 1 to {NAME_CHARACTERS_MAX} characters"
    if tensor.offset + tensor.length > tensors_bytes:
        yield (
            f"lies at {tensor.offset} to {tensor.offset + tensor.length}; the tensor file has {tensors_bytes} bytes"
        )
    datatype = tensor.datatype
    try:
        wanted = byte_size(datatype, tensor.shape)
    except InvalidRequest as error:
        yield str(error)
        return
    if datatype is not Datatype.BYTES and wanted != tensor.length:
        yield f"has {tensor.length} bytes; {datatype.wire} {list(tensor.shape)} has {wanted}"


def _check_strings(tensor: GoldenTensor, tensors: memoryview, what: str) -> None:
    """Raise ArtefactError unless the bytes of a BYTES tensor are as many strings as its shape says."""
    if tensor.datatype is not Datatype.BYTES:
        return
    try:
        found = sum(1 for _ in split_bytes(tensor_data(tensors, tensor)))
    except InvalidRequest as error:
        raise ArtefactError(f"{what}: '{tensor.name}': {error}") from None
    if found != element_count(tensor.shape):
        raise ArtefactError(f"{what}: '{tensor.name}' has {found} strings; its shape is {list(tensor.shape)}")


def _wire(datatype: Datatype) -> str:
    return datatype.wire


def _problem(file: str, key: str, text: str) -> Problem:
    return Problem(file=file, key=key, text=text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return document


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number)
