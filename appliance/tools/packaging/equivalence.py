"""Compare the answers of two forms of a model, bit for bit, for random inputs: a program of its own.

``python -m appliance.tools.packaging.equivalence SOURCE PACKED`` writes one JSON object: {"proven": N} after N requests
that gave equal bytes, {"differs": TEXT} when one did not, {"unproven": TEXT} when nothing could be compared. In a
process of its own, because it loads models, and packing should neither wait for the runtime's import nor die with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.domain.errors import ModelInvalid, Problem

if TYPE_CHECKING:
    import numpy as np

ROUNDS: Final = 3
FREE_DIMENSION: Final = 2
SECONDS_MAX: Final = 1800
ELEMENTS_MAX: Final = 1 << 26
_FLOATS: Final = {"float": "f4", "double": "f8", "float16": "f2"}
_INTEGERS: Final = {
    "int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8",
    "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """``rounds`` random requests gave equal answers; 0 when nothing could be compared, for the ``reason``."""

    rounds: int
    reason: str = ""


def check_equivalence(source: str, packed: Path) -> Equivalence:
    """Compare the model files ``source`` and ``packed`` in a child. Raises ModelInvalid when they differ."""
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "appliance.tools.packaging.equivalence", source, str(packed)]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=SECONDS_MAX, check=False)
        said = json.loads(done.stdout.decode().rpartition("\n")[2] or "null")
    except subprocess.TimeoutExpired:
        return Equivalence(rounds=0, reason=f"the comparison took more than {SECONDS_MAX} s")
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return Equivalence(rounds=0, reason=f"the comparing process ended with status {done.returncode}")
    if "differs" in said:
        text = f"the packed form does not answer as the source does: {said['differs']}; please report this"
        raise ModelInvalid([Problem(file=source, key="", text=text)])
    return Equivalence(rounds=int(said.get("proven", 0)), reason=str(said.get("unproven", "")))


def compare(source: str, packed: str) -> Mapping[str, object]:
    """What the program writes."""
    try:
        import numpy
        import onnxruntime
    except ImportError as error:
        return {"unproven": f"the runtime is not installed ({error})"}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4

    def answers(path: str, feeds: Sequence[Mapping[str, Any]] | None) -> tuple[Any, list[Any]]:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        made = list(_feeds(session.get_inputs(), numpy)) if feeds is None else feeds
        return made, [_outcome(session, feed) for feed in made]

    try:
        feeds, before = answers(source, None)
    except Exception as error:  # noqa: BLE001 - the runtime raises anything
        return {"unproven": f"the runtime does not load the source: {str(error)[:300]}"}
    try:
        _, after = answers(packed, feeds)
    except Exception as error:  # noqa: BLE001 - the runtime raises anything
        return {"differs": f"the runtime does not load it: {str(error)[:300]}"}
    for one, other in zip(before, after, strict=True):
        if one != other:
            return {"differs": "a random request is answered with other bytes"}
    proven = sum(isinstance(each, list) for each in before)
    if not proven:
        return {"unproven": f"the source answers no random request: {str(before[:1])[:300]}"}
    return {"proven": proven}


def _feeds(inputs: Sequence[Any], numpy: Any) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Random inputs; free dimensions are small. Integers are 0 or 1, which are indexes into nearly everything."""
    random = numpy.random.default_rng(20)
    for _ in range(ROUNDS):
        yield {each.name: _values(each, random, numpy) for each in inputs}


def _values(port: Any, random: Any, numpy: Any) -> Any:
    shape = [size if isinstance(size, int) and size >= 0 else FREE_DIMENSION for size in port.shape]
    if numpy.prod(shape, dtype=object) > ELEMENTS_MAX:
        raise ValueError(f"input '{port.name}' has more than {ELEMENTS_MAX} elements")
    kind = port.type.removeprefix("tensor(").removesuffix(")")
    if kind in _FLOATS:
        return random.standard_normal(shape).astype(_FLOATS[kind])
    if kind in _INTEGERS:
        return random.integers(0, 2, shape).astype(_INTEGERS[kind])
    if kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if kind == "string":
        return random.integers(0, 99, shape).astype(str).astype(object)
    raise ValueError(f"input '{port.name}' is of type {port.type}")


def _outcome(session: Any, feed: Mapping[str, Any]) -> object:
    """The answer as comparable values, or the failure's text without what names the file."""
    try:
        return [(str(each.dtype), each.shape, each.tobytes() if each.dtype != object else each.tolist())
                for each in session.run(None, feed)]  # fmt: skip
    except Exception as error:  # noqa: BLE001 - the runtime raises anything
        return type(error).__name__


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], sys.argv[2])), end="")
