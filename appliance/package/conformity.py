"""Whether a manifest is true of the model that its files are, and whether the runtime here is the one that it needs.

The files lie in a model directory, unpacked or as a view of the store; weights may be holes, since nothing looks into
them. The repository reads the model as it does when it is served; then the manifest is held against what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ArtefactError, ModelInvalid, Problem
from appliance.domain.golden import SET_FILE, TENSORS_NAME, read_golden
from appliance.domain.manifest import LatencyPromise, Manifest, Opset, RuntimeNeed, promise_text
from appliance.domain.manifest_codec import FILE
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, TensorSpec
from appliance.repository.model_directory import read_model_directory
from appliance.repository.onnx.firewall import graph_limits
from appliance.repository.onnx.graph import read_graph
from appliance.repository.onnx.summary import ExternalData, GraphSummary, standard

GRAPH_FILE: Final = "graph.onnx"
WEIGHTS_FILE: Final = "weights.bin"
RUNTIME: Final = "onnxruntime"
Ports = tuple[TensorSpec, ...]
DISTRIBUTIONS: Final = (RUNTIME, f"{RUNTIME}-gpu")


def conformity_problems(root: Path, manifest: Manifest, repository: RepositoryConfig) -> Iterator[Problem]:
    """Everything that is wrong with the model in ``root``/NAME, and that the manifest says and is not so. The rows of a
    batch are read with the default of the configuration, as they were when the package was made."""
    settings = replace(repository, default_max_batch_size=RepositoryConfig().default_max_batch_size)
    yield from runtime_problems(manifest.runtime, installed_release())
    reading = read_model_directory(str(root), manifest.name, settings)
    if reading is None:
        yield _said("files", "are no model: there is neither a config.pbtxt nor a graph")
        return
    for broken in reading.broken:
        yield from broken.problems
    found = [each.model for each in reading.servable if each.model.version == manifest.version]
    if not found:
        if not reading.broken:
            yield _said("version", "is not one that config.pbtxt asks for")
        return
    home = root / manifest.name
    yield from _ports(manifest, found[0])
    yield from _golden(manifest, found[0], home)
    try:
        with open(found[0].path, "rb") as file:
            graph = read_graph(file.fileno(), graph_limits(settings))
    except ArtefactError as error:
        yield Problem(file=found[0].path, key="", text=str(error))
    else:
        yield from _graph(manifest, graph, Path(found[0].path).parent.relative_to(home).as_posix())


def runtime_problems(need: RuntimeNeed, installed: str) -> Iterator[Problem]:
    """What keeps the runtime here, of the release ``installed`` ("": not known), from running the model."""
    if need.name != RUNTIME:
        yield _said("runtime.name", f"is '{need.name}'; models run in {RUNTIME} here")
    elif installed and _numbers(installed) < _numbers(need.minimum):
        yield _said(
            "runtime.minimum", f"is {need.minimum}; {RUNTIME} is {installed} here, install a newer one"
        )


def installed_release() -> str:
    """The release of the runtime, learned without loading it; "" where none is installed."""
    for distribution in DISTRIBUTIONS:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


def _numbers(release: str) -> tuple[int, ...]:
    """A release in numbers, to be compared: up to the first part that is none, and without zeros at the end."""
    numbers: list[int] = []
    for part in release.split("."):
        if not (part.isascii() and part.isdigit()):
            break
        numbers.append(int(part))
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _ports(manifest: Manifest, model: ModelVersion) -> Iterator[Problem]:
    if (manifest.inputs, manifest.outputs, manifest.max_batch_size) == _as_batches(model):
        return
    for key, said, true in (
        ("inputs", manifest.inputs, model.inputs),
        ("outputs", manifest.outputs, model.outputs),
        ("max_batch_size", manifest.max_batch_size, model.max_batch_size),
    ):
        if said != true:
            yield _said(key, "are not those of the graph and its configuration")


def _as_batches(model: ModelVersion) -> tuple[Ports, Ports, int] | None:
    """The ports as earlier releases read them from a graph that leaves all first dimensions open and counts what it
    finds: as those of a batch. Their packages tell of the same tensors."""
    ports = (*model.inputs, *model.outputs)
    if model.max_batch_size or any(spec.shape[:1] != (FREE,) for spec in ports):
        return None
    inputs, outputs = (
        tuple(replace(spec, shape=spec.shape[1:]) for spec in side) for side in (model.inputs, model.outputs)
    )
    return inputs, outputs, RepositoryConfig().default_max_batch_size


def _graph(manifest: Manifest, graph: GraphSummary, folder: str) -> Iterator[Problem]:
    if manifest_opsets(graph) != manifest.runtime.opsets:
        yield _said("runtime.opsets", "are not those of the graph")
    said = {(entry.file, entry.offset, entry.length) for entry in manifest.tensors}
    used = {(f"{folder}/{each.location}", each.offset, _length(each)) for each in graph.external}
    for file, offset, length in sorted(used - said):
        yield _said("tensors", f"does not list the {length} bytes at {offset} of {file} that the graph uses")
    for file, offset, length in sorted(said - used):
        yield _said("tensors", f"lists {length} bytes at {offset} of {file} that the graph does not use")


def _golden(manifest: Manifest, model: ModelVersion, home: Path) -> Iterator[Problem]:
    if not model.golden:
        yield from _promise(manifest.promise, None)
        return
    relative = Path(model.golden).relative_to(home)
    tensors = manifest.file(relative.with_name(TENSORS_NAME).as_posix())
    try:
        golden = read_golden(model.golden)
    except (ModelInvalid, ArtefactError) as error:
        yield Problem(file=SET_FILE, key="", text=str(error))
        return
    yield from _promise(manifest.promise, golden.promise)
    if tensors is None or tensors.digest != golden.tensors_digest:
        text = "is not that of the tensors in the package"
        yield Problem(file=relative.as_posix(), key="tensors_digest", text=text)
    if golden.variant and not golden.variant.servable:
        text = "left its tolerances; it is not served"
        yield Problem(file=relative.as_posix(), key="variant", text=text)


def _promise(said: LatencyPromise | None, kept: LatencyPromise | None) -> Iterator[Problem]:
    """What a box holds a version to is what its golden set promises."""
    if said != kept:
        text = (
            f"is {promise_text(said)}; the golden set promises {promise_text(kept)}, and that is what counts"
        )
        yield _said("promise", text)


def _length(reference: ExternalData) -> int:
    return (reference.needed or 0) if reference.length is None else reference.length


def _said(key: str, text: str) -> Problem:
    return Problem(file=FILE, key=key, text=text)


def manifest_opsets(graph: GraphSummary) -> tuple[Opset, ...]:
    """The sets of operators of a graph as a manifest says them."""
    opsets = {standard(domain): version for domain, version in graph.opsets}
    return tuple(Opset(domain=domain, version=opsets[domain]) for domain in sorted(opsets))
