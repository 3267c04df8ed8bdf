"""Why ONNX Runtime would not: its words, made into what a person can use."""

from __future__ import annotations

import os
import re
from typing import Final

_SOURCE_PLACE: Final = re.compile(
    r"[\w./+-]{1,300}\.(?:h|hpp|c|cc|cpp|cu|cuh):\d+\s+"  # file and line ...
    r"(?:[^()\n]{0,300}::[^()\n]{0,300}\((?:[^()\n]|\([^()\n]*\))*\)(?: const)?\s+)?"  # ... and the function
)
STANDARD_DOMAIN: Final = "ai.onnx"
"""What the domain of operators is called whose name is empty."""
_UNKNOWN_OPERATOR: Final = re.compile(r"No Op registered for (\S+) with domain_version of (\d+)")
_UNKNOWN_FUNCTION: Final = re.compile(r"error: ([^\s:]*):(\S+?)\(-?\d+\) is not a registered function/op")


def runtime_reason(problem: Exception) -> str:
    """The runtime's words without where in its source they were written, which means nothing to a client."""
    return _SOURCE_PLACE.sub("", str(problem)).strip()


def load_reason(path: str, problem: Exception, release: str) -> str:
    """Why the model at ``path`` is not loaded by this ``release`` of the runtime: its words, but for where its files
    lie, which means nothing to a client, and for an operator that it does not know."""
    folder = os.path.dirname(path)
    reason = runtime_reason(problem).replace(f"{folder}/", "").replace(folder, os.path.basename(folder))
    if unknown := _UNKNOWN_FUNCTION.search(reason):
        domain, name, opset = unknown[1], unknown[2], ""
    elif unknown := _UNKNOWN_OPERATOR.search(reason):
        name, opset = unknown[1], f" in its operator set {unknown[2]}"
        domain = reason.partition(f', {name}, "')[2].partition('"')[0]
    else:
        return reason
    return (
        f"operator '{name[:100]}' of the domain '{domain[:100] or STANDARD_DOMAIN}' is not known to onnxruntime "
        f"{release}{opset}; export the model for a later operator set or without this operator, or install a release "
        f"of onnxruntime that has it"
    )
