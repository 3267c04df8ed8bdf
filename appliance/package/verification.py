"""Everything that can be checked of a package without running it, and all that is wrong told at once.

The contents are read once. What the repository reads of a model is laid out in a folder for it - weights as holes of
their size, since nothing looks into them - so that configuration, graph, firewall, labels and golden set are judged by
the very code that judges them when they are served. Then the manifest is held against what was found there: inputs,
outputs, sets of operators, each tensor's place in the graph and digest in the file.

To be shown to people, a package is only looked into: the files that are shown are read and their digests compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.config.store import Unsigned
from appliance.domain.device import DeviceKind
from appliance.domain.device_wish import ON_CPU, DeviceWish, wish_text
from appliance.domain.digest import Digester
from appliance.domain.errors import ArtefactError, PackageInvalid, Problem
from appliance.domain.golden import SET_BYTES_MAX, SET_FILE, GoldenSet, decode_golden
from appliance.domain.manifest import FileEntry, Manifest
from appliance.package.conformity import GRAPH_FILE, conformity_problems
from appliance.package.container import CHUNK_BYTES, Progress, blob_places
from appliance.package.keys import PublicKey
from appliance.package.reader import Blob, PackageReader, TensorSums, opened, tensors_in
from appliance.package.trust import Trust, judge
from appliance.repository.findings import Findings
from appliance.repository.model_config import read_model_config
from appliance.repository.model_directory import CONFIG_BYTES_MAX, CONFIG_FILE
from appliance.repository.onnx.firewall import graph_limits
from appliance.repository.onnx.graph import read_graph
from appliance.repository.onnx.summary import GraphSummary
from appliance.repository.pbtxt import parse

PROBLEMS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """By what a package is judged. ``unsigned`` None: signatures are told and not judged."""

    keys: Sequence[PublicKey] = ()
    unsigned: Unsigned | None = None
    repository: RepositoryConfig = field(default_factory=RepositoryConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of it. ``manifest`` is None where it could not be read; ``digest`` names the package."""

    manifest: Manifest | None
    digest: str
    trust: Trust
    problems: tuple[Problem, ...]


def verify_package(
    path: Path, policy: Policy, folder: Path, begin: Callable[[int], Progress]
) -> Verification:
    """Check the package at ``path``, with the empty ``folder`` to work in. ``begin`` is told how many bytes of contents
    there are and gives what is told of each that was read. Raises OSError when the file cannot be opened or read."""
    with opened(path) as file:
        try:
            reader = PackageReader(file, path.name)
        except PackageInvalid as error:
            return Verification(manifest=None, digest="", trust=Trust(), problems=tuple(error.problems))
        check = _Check(path, reader, policy, folder)
        check.size(os.fstat(file.fileno()).st_size)
        check.signatures()
        check.contents(begin(reader.manifest.total_bytes))
        check.model()
        return check.result()


class _Check:
    """One package being checked; collects what is wrong."""

    def __init__(self, path: Path, reader: PackageReader, policy: Policy, folder: Path) -> None:
        self._name = path.name
        self._reader = reader
        self._manifest = reader.manifest
        self._policy = policy
        self._home = Path(os.path.realpath(folder)) / reader.manifest.name
        self._problems: list[Problem] = []
        self._trust = Trust()
        self._whole = True

    def result(self) -> Verification:
        return Verification(
            manifest=self._manifest,
            digest=self._reader.digest,
            trust=self._trust,
            problems=tuple(dict.fromkeys(self._problems))[:PROBLEMS_MAX],
        )

    def size(self, found: int) -> None:
        """The file is as large as the manifest demands."""
        if found != self._reader.total_bytes:
            self._note(self._name, "", f"has {found} bytes; its manifest demands {self._reader.total_bytes}")

    def signatures(self) -> None:
        """Who signed it, and whether that suffices."""
        try:
            self._trust = judge(self._reader.manifest_bytes, self._reader.signatures, self._policy.keys)
        except PackageInvalid as error:
            self._problems += error.problems
            return
        if self._policy.unsigned is not None and (text := self._trust.problem(self._policy.unsigned)):
            self._note(self._name, "", text)

    def contents(self, progress: Progress) -> None:
        """Read all contents into the folder."""
        try:
            for blob in self._reader.blobs():
                self._content(blob, progress)
        except PackageInvalid as error:
            self._problems += error.problems
            self._whole = False

    def _content(self, blob: Blob, progress: Progress) -> None:
        entries = [entry for entry in self._manifest.files if entry.digest == blob.digest]
        tensors = tensors_in(self._manifest, blob.digest)
        sums = TensorSums(tensors)
        paths = [self._laid_out(entry) for entry in entries]
        with open(paths[0], "wb") as out:
            try:
                while data := blob.stream.read(CHUNK_BYTES):
                    progress(len(data))
                    sums.update(data)
                    if not tensors:
                        out.write(data)
            except PackageInvalid as error:
                if blob.stream.cut_off:
                    raise
                self._problems += error.problems
                self._whole = self._whole and bool(tensors)
            else:
                self._problems += sums.problems()
            out.truncate(blob.size)
        for other in paths[1:]:
            os.link(paths[0], other)

    def _laid_out(self, entry: FileEntry) -> Path:
        path = self._home / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def model(self) -> None:
        """What the repository says about the model, and whether the manifest says the same; nothing when files that
        it would read are damaged, which was told."""
        if not self._whole:
            return
        self._problems += conformity_problems(self._home.parent, self._manifest, self._policy.repository)

    def _note(self, file: str, key: str, text: str) -> None:
        self._problems.append(Problem(file=file, key=key, text=text))


@dataclass(frozen=True, slots=True)
class AskedPlace:
    """Where a version asks to run, whatever machine it is on. ``auto``: there where such a GPU can be used, else on the
    processor."""

    device: DeviceWish
    auto: bool = False

    def __str__(self) -> str:
        """For people."""
        told = wish_text(self.device)
        return f"{told}, where one can be used, else the processor (KIND_AUTO)" if self.auto else told


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A package as far as it is shown. ``graph`` and ``golden`` are None where it has none that can be read, ``place``
    is where its configuration cannot be; ``problems`` say why."""

    size: int
    digest: str
    manifest: Manifest
    trust: Trust
    graph: GraphSummary | None
    golden: GoldenSet | None
    place: AskedPlace | None
    problems: tuple[Problem, ...]


def inspect_package(path: Path, policy: Policy) -> Inspection:
    """Look into the package at ``path``. Raises PackageInvalid when its manifest cannot be read, OSError when the file
    cannot."""
    with opened(path) as file:
        reader = PackageReader(file, path.name)
        contents = _Contents(file.fileno(), reader)
        size = os.fstat(file.fileno()).st_size
        problems: list[Problem] = []
        if size != reader.total_bytes:
            text = f"has {size} bytes; its manifest demands {reader.total_bytes}, so it is not whole"
            problems.append(Problem(file=path.name, key="", text=text))
        try:
            trust = judge(reader.manifest_bytes, reader.signatures, policy.keys)
        except PackageInvalid as error:
            problems += error.problems
            trust = Trust()
        graph: GraphSummary | None = None
        golden: GoldenSet | None = None
        place: AskedPlace | None = AskedPlace(ON_CPU)
        for entry in reader.manifest.files:
            try:
                if entry.path.endswith(f"/{GRAPH_FILE}"):
                    graph = contents.graph(entry, policy)
                elif entry.path.endswith(SET_FILE):
                    golden = decode_golden(contents.bytes_of(entry, SET_BYTES_MAX), entry.path)
                elif entry.path == CONFIG_FILE:
                    place = None
                    place = asked_place(contents.bytes_of(entry, CONFIG_BYTES_MAX), reader.manifest.name)
            except ArtefactError as error:
                problems.append(Problem(file=entry.path, key="", text=str(error)))
        return Inspection(
            size=size,
            digest=reader.digest,
            manifest=reader.manifest,
            trust=trust,
            graph=graph,
            golden=golden,
            place=place,
            problems=tuple(problems),
        )


def asked_place(config: bytes, name: str) -> AskedPlace:
    """Where the configuration ``config`` of the model ``name`` asks to run. Raises ArtefactError where it is none."""
    tree = parse(config)

    def device(auto: str) -> DeviceWish:
        """On a machine on which KIND_AUTO is ``auto``."""
        settings, findings = RepositoryConfig(auto_device=auto), Findings()
        found = read_model_config(
            tree, file=CONFIG_FILE, model_name=name, settings=settings, findings=findings
        )
        return found.instances.device

    on_cuda = device(DeviceKind.CUDA.value)
    return AskedPlace(on_cuda, auto=on_cuda != device(DeviceKind.CPU.value))


class _Contents:
    """Contents of a package file, by their places in it."""

    def __init__(self, descriptor: int, reader: PackageReader) -> None:
        self._descriptor = descriptor
        size = None if reader.signatures is None else len(reader.signatures)
        self._places = blob_places(reader.manifest, len(reader.manifest_bytes), size)

    def bytes_of(self, entry: FileEntry, limit: int) -> bytes:
        """The content of ``entry``; raises ArtefactError when it is too large or not what its digest says."""
        if entry.size > limit:
            raise ArtefactError(f"has {entry.size} bytes; at most {limit} are shown")
        digester = Digester(pieces=False)
        parts: list[bytes] = []
        start = self._places[entry.digest]
        while digester.size < entry.size:
            data = os.pread(
                self._descriptor, min(CHUNK_BYTES, entry.size - digester.size), start + digester.size
            )
            if not data:
                raise ArtefactError("is cut off; copy the package again")
            digester.update(data)
            parts.append(data)
        if digester.finish().digest != entry.digest:
            raise ArtefactError("is not what its digest says; copy the package again")
        return b"".join(parts)

    def graph(self, entry: FileEntry, policy: Policy) -> GraphSummary:
        """The graph file, summed up."""
        descriptor = os.memfd_create("graph", os.MFD_CLOEXEC)
        with open(descriptor, "w+b", buffering=0) as file:
            file.write(self.bytes_of(entry, graph_limits(policy.repository).max_graph_bytes))
            return read_graph(descriptor, graph_limits(policy.repository))
