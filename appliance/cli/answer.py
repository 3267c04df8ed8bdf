"""The answer of ``appliance infer`` as plain values: top classes read back, JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from appliance.cli.array import decode, nested
from appliance.cli.oip_client import Reply
from appliance.domain.inference import OutputTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TopClass:
    """One class of a classification answer."""

    score: float
    index: int
    label: str

    @classmethod
    def parse(cls, word: str) -> TopClass:
        """Read ``score:index`` or ``score:index:label``."""
        score, index, *label = word.split(":", 2)
        return cls(score=float(score), index=int(index), label=label[0] if label else "")


def top_classes(output: OutputTensor) -> list[list[TopClass]]:
    """Rows of classes, best first; an output without a batch dimension is one row."""
    words = [TopClass.parse(word) for word in decode(bytes(output.data), output.datatype)]
    width = max(output.shape[-1], 1) if output.shape else 1
    return [words[start : start + width] for start in range(0, len(words), width)]


def as_json(reply: Reply, classes: Mapping[str, int]) -> dict[str, Any]:
    """The answer as plain JSON values; numbers that JSON does not have become texts."""
    return {
        "model": reply.model,
        "version": reply.version,
        "milliseconds": round(reply.milliseconds, 3),
        "outputs": [_output_json(output, classes.get(output.name, 0)) for output in reply.outputs],
    }


def _output_json(output: OutputTensor, asked: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": output.name,
        "datatype": output.datatype.wire,
        "shape": list(output.shape),
    }
    if asked:
        document["classes"] = [
            [{"score": _json_value(top.score), "index": top.index, "label": top.label} for top in row]
            for row in top_classes(output)
        ]
    else:
        values = [_json_value(value) for value in decode(bytes(output.data), output.datatype)]
        document["data"] = nested(values, output.shape) if values else []
    return document


def _json_value(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not isfinite(value) else value
