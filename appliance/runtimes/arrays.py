"""Wire tensors as numpy arrays: strings, made-up values, differences. For workers, not the daemon."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from appliance.domain.errors import InvalidRequest
from appliance.domain.golden import Tolerance
from appliance.domain.output_difference import Difference, Values, difference, form_reason, outside_reason
from appliance.domain.tensor import FLOATS, Datatype, element_count, encode_bytes, split_bytes

PLAIN_VALUES_MAX: Final = 64
RANDOM_SEED: Final = 7
LEAST_APART: Final = 1e-6
"""Where all is nearly zero, what is no more than this is none."""


def decode_strings(name: str, raw: memoryview, shape: tuple[int, ...]) -> NDArray[Any]:
    """Object array of str, of ``shape``, from the wire form ``raw`` of input ``name``.

    Raises InvalidRequest, naming the element, when an element is not UTF-8, and when ``raw`` does not hold that many.
    """
    elements: list[str] = []
    try:
        for element in split_bytes(raw):
            elements.append(str(element, "utf-8"))  # noqa: PERF401 - the count so far names the bad one
    except UnicodeDecodeError as problem:
        raise InvalidRequest(
            f"input '{name}': element {len(elements)} is not valid UTF-8 ({problem.reason} at byte {problem.start}); "
            f"strings of this runtime are UTF-8 text"
        ) from problem
    except InvalidRequest as problem:
        raise InvalidRequest(f"input '{name}': {problem}") from problem
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    try:
        return array.reshape(shape)
    except ValueError as problem:
        raise InvalidRequest(
            f"input '{name}': {len(elements)} strings do not fill shape {list(shape)}"
        ) from problem


def encode_strings(array: NDArray[Any]) -> bytes:
    """Wire form of an array of str in row-major order."""
    return encode_bytes(str(element).encode() for element in array.reshape(-1))


def random_tensor(datatype: Datatype, count: int, *, centred: bool = False) -> bytes:
    """Fractions below one, ``centred`` from minus one on; integers 0 and 1 (valid in vocabularies and masks), strings
    of eight digits."""
    generator = np.random.default_rng(RANDOM_SEED)
    if centred and datatype in FLOATS:
        values = generator.random(count, np.float32) * 2 - 1
        if datatype is Datatype.BF16:
            return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        return values.astype(f"<f{datatype.size}").tobytes()
    if datatype is Datatype.BYTES:
        return encode_bytes(f"{number:08d}".encode() for number in generator.integers(0, 10**8, count))
    if datatype is Datatype.BF16:
        return (generator.random(count, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    if datatype in (Datatype.FP16, Datatype.FP32, Datatype.FP64):
        return generator.random(count).astype(f"<f{datatype.size}").tobytes()
    return generator.integers(0, 2, count).astype(f"<u{datatype.size}").tobytes()


def nudged(datatype: Datatype, raw: memoryview | bytes, share: float) -> bytes:
    """Floats moved by up to ``share`` of themselves, each its own way, and the other way where that is negative; all
    else as it is."""
    if datatype not in FLOATS or datatype is Datatype.BF16:
        return bytes(raw)
    values = np.frombuffer(raw, f"<{datatype.code}")
    directions = np.random.default_rng(RANDOM_SEED).random(len(values), np.float32) * 2 - 1
    with np.errstate(all="ignore"):
        moved: NDArray[Any] = (values + values * directions * share).astype(values.dtype)
    return moved.tobytes()


def numpy_difference(found: Values, right: Values, tolerance: Tolerance) -> Difference:
    """How ``found`` differs from ``right``, as ``difference`` tells it, in the same words."""
    if element_count(right.shape) <= PLAIN_VALUES_MAX or right.datatype is Datatype.BYTES:
        return difference(found, right, tolerance)
    if form_reason(found, right) is not None:
        return difference(found, right, tolerance)
    if right.datatype not in FLOATS:
        return _of_integers(_integers(found), _integers(right))
    return _of_floats(_floats(found), _floats(right), tolerance)


def far_apart(found: Values, right: Values, share: float) -> bool:
    """Whether other values than rounding makes: floats that are off by more than ``share`` of the largest, or in other
    places no numbers, and anything else that is not equal."""
    if form_reason(found, right) is not None:
        return True
    if right.datatype not in FLOATS:
        return bytes(found.raw) != bytes(right.raw)
    one, other = _floats(found), _floats(right)
    finite = np.isfinite(other)
    if not np.array_equal(finite, np.isfinite(one)):
        return True
    largest = np.abs(other[finite]).max(initial=0.0)
    return bool(np.abs(one[finite] - other[finite]).max(initial=0.0) > share * largest + LEAST_APART)


def strain(found: Values, right: Values, tolerance: Tolerance) -> float:
    """The largest distance of a value from the right one, as a multiple of what the tolerance allows there: at most 1
    where all is near enough, infinite where only equal would do."""
    if form_reason(found, right) is not None:
        return math.inf
    if right.datatype not in FLOATS:
        return 0.0 if found.raw == right.raw else math.inf
    one, other = _floats(found), _floats(right)
    with np.errstate(all="ignore"):
        distance = np.abs(one - other)
        allowed = tolerance.absolute + tolerance.relative * np.abs(other)
        shares = np.where(np.isfinite(distance) & (allowed > 0), distance / allowed, np.inf)
    shares[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    return float(shares.max(initial=0.0))


def _integers(tensor: Values) -> NDArray[Any]:
    if tensor.datatype is Datatype.BOOL:
        return np.frombuffer(tensor.raw, np.uint8).astype(np.bool_)
    return np.frombuffer(tensor.raw, f"<{tensor.datatype.code}")


def _floats(tensor: Values) -> NDArray[np.float64]:
    """Double precision holds all values of the other types, and differences of theirs nearly."""
    if tensor.datatype is Datatype.BF16:
        wide = np.frombuffer(tensor.raw, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).astype(np.float64)
    return np.frombuffer(tensor.raw, f"<f{tensor.datatype.size}").astype(np.float64)


def _of_integers(found: NDArray[Any], right: NDArray[Any]) -> Difference:
    wrong = np.flatnonzero(found != right)
    if not len(wrong):
        return Difference(values=len(right))
    first = int(wrong[0])
    return Difference(
        values=len(right),
        outside=len(wrong),
        worst=first,
        reason=outside_reason(len(wrong), len(right), first, found[first].item(), right[first].item()),
    )


def _of_floats(found: NDArray[np.float64], right: NDArray[np.float64], tolerance: Tolerance) -> Difference:
    with np.errstate(all="ignore"):
        distance = np.abs(found - right)
        distance[~np.isfinite(distance)] = np.inf
        distance[(found == right) | (np.isnan(found) & np.isnan(right))] = 0.0
        size = np.abs(right)
        beyond = np.where(
            np.isinf(distance), np.inf, distance - (tolerance.absolute + tolerance.relative * size)
        )
        beyond[distance == 0.0] = 0.0
        shares = np.where(distance == 0.0, 0.0, np.where(np.isfinite(size), distance / size, np.inf))
        shares[right == 0.0] = 0.0
    outside = int(np.count_nonzero(beyond > 0))
    worst = int(np.argmax(beyond)) if outside else -1
    reason = ""
    if outside:
        reason = outside_reason(outside, len(right), worst, float(found[worst]), float(right[worst]))
    return Difference(
        values=len(right),
        outside=outside,
        absolute=float(distance.max(initial=0.0)),
        relative=float(shares.max(initial=0.0)),
        worst=worst,
        reason=reason,
    )
