"""How far an answer is from the one it should be: per output, without numpy, so that the daemon can tell, too.

Rules kept here: integers, truth values and strings are equal or not; a number is near enough when
``|found - right| <= absolute + relative * |right|``; NaN is near NaN only, an infinity near itself only; a different
datatype or shape is wrong as a whole. ``runtimes/arrays`` gives the same for large tensors. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from appliance.domain.golden import Tolerance
from appliance.domain.tensor import FLOATS, Datatype, element_count, numbers, split_bytes

SHOWN_CHARACTERS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One output beside the right one.

    ``values`` were compared, ``outside`` of them are not near enough. ``absolute`` is the largest ``|found - right|``,
    ``relative`` the largest ``|found - right| / |right|`` where right is not 0; both are infinite where only one of two
    is a finite number, and both 0 where values are merely equal or not. ``worst`` is the row-major index of the value
    that is furthest outside, or -1. ``reason`` says in words what is wrong, "" when all is near enough.
    """

    values: int
    outside: int = 0
    absolute: float = 0.0
    relative: float = 0.0
    worst: int = -1
    reason: str = ""

    @property
    def held(self) -> bool:
        """Whether the output is near enough."""
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """A tensor to compare: its full shape and its raw wire bytes."""

    datatype: Datatype
    shape: tuple[int, ...]
    raw: memoryview | bytes


def difference(found: Values, right: Values, tolerance: Tolerance) -> Difference:
    """How ``found`` differs from ``right``. Raises InvalidRequest for BYTES that are cut short."""
    values = element_count(right.shape)
    if (reason := form_reason(found, right)) is not None:
        return Difference(values=values, outside=values, absolute=math.inf, relative=math.inf, reason=reason)
    if found.raw == right.raw and right.datatype not in FLOATS:
        return Difference(values=values)
    if right.datatype is Datatype.BYTES:
        return _of_equals(list(split_bytes(memoryview(found.raw))), list(split_bytes(memoryview(right.raw))))
    if right.datatype not in FLOATS:
        return _of_equals(
            numbers(found.raw, right.datatype, values), numbers(right.raw, right.datatype, values)
        )
    return _of_floats(
        numbers(found.raw, right.datatype, values), numbers(right.raw, right.datatype, values), tolerance
    )


def form_reason(found: Values, right: Values) -> str | None:
    """Why the two cannot be compared value by value, or None."""
    if found.datatype is not right.datatype:
        return f"is {found.datatype.wire} instead of {right.datatype.wire}"
    if found.shape != right.shape:
        return f"has shape {list(found.shape)} instead of {list(right.shape)}"
    if right.datatype is not Datatype.BYTES and len(found.raw) != len(right.raw):
        return f"has {len(found.raw)} bytes instead of {len(right.raw)}"
    return None


def excess(found: float, right: float, tolerance: Tolerance) -> float:
    """How far beyond the tolerance one number is: at most 0 when it is near enough, infinite when only one of the two
    is a finite number."""
    if found == right or (found != found and right != right):
        return 0.0
    distance = abs(found - right)
    if not math.isfinite(distance):
        return math.inf
    return distance - (tolerance.absolute + tolerance.relative * abs(right))


def outside_reason(outside: int, values: int, index: int, found: object, right: object) -> str:
    """The sentence about values that are not near enough."""
    return (
        f"has {outside} of {values} values outside its tolerance; the worst is value {index}: "
        f"{_shown(found)} instead of {_shown(right)}"
    )


def _of_equals(found: Sequence[object], right: Sequence[object]) -> Difference:
    wrong = [index for index, (one, other) in enumerate(zip(found, right, strict=False)) if one != other]
    wrong += range(min(len(found), len(right)), max(len(found), len(right)))
    if not wrong:
        return Difference(values=len(right))
    first = wrong[0]
    return Difference(
        values=len(right),
        outside=len(wrong),
        worst=first,
        reason=outside_reason(len(wrong), len(right), first, _at(found, first), _at(right, first)),
    )


def _of_floats(found: Sequence[float], right: Sequence[float], tolerance: Tolerance) -> Difference:
    absolute = relative = furthest = 0.0
    outside, worst = 0, -1
    for index, (one, other) in enumerate(zip(found, right, strict=True)):
        if one == other or (one != one and other != other):
            continue
        distance = abs(one - other)
        distance = distance if math.isfinite(distance) else math.inf
        absolute = max(absolute, distance)
        if other:
            relative = max(relative, distance / abs(other) if math.isfinite(other) else math.inf)
        beyond = excess(one, other, tolerance)
        if beyond > 0:
            outside += 1
            if beyond > furthest:
                furthest, worst = beyond, index
    reason = outside_reason(outside, len(right), worst, found[worst], right[worst]) if outside else ""
    return Difference(
        values=len(right), outside=outside, absolute=absolute, relative=relative, worst=worst, reason=reason
    )


def _at(values: Sequence[object], index: int) -> object:
    return values[index] if index < len(values) else None


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, memoryview):
        return repr(bytes(value[:SHOWN_CHARACTERS]).decode(errors="backslashreplace"))
    return str(value)
