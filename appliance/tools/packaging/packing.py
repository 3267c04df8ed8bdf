"""Pack a version: its graph and weights apart, everything summed, judged as the serving side judges it, one file out.

The files are laid out beside the package first (``home``), as an ordinary model directory, so that what is promised in
the manifest is what the repository reads there, and so that the runtime can prove the new form against the old one
before anything has a name. The latency promised stands in the golden set, which is where a box reads it, and the
manifest repeats it. The same source and options give the same bytes, on any machine and at any time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.digest import digests_of_file
from appliance.domain.errors import ArtefactError, ModelInvalid, PackageInvalid, Problem
from appliance.domain.golden import (
    GOLDEN_DIRECTORY,
    SET_FILE,
    TENSORS_NAME,
    GoldenSet,
    encode_golden,
    holds_answers,
    read_golden,
    write_golden,
)
from appliance.domain.interface import ALLOWED_PARAMETER, allows_change
from appliance.domain.manifest import (
    FileEntry,
    LatencyPromise,
    Manifest,
    Measured,
    RuntimeNeed,
    TensorEntry,
    Variant,
    is_name,
    manifest_problems,
    path_problem,
)
from appliance.domain.manifest_codec import FILE as MANIFEST_FILE
from appliance.domain.model import ModelVersion
from appliance.package.conformity import GRAPH_FILE, RUNTIME, WEIGHTS_FILE, manifest_opsets
from appliance.repository.model_directory import CONFIG_FILE
from appliance.repository.onnx.firewall import graph_limits
from appliance.repository.onnx.graph import read_graph
from appliance.repository.onnx.summary import GraphSummary
from appliance.tools.packaging.config_text import packed_config, place_in_source
from appliance.tools.packaging.source import ModelSource, judged, plain_name
from appliance.tools.packaging.weights import split_model
from appliance.tools.subject import VERSION_NUMBER

OPSETS: Final = (("1.20", 21), ("1.21", 22), ("1.23", 23), ("1.24", 25), ("1.25", 26))
FORMATS: Final = (("1.20", 10), ("1.23", 11), ("1.24", 13))
"""Releases of ONNX Runtime that brought more, oldest first, with the highest standard operator set, and ``ir_version``,
that they read. Measured, not read off tables: releases 1.20.0, 1.21.0, 1.22.0, 1.23.0, 1.24.1, 1.25.0 and 1.31.1 were
given graphs of each. A test asks the release that is installed."""

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What the packer says of the version. ``promise`` None: what its golden set promises; ``interface_change``:
    clients change along with it."""

    name: str
    version: int
    licence: str = ""
    provenance: str = ""
    measured: Measured | None = None
    promise: LatencyPromise | None = None
    minimum_version: int | None = None
    interface_change: bool = False


def lay_out(
    source: ModelSource,
    labels: Labels,
    root: Path,
    progress: Progress,
    settings: RepositoryConfig = RepositoryConfig(),  # noqa: B008 - frozen
) -> Manifest:
    """Write the files of the version into ``root/NAME`` and give their manifest. ``progress`` is told of bytes of
    weights written, ``settings`` say what may be served. Raises ModelInvalid with all problems, ArtefactError,
    PackageInvalid, OSError."""
    _check_names(source, labels)
    home = root / labels.name
    folder = home / str(labels.version)
    folder.mkdir(parents=True)
    tensors = _split(source, folder, progress)
    config = packed_config(source.config, labels.name, GRAPH_FILE, interface_change=labels.interface_change)
    (home / CONFIG_FILE).write_bytes(config)
    for path, file in source.others.items():
        target = home / _renumbered(path, source, labels)
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            file.open() as descriptor,
            open(descriptor, "rb", closefd=False) as data,
            open(target, "wb") as out,
        ):
            shutil.copyfileobj(data, out)
    _finish_golden(labels.promise, home, folder)
    try:
        return _manifest(labels, root, tensors, settings)
    except ModelInvalid as error:
        raise ModelInvalid(_of_source(each, source, labels, config) for each in error.problems) from error


def _of_source(problem: Problem, source: ModelSource, labels: Labels, config: bytes) -> Problem:
    """The problem at the place in the source of which the place in the packed form was made."""
    if problem.file == f"{labels.name}/{labels.version}/{GRAPH_FILE}":
        return replace(problem, file=source.model.path)
    for path in source.others:
        if problem.file == f"{labels.name}/{_renumbered(path, source, labels)}":
            return replace(problem, file=f"{source.home.path}/{path}")
    file, *place = problem.file.split(":")
    if file != f"{labels.name}/{CONFIG_FILE}":
        return problem
    found = place_in_source(source.config or b"", config, *map(int, place)) if len(place) == 2 else None
    file = source.model.path if source.config is None else f"{source.home.path}/{CONFIG_FILE}"
    return replace(problem, file=":".join((file, *map(str, found or ()))))


def open_from(root: Path, manifest: Manifest) -> Callable[[FileEntry], BinaryIO]:
    """Opens the files that ``lay_out`` wrote."""
    return lambda entry: open(root / manifest.name / entry.path, "rb")


def file_entry(path: Path, name: str) -> FileEntry:
    """The file at ``path`` summed, as the entry ``name``."""
    found = digests_of_file(path)
    return FileEntry(path=name, size=found.size, digest=found.digest, pieces=found.pieces)


def runtime_need(graph: GraphSummary) -> RuntimeNeed:
    """What runs the graph. Of one that is newer than all that is known here, the newest release that is."""
    opsets = manifest_opsets(graph)
    standard = max((opset.version for opset in opsets if not opset.domain), default=0)
    releases = (_first(OPSETS, standard), _first(FORMATS, graph.ir_version))
    minimum = max(releases, key=lambda release: tuple(map(int, release.split("."))))
    return RuntimeNeed(name=RUNTIME, minimum=minimum, opsets=opsets)


def _first(table: tuple[tuple[str, int], ...], wanted: int) -> str:
    return next((release for release, highest in table if wanted <= highest), table[-1][0])


def _check_names(source: ModelSource, labels: Labels) -> None:
    """Every name that cannot be in a package, at once."""
    problems = [
        Problem(file=path, key="", text=f"{wrong}; rename it where it is named, or leave it out")
        for path in source.others
        if (wrong := path_problem(path))
    ]
    if not is_name(labels.name):
        problems.append(Problem(file="--name", key="", text=f"'{labels.name}' is no name for a model"))
    if problems:
        raise ModelInvalid(problems)


def _renumbered(path: str, source: ModelSource, labels: Labels) -> PurePosixPath:
    """The path in the package of a file of the version's directory."""
    parts = PurePosixPath(path).parts
    if source.start.parts and parts[0] == source.start.parts[0]:
        parts = (str(labels.version), *parts[1:])
    return PurePosixPath(*parts)


def promised_before(source: ModelSource) -> LatencyPromise | None:
    """What the golden set of the source promises; None too where it cannot be read, which packing tells."""
    files = (file for path, file in source.others.items() if path.endswith(SET_FILE))
    with suppress(ModelInvalid, ArtefactError):
        return next((read_golden(file.path).promise for file in files), None)
    return None


def golden_beside(source: ModelSource) -> tuple[int, ...]:
    """The versions below that of the source, in its model's directory, that have golden answers of their own."""
    home = Path(source.home.path)
    if not source.start.parts and VERSION_NUMBER.fullmatch(home.name):
        home = home.parent
    found = []
    for each in home.iterdir():
        if VERSION_NUMBER.fullmatch(each.name) and int(each.name) < source.version:
            with suppress(OSError):
                tensors = each / GOLDEN_DIRECTORY / TENSORS_NAME
                found += [int(each.name)] * holds_answers([(tensors.as_posix(), tensors.stat().st_size)])
    return tuple(sorted(found))


def _finish_golden(promise: LatencyPromise | None, home: Path, folder: Path) -> None:
    """Put ``promise``, where there is one, into the golden set of the version, or into one of its own that has no
    cases; what file the set was made of says nothing any more. A set that cannot be read is left for the repository to
    tell."""
    for path in (folder / SET_FILE, home / SET_FILE):
        if path.is_file():
            with suppress(ModelInvalid, ArtefactError):
                golden = read_golden(str(path))
                finished = replace(golden, promise=promise or golden.promise, file="")
                if golden != finished:
                    path.write_bytes(encode_golden(finished))
            return
    if promise is not None:
        alone = GoldenSet(cases=(), tolerances={}, promise=promise)
        write_golden(str((folder / SET_FILE).parent), alone, b"")


def _split(source: ModelSource, folder: Path, progress: Progress) -> Sequence[TensorEntry]:
    graph, weights = folder / GRAPH_FILE, folder / WEIGHTS_FILE
    try:
        with open(graph, "wb") as graph_out, open(weights, "wb") as weights_out:
            tensors = split_model(source.model, source.home, source.start, graph_out, weights_out, progress)
    except ArtefactError as error:
        raise ModelInvalid([Problem(file=source.model.path, key="", text=str(error))]) from error
    if not tensors:
        weights.unlink()
    return [replace(entry, file=f"{folder.name}/{entry.file}") for entry in tensors]


def _manifest(
    labels: Labels, root: Path, tensors: Sequence[TensorEntry], settings: RepositoryConfig
) -> Manifest:
    model = _served(root, labels, settings)
    if labels.interface_change and not allows_change(model):
        text = f"must say {ALLOWED_PARAMETER} 'true', or nothing of it, to be packed so"
        raise PackageInvalid([Problem(file=CONFIG_FILE, key="parameters", text=text)])
    golden = read_golden(model.golden) if model.golden else None
    _check_variant(golden)
    home = root / labels.name
    paths = sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())
    manifest = Manifest(
        name=labels.name,
        version=labels.version,
        runtime=runtime_need(graph_of(Path(model.path), settings)),
        files=tuple(file_entry(home / path, path) for path in paths),
        inputs=model.inputs,
        outputs=model.outputs,
        tensors=tuple(tensors),
        max_batch_size=model.max_batch_size,
        licence=labels.licence,
        provenance=labels.provenance,
        promise=golden.promise if golden else None,
        measured=labels.measured,
        variant_of=_variant(golden),
        minimum_version=labels.minimum_version,
    )
    if problems := list(manifest_problems(manifest)):
        raise PackageInvalid(Problem(file=MANIFEST_FILE, key=key, text=text) for key, text in problems)
    return manifest


def _served(root: Path, labels: Labels, settings: RepositoryConfig) -> ModelVersion:
    """The version as the repository reads it from its new place; raises ModelInvalid with all it finds wrong."""
    reading = judged(root, labels.name, settings)
    found = [each.model for each in reading.servable if each.model.version == labels.version]
    assert found, "the only version is served or broken"
    return found[0]


def graph_of(path: Path, settings: RepositoryConfig) -> GraphSummary:
    """The graph of the file at ``path``. Raises ArtefactError, OSError."""
    with open(path, "rb") as file:
        return read_graph(file.fileno(), graph_limits(settings))


def _check_variant(golden: GoldenSet | None) -> None:
    if golden and golden.variant and not golden.variant.servable:
        text = f"is a variant of {golden.variant.of} whose answers left the tolerances; it is not packed"
        raise ModelInvalid([Problem(file="golden/set.json", key="variant", text=text)])


def _variant(golden: GoldenSet | None) -> Variant | None:
    if golden is None or golden.variant is None:
        return None
    name, _, version = golden.variant.of.rpartition("/")
    return Variant(
        kind=plain_name(golden.variant.method),
        name=plain_name(name),
        version=int(version) if version.isascii() and version.isdigit() and int(version) else 1,
    )
