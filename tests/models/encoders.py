"""Small sentence encoders of random weights."""

from __future__ import annotations

import numpy as np

from models.generators.bert_weights import HEADS, Encoder, read_encoder

WIDTH = 2 * HEADS
VOCABULARY = 50
POSITIONS = 9


def random_tensors(layers: int) -> dict[str, np.ndarray]:
    """Weights by name."""
    generator = np.random.default_rng(5)
    shapes = {
        "embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}"
        for role in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{prefix}.attention.{role}.weight"] = (WIDTH, WIDTH)
            shapes[f"{prefix}.attention.{role}.bias"] = (WIDTH,)
        shapes[f"{prefix}.intermediate.dense.weight"] = (4 * WIDTH, WIDTH)
        shapes[f"{prefix}.intermediate.dense.bias"] = (4 * WIDTH,)
        shapes[f"{prefix}.output.dense.weight"] = (WIDTH, 4 * WIDTH)
        shapes[f"{prefix}.output.dense.bias"] = (WIDTH,)
        for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{prefix}.{norm}.weight"] = (WIDTH,)
            shapes[f"{prefix}.{norm}.bias"] = (WIDTH,)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def small_encoder() -> Encoder:
    """Two layers."""
    return read_encoder(random_tensors(2), layers=2)
