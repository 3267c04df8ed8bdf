"""Graphs of one classifier of ``ai.onnx.ml``, which has a label and probabilities for each row, whatever shapes say.

Converters are less exact than the operator's specification: onnxmltools gives labels of LightGBM the shape [1], and the
rows of probabilities no name where those of the input have one. Known by its operators alone, as nothing else may stand
in such a graph but what keeps rows, and no constant that could be an output. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from appliance.repository.onnx.summary import GraphPort, GraphSummary, OperatorKey

_ML: Final = "ai.onnx.ml"
CLASSIFIERS: Final[frozenset[OperatorKey]] = frozenset(
    {(_ML, "LinearClassifier"), (_ML, "SVMClassifier"), (_ML, "TreeEnsembleClassifier")}
)
KEEPING: Final[frozenset[OperatorKey]] = frozenset(
    {(_ML, "Normalizer"), ("", "Cast"), ("", "Identity"), ("", "Mul")}
)
"""What follows them, and gives as many rows as it takes."""
LABELS: Final = frozenset({7, 8})
"""ONNX's numbers of 64-bit integers and of strings."""
LABEL_RANK: Final = 1
SHARES_RANK: Final = 2


def true_outputs(graph: GraphSummary, inputs: Sequence[GraphPort]) -> Sequence[GraphPort]:
    """The outputs, with the rows of the input where the graph is one classifier."""
    if len(inputs) != 1 or not inputs[0].dims or not _is_classifier(graph):
        return graph.outputs
    rows = inputs[0].dims[0]
    return [replace(port, dims=(rows, *(port.dims or ())[1:])) for port in graph.outputs]


def _is_classifier(graph: GraphSummary) -> bool:
    used = graph.operators
    return (
        sum(used[each] for each in CLASSIFIERS) == 1
        and used.keys() <= CLASSIFIERS | KEEPING
        and all(len(port.dims or ()) == _rank(port.element_type) for port in graph.outputs)
        and all(each.element_type not in LABELS and len(each.dims) < SHARES_RANK for each in graph.tensors)
    )


def _rank(element_type: int) -> int:
    """Of an output with elements of this type."""
    return LABEL_RANK if element_type in LABELS else SHARES_RANK
