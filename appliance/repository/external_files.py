"""Files beside a model file that hold tensors of it: each must lie in the same model directory and be large
enough."""

from __future__ import annotations

from pathlib import PurePosixPath

from appliance.errors import ArtefactError
from appliance.repository.findings import Findings, Place
from appliance.repository.model_files import ModelFile, ModelHome
from appliance.repository.onnx_graph import ExternalData, GraphSummary


def external_files(
    graph: GraphSummary, home: ModelHome, start: PurePosixPath, place: Place, findings: Findings
) -> tuple[ModelFile, ...]:
    """The distinct files that tensors of the graph refer to, looked for from ``start``; of each location the
    first thing that is wrong is a problem."""
    found: dict[str, ModelFile] = {}
    wrong: set[str] = set()
    for reference in graph.external:
        location = reference.location
        if location in wrong:
            continue
        try:
            if location not in found:
                found[location] = home.file(PurePosixPath(location), start=start)
            _check_piece(reference, found[location])
        except ArtefactError as error:
            wrong.add(location)
            shown = location.encode(errors="surrogateescape").decode(errors="replace")
            findings.problem(place, f"tensor '{reference.tensor}' has its data in '{shown}', which {error}")
    return tuple({file.path: file for file in found.values()}.values())


def _check_piece(reference: ExternalData, file: ModelFile) -> None:
    """Raises ArtefactError when the piece is not inside the file."""
    end = reference.offset + (reference.length or 0)
    if end > file.size:
        raise ArtefactError(f"has {file.size} bytes and not the {end} that the tensor needs")
