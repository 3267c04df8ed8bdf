"""Whether a model is one of which variants of less precision can be made: FP32, with weights, not quantised yet."""

from __future__ import annotations

from collections import Counter
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ArtefactError
from appliance.repository.onnx.firewall import graph_limits
from appliance.repository.onnx.graph import read_graph
from appliance.repository.onnx.summary import GraphSummary

FLOAT: Final = 1
MATRIX: Final = 2
TYPE_NAMES: Final = {2: "UINT8", 3: "INT8", 6: "INT32", 7: "INT64", 10: "FP16", 11: "FP64", 16: "BF16"}


def unsuitable_reason(path: str, settings: RepositoryConfig) -> str:
    """Why no variant can be made of the ONNX file at ``path``; "" when they can. Raises ArtefactError when it cannot be
    read."""
    try:
        with open(path, "rb") as file:
            return unfit(read_graph(file.fileno(), graph_limits(settings)))
    except OSError as error:
        raise ArtefactError(f"'{path}' cannot be read: {error.strerror}") from error


def unfit(graph: GraphSummary) -> str:
    """The same of a graph that was read."""
    for _, operator in graph.operators:
        if (
            "quantize" in operator.lower()
            or operator.endswith(("Integer", "NBits"))
            or operator.startswith("QLinear")
        ):
            return f"it is quantised already (it has {operator}); give the FP32 model that it was made of"
    weights = [each for each in graph.tensors if len(each.dims) >= MATRIX]
    if any(each.element_type == FLOAT for each in weights):
        return ""
    others = Counter(TYPE_NAMES.get(each.element_type, "") for each in weights)
    kinds = ", ".join(sorted(name for name in others if name))
    if kinds:
        return f"it has no FP32 weights, but such of {kinds}; give the FP32 model"
    return "it has no weights: there is no FP32 tensor of two dimensions or more in it"
