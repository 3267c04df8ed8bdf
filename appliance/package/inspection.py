"""What a package says of itself, for people: its manifest, graph and golden set, without reading its weights.

Only the files that are shown are read and their digests compared; the rest is not looked at, which is what ``verify``
is for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from appliance.domain.digest import Digester
from appliance.domain.errors import ArtefactError, PackageInvalid, Problem
from appliance.domain.golden import SET_BYTES_MAX, SET_FILE, GoldenSet, decode_golden
from appliance.domain.manifest import FileEntry, Manifest
from appliance.package.conformity import GRAPH_FILE
from appliance.package.container import blob_places
from appliance.package.reader import CHUNK_BYTES, PackageReader
from appliance.package.trust import Trust, judge
from appliance.package.verification import Policy, opened
from appliance.repository.onnx.graph import read_graph
from appliance.repository.onnx.limits import graph_limits
from appliance.repository.onnx.summary import GraphSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A package as far as it is shown. ``graph`` and ``golden`` are None where it has none that can be read;
    ``problems`` say why."""

    size: int
    digest: str
    manifest: Manifest
    trust: Trust
    graph: GraphSummary | None
    golden: GoldenSet | None
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
        for entry in reader.manifest.files:
            try:
                if entry.path.endswith(f"/{GRAPH_FILE}"):
                    graph = contents.graph(entry, policy)
                elif entry.path.endswith(SET_FILE):
                    golden = decode_golden(contents.bytes_of(entry, SET_BYTES_MAX), entry.path)
            except ArtefactError as error:
                problems.append(Problem(file=entry.path, key="", text=str(error)))
        return Inspection(
            size=size,
            digest=reader.digest,
            manifest=reader.manifest,
            trust=trust,
            graph=graph,
            golden=golden,
            problems=tuple(problems),
        )


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
                raise ArtefactError("is cut off")
            digester.update(data)
            parts.append(data)
        if digester.finish().digest != entry.digest:
            raise ArtefactError("is not what its digest says")
        return b"".join(parts)

    def graph(self, entry: FileEntry, policy: Policy) -> GraphSummary:
        """The graph file, summed up."""
        descriptor = os.memfd_create("graph", os.MFD_CLOEXEC)
        with open(descriptor, "w+b", buffering=0) as file:
            file.write(self.bytes_of(entry, graph_limits(policy.repository).max_graph_bytes))
            return read_graph(descriptor, graph_limits(policy.repository))
