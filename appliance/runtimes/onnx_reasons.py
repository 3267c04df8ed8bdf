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

_LACKING_LOCALE: Final = re.compile(r"Failed to construct locale with name:([^\s:]{1,100}):")
_LATE_FORMAT: Final = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_LATE_OPERATORS: Final = re.compile(
    r"Opset (\d+) is under development.{0,500}official support for domain (\S+) is till opset (\d+)",
    re.DOTALL,
)


def runtime_reason(problem: Exception) -> str:
    """The runtime's words without where in its source they were written, which means nothing to a client."""
    return _SOURCE_PLACE.sub("", str(problem)).strip()


def load_reason(path: str, problem: Exception, release: str) -> str:
    """Why the model at ``path`` is not loaded by this ``release`` of the runtime: its words, but for where its files
    lie, which means nothing to a client, and for what it is too old for, where they do not say what to do."""
    folder = os.path.dirname(path)
    reason = runtime_reason(problem).replace(f"{folder}/", "").replace(folder, os.path.basename(folder))
    return unsupported_reason(problem, release) or _locale_problem(reason) or reason


def unsupported_reason(problem: Exception, release: str) -> str:
    """What is to be done about a model that this ``release`` of the runtime never loads as it is; "" where it may be
    for another reason that it does not."""
    reason = runtime_reason(problem)
    return _too_new_problem(reason, release) or _operator_problem(reason, release)


def _locale_problem(reason: str) -> str:
    """What is to be done about a model that changes the case of texts as is usual elsewhere; "" where that is not the
    reason. Where it names no locale, ONNX Runtime asks for that of the USA."""
    if lacking := _LACKING_LOCALE.search(reason):
        return (
            f"StringNormalizer asks for the locale '{lacking[1]}', which this machine does not have; bring it (on "
            "Debian with the package locales-all, or localedef), or export the model with the locale C.UTF-8"
        )
    return ""


def _too_new_problem(reason: str, release: str) -> str:
    """What is to be done about a model whose format, or whose set of operators, came after this release; "" where that
    is not the reason. Current releases of the ``onnx`` package write such by default."""
    if late := _LATE_FORMAT.search(reason):
        return (
            f"the model's ir_version is {late[1]}, and onnxruntime {release} reads up to {late[2]}; save the model "
            f"with ir_version = {late[2]}, or install a release of onnxruntime that reads it"
        )
    if late := _LATE_OPERATORS.search(reason):
        return (
            f"the model's operator set of the domain '{late[2][:100]}' is {late[1]}, and onnxruntime {release} knows "
            f"up to {late[3]}; export or convert the model to {late[3]}, or install a release of onnxruntime that "
            f"knows it"
        )
    return ""


def _operator_problem(reason: str, release: str) -> str:
    """What is to be done about an operator that this release does not know; "" where that is not the reason."""
    if unknown := _UNKNOWN_FUNCTION.search(reason):
        domain, name, opset = unknown[1], unknown[2], ""
    elif unknown := _UNKNOWN_OPERATOR.search(reason):
        name, opset = unknown[1], f" in its operator set {unknown[2]}"
        domain = reason.partition(f', {name}, "')[2].partition('"')[0]
    else:
        return ""
    return (
        f"operator '{name[:100]}' of the domain '{domain[:100] or STANDARD_DOMAIN}' is not known to onnxruntime "
        f"{release}{opset}; export the model for a later operator set or without this operator, or install a release "
        f"of onnxruntime that has it"
    )
