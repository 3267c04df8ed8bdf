"""A BERT sentence encoder as an ONNX graph, in the shapes that runtimes know how to fuse.

Attention, exact GELU (through Erf) and the residual normalisations are spelled the way the usual exporters spell them,
because that is the pattern optimisers look for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.generators.bert_weights import (
    HEADS,
    LENGTH_EPSILON,
    MASKED_SCORE,
    NORM_EPSILON,
    Affine,
    Encoder,
    Layer,
    Norm,
)
from models.generators.graph import Constant, Node, constant, model_bytes, node, tensor_port


class _GraphWriter:
    """Collects nodes and constants of one graph; every method returns the name of the value it made."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []

    def hold(self, name: str, array: NDArray[Any]) -> str:
        self.constants.append(constant(name, array))
        return name

    def call(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(node(operator, inputs, [name], **attributes))
        return name

    def affine(self, part: Affine, source: str, name: str) -> str:
        product = self.call("MatMul", [source, self.hold(f"{name}.weight", part.weight)], f"{name}.product")
        return self.call("Add", [product, self.hold(f"{name}.bias", part.bias)], name)

    def normalise(self, norm: Norm, source: str, name: str) -> str:
        scale = self.hold(f"{name}.scale", norm.scale)
        shift = self.hold(f"{name}.shift", norm.shift)
        return self.call("LayerNormalization", [source, scale, shift], name, axis=-1, epsilon=NORM_EPSILON)

    def gelu(self, source: str, name: str) -> str:
        scaled = self.call("Div", [source, "root_two"], f"{name}.scaled")
        bell = self.call("Add", [self.call("Erf", [scaled], f"{name}.erf"), "one"], f"{name}.bell")
        return self.call("Mul", [self.call("Mul", [source, bell], f"{name}.double"), "half"], name)


def sentence_encoder(encoder: Encoder) -> bytes:
    """input_ids, attention_mask INT64 [batch, sequence] to sentence_embedding FP32 [batch, width], unit length.

    The sequence may be as long as there are positions; a longer one fails in the runtime at the position sum.
    """
    writer = _GraphWriter()
    _hold_numbers(writer, encoder)
    hidden = _embeddings(writer, encoder)
    penalty = _mask_penalty(writer)
    for index, layer in enumerate(encoder.layers):
        hidden = _layer(writer, layer, hidden, penalty, f"layer{index}")
    _pool(writer, hidden)
    return model_bytes(
        "sentence_encoder",
        writer.nodes,
        inputs=[
            tensor_port(name, "INT64", ["batch", "sequence"]) for name in ("input_ids", "attention_mask")
        ],
        outputs=[tensor_port("sentence_embedding", "FP32", ["batch", encoder.width])],
        constants=writer.constants,
    )


def _hold_numbers(writer: _GraphWriter, encoder: Encoder) -> None:
    """Constants that more than one place names."""
    head_width = encoder.width // HEADS
    numbers = {
        "root_two": math.sqrt(2.0),
        "one": 1.0,
        "half": 0.5,
        "score_scale": math.sqrt(head_width),
        "masked_score": MASKED_SCORE,
        "length_floor": LENGTH_EPSILON,
    }
    for name, value in numbers.items():
        writer.hold(name, np.array(value, np.float32))
    writer.hold("split_heads", np.array([0, 0, HEADS, head_width], np.int64))
    writer.hold("join_heads", np.array([0, 0, encoder.width], np.int64))
    for axis in (0, 1, 2):
        writer.hold(f"axis{axis}", np.array([axis], np.int64))


def _embeddings(writer: _GraphWriter, encoder: Encoder) -> str:
    words = writer.call("Gather", [writer.hold("words", encoder.words), "input_ids"], "word_vectors")
    length = writer.call("Shape", ["input_ids"], "sequence_length", start=1, end=2)
    table = writer.hold("positions", encoder.positions)
    positions = writer.call("Slice", [table, "axis0", length, "axis0"], "position_vectors")
    return writer.normalise(
        encoder.norm, writer.call("Add", [words, positions], "embedded"), "embedding_norm"
    )


def _mask_penalty(writer: _GraphWriter) -> str:
    """[batch, 1, 1, sequence]: 0 where a token counts, a very low score where it is padding."""
    wide = writer.call("Unsqueeze", ["attention_mask", "axis1"], "mask_heads")
    wide = writer.call("Unsqueeze", [wide, "axis2"], "mask_rows")
    counted = writer.call("Cast", [wide], "mask_counted", to=1)
    padded = writer.call("Sub", ["one", counted], "mask_padded")
    return writer.call("Mul", [padded, "masked_score"], "mask_penalty")


def _layer(writer: _GraphWriter, layer: Layer, hidden: str, penalty: str, name: str) -> str:
    context = _attention(writer, layer, hidden, penalty, name)
    attended = writer.affine(layer.attended, context, f"{name}.attended")
    middle = writer.normalise(
        layer.attended_norm, writer.call("Add", [attended, hidden], f"{name}.first_sum"), f"{name}.middle"
    )
    active = writer.gelu(writer.affine(layer.widen, middle, f"{name}.wide"), f"{name}.active")
    narrow = writer.affine(layer.narrow, active, f"{name}.narrow")
    return writer.normalise(
        layer.output_norm, writer.call("Add", [narrow, middle], f"{name}.second_sum"), f"{name}.output"
    )


def _attention(writer: _GraphWriter, layer: Layer, hidden: str, penalty: str, name: str) -> str:
    """Context vectors [batch, sequence, width]."""

    def heads(part: Affine, role: str, order: tuple[int, ...]) -> str:
        flat = writer.affine(part, hidden, f"{name}.{role}")
        split = writer.call("Reshape", [flat, "split_heads"], f"{name}.{role}_split")
        return writer.call("Transpose", [split], f"{name}.{role}_heads", perm=list(order))

    query = heads(layer.query, "query", (0, 2, 1, 3))
    key = heads(layer.key, "key", (0, 2, 3, 1))
    value = heads(layer.value, "value", (0, 2, 1, 3))
    products = writer.call("MatMul", [query, key], f"{name}.products")
    scaled = writer.call("Div", [products, "score_scale"], f"{name}.scores")
    masked = writer.call("Add", [scaled, penalty], f"{name}.masked")
    shares = writer.call("Softmax", [masked], f"{name}.shares", axis=-1)
    mixed = writer.call("MatMul", [shares, value], f"{name}.mixed")
    ordered = writer.call("Transpose", [mixed], f"{name}.mixed_rows", perm=[0, 2, 1, 3])
    return writer.call("Reshape", [ordered, "join_heads"], f"{name}.context")


def _pool(writer: _GraphWriter, hidden: str) -> str:
    """The mean over counted tokens, brought to length one."""
    column = writer.call("Unsqueeze", ["attention_mask", "axis2"], "mask_column")
    counted = writer.call("Cast", [column], "token_counts", to=1)
    kept = writer.call("Mul", [hidden, counted], "kept")
    total = writer.call("ReduceSum", [kept, "axis1"], "total", keepdims=0)
    count = writer.call("ReduceSum", [counted, "axis1"], "token_count", keepdims=0)
    mean = writer.call("Div", [total, writer.call("Max", [count, "length_floor"], "divisor")], "mean")
    length = writer.call("ReduceL2", [mean], "length", axes=[1], keepdims=1)
    floor = writer.call("Max", [length, "length_floor"], "safe_length")
    return writer.call("Div", [mean, floor], "sentence_embedding")
