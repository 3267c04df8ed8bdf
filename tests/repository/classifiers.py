"""A classifier as onnxmltools leaves one of LightGBM: labels of the shape [1], whatever they are asked."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.repository.onnx_files import Dims, copying, model_of, port

SPLIT = 0.5
"""Rows whose first value is above this are of class 7, others of class 3."""


def tree(row: str = "x", label: str = "found", shares: str = "shares") -> NodeProto:
    """The node that classifies ``row``."""
    return helper.make_node(
        "TreeEnsembleClassifier",
        [row],
        [label, shares],
        domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[SPLIT, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        class_treeids=[0, 0],
        class_nodeids=[1, 2],
        class_ids=[0, 0],
        class_weights=[-1.0, 1.0],
        classlabels_int64s=[3, 7],
        post_transform="LOGISTIC",
    )


def classifier(
    rows: int | str | None = "N",
    label: Dims = (1,),
    shares: Dims = (None, 2),
    nodes: Sequence[NodeProto] | None = None,
    tensors: Sequence[TensorProto] = (),
) -> ModelProto:
    """From ``x``, rows of two values, to ``label`` and ``probabilities``; ``nodes`` are others than what makes these of
    the tree."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    plain = [tree(), copying("found", "label"), helper.make_node("Mul", ["shares", "one"], ["probabilities"])]
    model = model_of(
        [port("x", [rows, 2])],
        [port("label", label, TensorProto.INT64), port("probabilities", shares)],
        plain if nodes is None else nodes,
        [one, *tensors],
    )
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return model
