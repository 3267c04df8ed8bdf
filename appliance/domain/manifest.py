"""What a model package says of itself: files with digests, tensors, what it needs and what it promises. Values only.

``manifest_problems`` holds every rule that a manifest must keep, so that what was read and what is about to be written
are judged alike; ``manifest_codec`` writes nothing and gives nothing that breaks one. Paths of files are relative to
the model's home, the directory that holds config.pbtxt: "config.pbtxt", "3/graph.onnx", "golden/set.json".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from appliance.domain.digest import PIECE_BYTES, is_digest, piece_count
from appliance.domain.quantity import counted
from appliance.domain.tensor import TensorSpec

__all__ = ["PIECE_BYTES"]

FORMAT: Final = 1
INT64_MAX: Final = (1 << 63) - 1
FILES_MAX: Final = 1024
TENSORS_MAX: Final = 32_768
PORTS_MAX: Final = 1024
OPSETS_MAX: Final = 64
RANK_MAX: Final = 32
TEXT_BYTES_MAX: Final = 256 << 10
NAME_BYTES_MAX: Final = 4096
PATH_PARTS_MAX: Final = 4

NAME_RULE: Final = "1 to 64 of the characters a-z 0-9 . _ -, the first one not a dot"

_NAME: Final = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,63}")
_NUMBER: Final = re.compile(r"[0-9]+")
_RELEASE: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}")

ELEMENT_BITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "FLOAT": 32, "DOUBLE": 64, "FLOAT16": 16, "BFLOAT16": 16,
        "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8,
        "FLOAT4E2M1": 4, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2,
        "INT8": 8, "INT16": 16, "INT32": 32, "INT64": 64,
        "UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64,
        "BOOL": 8, "COMPLEX64": 64, "COMPLEX128": 128,
    }
)  # fmt: skip
"""Bits per element of each type that an initialiser outside the graph file may have, by ONNX's name of the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of the package. ``pieces`` are the digests of its pieces of PIECE_BYTES, for checks while it loads."""

    path: str
    size: int
    digest: str
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """An initialiser outside the graph file: ``length`` bytes at ``offset`` of ``file``. ``datatype`` is ONNX's name
    of the element type. Tensors with equal bytes may share a place."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opset:
    """A set of operators that the graph uses; the domain "" is ONNX's own."""

    domain: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeNeed:
    """What runs the model: a runtime, at least of release ``minimum``, with these sets of operators."""

    name: str
    minimum: str
    opsets: tuple[Opset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPromise:
    """A run of ``rows`` rows takes at most ``p99_us`` in 99 of 100 cases."""

    rows: int
    p99_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the version cost where it was measured. ``on`` says where, in words: machine, runtime and its release."""

    on: str
    memory_bytes: int
    load_ns: int
    rows: int
    p50_ns: int
    p99_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What this version was made from. ``kind`` says how ("int8-dynamic", "fp16"); ``manifest`` is the digest of the
    original's manifest, "" when that was not a package."""

    kind: str
    name: str
    version: int
    manifest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of one model as a package. ``files`` are in order of their paths, ``tensors`` in order of (file,
    offset, name). ``inputs`` and ``outputs`` are as they are served. ``max_batch_size`` 0: no batching. ``licence`` and
    ``provenance`` are for people. ``minimum_version`` is the lowest version of the model that is served any more where
    this package was installed."""

    format: int = FORMAT
    name: str
    version: int
    runtime: RuntimeNeed
    files: tuple[FileEntry, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    tensors: tuple[TensorEntry, ...] = ()
    max_batch_size: int = 0
    licence: str = ""
    provenance: str = ""
    promise: LatencyPromise | None = None
    measured: Measured | None = None
    variant_of: Variant | None = None
    minimum_version: int | None = None

    @property
    def key(self) -> str:
        """``name/version``, for people and logs."""
        return f"{self.name}/{self.version}"

    @property
    def blobs(self) -> tuple[FileEntry, ...]:
        """The files with distinct contents, each content once, in the order of ``files``."""
        distinct: dict[str, FileEntry] = {}
        for entry in self.files:
            distinct.setdefault(entry.digest, entry)
        return tuple(distinct.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of all distinct contents."""
        return sum(entry.size for entry in self.blobs)

    def file(self, path: str) -> FileEntry | None:
        """The file at ``path``."""
        return next((entry for entry in self.files if entry.path == path), None)


def promise_text(promise: LatencyPromise | None) -> str:
    """A promise in words."""
    return (
        "nothing"
        if promise is None
        else f"{counted(promise.rows, 'row')} in {promise.p99_us} us in 99 of 100 runs"
    )


def is_name(text: str) -> bool:
    """Whether ``text`` may name a model, or a part of a path in a package."""
    return _NAME.fullmatch(text) is not None


def path_problem(path: str) -> str:
    """What keeps ``path`` from naming a file of a package; "" when nothing does."""
    parts = path.split("/")
    if len(parts) > PATH_PARTS_MAX:
        return f"has more than {PATH_PARTS_MAX} parts"
    if not all(map(is_name, parts)):
        return f"is not a path whose every part is {NAME_RULE}"
    return ""


def manifest_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Every rule that ``manifest`` breaks: the key it stands at, and what is wrong there."""
    if manifest.format != FORMAT:
        yield "format", f"is {manifest.format}; this appliance knows format {FORMAT}"
    if not is_name(manifest.name):
        yield "name", f"{manifest.name[:80]!r} is not {NAME_RULE}"
    yield from _in_range("version", manifest.version, 1)
    yield from _in_range("max_batch_size", manifest.max_batch_size, 0, (1 << 31) - 1)
    yield from _runtime_problems(manifest.runtime)
    yield from _file_problems(manifest)
    yield from _tensor_problems(manifest)
    yield from _port_problems("inputs", manifest.inputs)
    yield from _port_problems("outputs", manifest.outputs)
    if not manifest.outputs:
        yield "outputs", "is empty; nothing can be asked of such a model"
    yield from _text_problem("licence", manifest.licence, TEXT_BYTES_MAX)
    yield from _text_problem("provenance", manifest.provenance, TEXT_BYTES_MAX)
    if manifest.minimum_version is not None:
        yield from _in_range("minimum_version", manifest.minimum_version, 1, manifest.version)
    yield from _claim_problems(manifest)


def _runtime_problems(need: RuntimeNeed) -> Iterator[tuple[str, str]]:
    if not is_name(need.name):
        yield "runtime.name", f"{need.name[:80]!r} is not {NAME_RULE}"
    if not _RELEASE.fullmatch(need.minimum):
        yield "runtime.minimum", f"{need.minimum[:80]!r} is not a release such as 1.20"
    if len(need.opsets) > OPSETS_MAX:
        yield "runtime.opsets", f"has {len(need.opsets)} entries; the limit is {OPSETS_MAX}"
        return
    domains = [opset.domain for opset in need.opsets]
    if domains != sorted(set(domains)):
        yield "runtime.opsets", "must be in order of domain, each domain once"
    for index, opset in enumerate(need.opsets):
        yield from _text_problem(f"runtime.opsets[{index}].domain", opset.domain, NAME_BYTES_MAX)
        yield from _in_range(f"runtime.opsets[{index}].version", opset.version, 1)


def _file_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    files = manifest.files
    if len(files) > FILES_MAX:
        yield "files", f"has {len(files)} entries; the limit is {FILES_MAX}"
        return
    by_digest: dict[str, FileEntry] = {}
    for index, entry in enumerate(files):
        key = f"files[{index}]"
        if wrong := path_problem(entry.path):
            yield f"{key}.path", f"{entry.path[:80]!r} {wrong}"
        yield from _content_problems(key, entry)
        twin = by_digest.setdefault(entry.digest, entry)
        if (twin.size, twin.pieces) != (entry.size, entry.pieces):
            yield key, f"has the digest of {twin.path!r} and another size or other pieces"
    yield from _order_problems(manifest)
    if sum(max(entry.size, 0) for entry in by_digest.values()) > INT64_MAX:
        yield "files", "hold more bytes than can be addressed"


def _content_problems(key: str, entry: FileEntry) -> Iterator[tuple[str, str]]:
    yield from _in_range(f"{key}.size", entry.size, 0)
    if not is_digest(entry.digest):
        yield f"{key}.digest", "is not 64 of the characters 0-9 a-f"
    if len(entry.pieces) != piece_count(max(entry.size, 0)):
        yield f"{key}.pieces", f"has {len(entry.pieces)} digests for {entry.size} bytes"
    elif not all(map(is_digest, entry.pieces)):
        yield f"{key}.pieces", "holds something that is not 64 of the characters 0-9 a-f"
    elif len(entry.pieces) == 1 and entry.pieces[0] != entry.digest:
        yield f"{key}.pieces", "has one piece, whose digest must be the file's"


def _order_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """The paths together: in order, each once, none below another, all of the one version."""
    paths = [entry.path for entry in manifest.files]
    if paths != sorted(set(paths)):
        yield "files", "must be in order of path, each path once"
    taken = set(paths)
    for path in paths:
        parts = path.split("/")
        if any("/".join(parts[:depth]) in taken for depth in range(1, len(parts))):
            yield "files", f"{path!r} is below another file"
        if _NUMBER.fullmatch(parts[0]) and parts[0] != str(manifest.version):
            yield "files", f"{path!r} belongs to another version than {manifest.version}"
    if not any(path.startswith(f"{manifest.version}/") for path in paths):
        yield "files", f"holds no file of version {manifest.version}"


def _tensor_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    tensors = manifest.tensors
    if len(tensors) > TENSORS_MAX:
        yield "tensors", f"has {len(tensors)} entries; the limit is {TENSORS_MAX}"
        return
    sizes = {entry.path: entry.size for entry in manifest.files}
    for index, entry in enumerate(tensors):
        key = f"tensors[{index}]"
        yield from _text_problem(f"{key}.name", entry.name, NAME_BYTES_MAX)
        yield from _extent_problems(key, entry)
        if not is_digest(entry.digest):
            yield f"{key}.digest", "is not 64 of the characters 0-9 a-f"
        if entry.file not in sizes:
            yield f"{key}.file", f"{entry.file[:80]!r} is not among the files"
        elif entry.offset < 0 or entry.length < 0 or entry.offset + entry.length > sizes[entry.file]:
            yield key, f"lies outside {entry.file!r}, which has {sizes[entry.file]} bytes"
    if len({entry.name for entry in tensors}) != len(tensors):
        yield "tensors", "names a tensor twice"
    yield from _overlaps(manifest)


def _extent_problems(key: str, entry: TensorEntry) -> Iterator[tuple[str, str]]:
    """Whether type, shape and length agree. Elements of less than a byte are packed."""
    if entry.datatype not in ELEMENT_BITS:
        yield f"{key}.datatype", f"{entry.datatype[:80]!r} is not a type that tensors can have"
        return
    if len(entry.shape) > RANK_MAX or not all(0 <= dimension <= INT64_MAX for dimension in entry.shape):
        yield f"{key}.shape", f"is not at most {RANK_MAX} dimensions, none of them negative"
        return
    bits = ELEMENT_BITS[entry.datatype]
    for dimension in entry.shape:
        bits *= dimension
    if -(-bits // 8) != entry.length:
        yield (
            f"{key}.length",
            f"is {entry.length}; {entry.datatype} of that shape takes {-(-bits // 8)} bytes",
        )


def _overlaps(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Tensors lie in order and apart, or exactly on one another with the same digest; in files of equal content, too,
    since their bytes are read once."""
    order = [(entry.file, entry.offset, entry.name) for entry in manifest.tensors]
    for index, (earlier, later) in enumerate(pairwise(order), start=1):
        if earlier > later:
            yield f"tensors[{index}]", "is out of the order of file, offset and name"
    contents = {entry.path: entry.digest for entry in manifest.files}
    places = sorted(
        ((contents.get(entry.file, ""), entry.offset, entry.length, entry.digest), index)
        for index, entry in enumerate(manifest.tensors)
    )
    for (before, index), (after, other) in pairwise(places):
        content, offset, length, _ = before
        apart = after[0] != content or after[1] >= offset + length
        if not apart and before != after:
            yield f"tensors[{max(index, other)}]", "overlaps another tensor"


def _port_problems(key: str, ports: Sequence[TensorSpec]) -> Iterator[tuple[str, str]]:
    if len(ports) > PORTS_MAX:
        yield key, f"has {len(ports)} entries; the limit is {PORTS_MAX}"
        return
    for index, port in enumerate(ports):
        here = f"{key}[{index}]"
        yield from _text_problem(f"{here}.name", port.name, NAME_BYTES_MAX)
        if not port.name:
            yield f"{here}.name", "is empty"
        if len(port.shape) > RANK_MAX or not all(-1 <= dimension <= INT64_MAX for dimension in port.shape):
            yield f"{here}.shape", f"is not at most {RANK_MAX} dimensions, each -1 or more"
    if len({port.name for port in ports}) != len(ports):
        yield key, "names a tensor twice"


def _claim_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """What it promises, what was measured, what it was made from."""
    if manifest.promise is not None:
        yield from _in_range("promise.rows", manifest.promise.rows, 1)
        yield from _in_range("promise.p99_us", manifest.promise.p99_us, 1)
    if (measured := manifest.measured) is not None:
        yield from _text_problem("measured.on", measured.on, NAME_BYTES_MAX)
        yield from _in_range("measured.rows", measured.rows, 1)
        yield from _in_range("measured.memory_bytes", measured.memory_bytes, 0)
        yield from _in_range("measured.load_ns", measured.load_ns, 0)
        yield from _in_range("measured.p50_ns", measured.p50_ns, 0)
        yield from _in_range("measured.p99_ns", measured.p99_ns, 0)
    if (variant := manifest.variant_of) is not None:
        if not is_name(variant.kind):
            yield "variant_of.kind", f"{variant.kind[:80]!r} is not {NAME_RULE}"
        if not is_name(variant.name):
            yield "variant_of.name", f"{variant.name[:80]!r} is not {NAME_RULE}"
        yield from _in_range("variant_of.version", variant.version, 1)
        if variant.manifest and not is_digest(variant.manifest):
            yield "variant_of.manifest", "is not 64 of the characters 0-9 a-f"


def _in_range(key: str, value: int, least: int, most: int = INT64_MAX) -> Iterator[tuple[str, str]]:
    if not least <= value <= most:
        yield key, f"must be {least} to {most}"


def _text_problem(key: str, text: str, limit: int) -> Iterator[tuple[str, str]]:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        yield key, "is not text that UTF-8 can carry"
        return
    if size > limit:
        yield key, f"has {size} bytes; the limit is {limit}"
