"""Files beside a model file that hold tensors of it: each must lie in the same model directory, be no link, and be
large enough."""

from __future__ import annotations

from pathlib import PurePosixPath

from appliance.repository.findings import Findings, Place
from appliance.repository.model_files import ModelFile, ModelHome
from appliance.repository.onnx_firewall import reference_flaws
from appliance.repository.onnx_graph import GraphSummary


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
