"""What the ONNX Runtime of this machine says of a model that it has not loaded.

The box that is to run the model may be another machine with a later release, so that this is told and keeps nobody from
going on. Where no ONNX Runtime is installed nothing is known.
"""

from __future__ import annotations

from appliance.package.conformity import manifest_opsets
from appliance.repository.onnx.summary import GraphSummary


def too_new(graph: GraphSummary) -> tuple[str, ...]:
    """Why the runtime here does not read the format of a model, or one of its sets of operators, and what to do."""
    try:
        from appliance.runtimes.onnx import OnnxRuntime
    except ImportError:
        return ()
    opsets = {each.domain: each.version for each in manifest_opsets(graph)}
    return tuple(OnnxRuntime().too_new(graph.ir_version, opsets))


def warning_text(key: str, problem: str) -> str:
    """That the version ``key`` is of no use with the runtime here."""
    return f"{key} would not load here, nor on a box with this onnxruntime: {problem}"
