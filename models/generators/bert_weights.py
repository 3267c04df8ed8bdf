"""The weights of a BERT encoder as values, and the same encoder written down as a formula.

The formula runs in double precision with numpy alone. It is slow and shares no code with the ONNX graph, which is what
makes it good for expected answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.generators.safetensors_file import Tensors

HEADS: Final = 12
NORM_EPSILON: Final = 1e-12
LENGTH_EPSILON: Final = 1e-12
MASKED_SCORE: Final = -10000.0

Array = NDArray[Any]
Tokens = NDArray[np.int64]
_erf = np.frompyfunc(math.erf, 1, 1)


class WeightsError(ValueError):
    """A weight is missing or has another shape than the architecture gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """y = x @ weight + bias; weight [inputs, outputs]."""

    weight: Array
    bias: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Layer normalisation over the last dimension."""

    scale: Array
    shift: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One transformer layer; normalisation follows each residual sum."""

    query: Affine
    key: Affine
    value: Affine
    attended: Affine
    attended_norm: Norm
    widen: Affine
    narrow: Affine
    output_norm: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """`words` [vocabulary, width]; `positions` [positions_max, width] with token type 0 already added."""

    words: Array
    positions: Array
    norm: Norm
    layers: tuple[Layer, ...]

    @property
    def width(self) -> int:
        """Size of a token's vector."""
        return int(self.words.shape[1])


def read_encoder(tensors: Tensors, *, layers: int) -> Encoder:
    """An encoder from weights under their usual names. Raises WeightsError."""
    words = _take(tensors, "embeddings.word_embeddings.weight")
    positions = _take(tensors, "embeddings.position_embeddings.weight")
    types = _take(tensors, "embeddings.token_type_embeddings.weight")
    if not words.ndim == positions.ndim == types.ndim == 2:
        raise WeightsError("an embedding table is not a matrix")
    width = words.shape[1]
    return Encoder(
        words=words,
        positions=positions + types[0],
        norm=_norm(tensors, "embeddings.LayerNorm", width),
        layers=tuple(_layer(tensors, f"encoder.layer.{index}", width) for index in range(layers)),
    )


def embed(encoder: Encoder, input_ids: Tokens, attention_mask: Tokens) -> NDArray[np.float64]:
    """Unit vectors [batch, width]: the masked mean of the last layer, for ids and mask [batch, sequence]."""
    hidden = encoder.words[input_ids].astype(np.float64) + encoder.positions[: input_ids.shape[1]]
    hidden = _normalise(encoder.norm, hidden)
    penalty = (1.0 - attention_mask[:, np.newaxis, np.newaxis, :]) * MASKED_SCORE
    for layer in encoder.layers:
        mixed = _affine(layer.attended, _attend(layer, hidden, penalty))
        hidden = _normalise(layer.attended_norm, hidden + mixed)
        wide = _affine(layer.widen, hidden)
        active = wide * 0.5 * (1.0 + np.asarray(_erf(wide / math.sqrt(2.0)), np.float64))
        hidden = _normalise(layer.output_norm, hidden + _affine(layer.narrow, active))
    counted = attention_mask[:, :, np.newaxis].astype(np.float64)
    mean = (hidden * counted).sum(axis=1) / np.maximum(counted.sum(axis=1), LENGTH_EPSILON)
    length = np.sqrt((mean * mean).sum(axis=1, keepdims=True))
    return np.asarray(mean / np.maximum(length, LENGTH_EPSILON))


def _attend(layer: Layer, hidden: Array, penalty: Array) -> Array:
    query, key, value = (_heads(_affine(part, hidden)) for part in (layer.query, layer.key, layer.value))
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(query.shape[-1]) + penalty
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    context = (powers / powers.sum(axis=-1, keepdims=True)) @ value
    return np.asarray(context.transpose(0, 2, 1, 3).reshape(hidden.shape))


def _heads(vectors: Array) -> Array:
    batch, sequence, width = vectors.shape
    return vectors.reshape(batch, sequence, HEADS, width // HEADS).transpose(0, 2, 1, 3)


def _affine(part: Affine, vectors: Array) -> Array:
    return np.asarray(vectors @ part.weight.astype(np.float64) + part.bias)


def _normalise(norm: Norm, vectors: Array) -> Array:
    centred = vectors - vectors.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return np.asarray(centred / spread * norm.scale + norm.shift)


def _take(tensors: Tensors, name: str, shape: tuple[int, ...] | None = None) -> Array:
    if name not in tensors:
        raise WeightsError(f"weight {name!r} is missing")
    tensor = tensors[name]
    if tensor.dtype != np.float32 or (shape is not None and tensor.shape != shape):
        raise WeightsError(f"weight {name!r} is {tensor.dtype} {tensor.shape}, wanted float32 {shape}")
    return tensor


def _norm(tensors: Tensors, prefix: str, width: int) -> Norm:
    return Norm(
        scale=_take(tensors, f"{prefix}.weight", (width,)), shift=_take(tensors, f"{prefix}.bias", (width,))
    )


def _linear(tensors: Tensors, prefix: str, inputs: int, outputs: int) -> Affine:
    weight = _take(tensors, f"{prefix}.weight", (outputs, inputs))
    return Affine(weight=np.ascontiguousarray(weight.T), bias=_take(tensors, f"{prefix}.bias", (outputs,)))


def _layer(tensors: Tensors, prefix: str, width: int) -> Layer:
    attention = f"{prefix}.attention"
    return Layer(
        query=_linear(tensors, f"{attention}.self.query", width, width),
        key=_linear(tensors, f"{attention}.self.key", width, width),
        value=_linear(tensors, f"{attention}.self.value", width, width),
        attended=_linear(tensors, f"{attention}.output.dense", width, width),
        attended_norm=_norm(tensors, f"{attention}.output.LayerNorm", width),
        widen=_linear(tensors, f"{prefix}.intermediate.dense", width, 4 * width),
        narrow=_linear(tensors, f"{prefix}.output.dense", 4 * width, width),
        output_norm=_norm(tensors, f"{prefix}.output.LayerNorm", width),
    )
