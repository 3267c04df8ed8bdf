"""Batches and results to plain arrays and strictly back, by hand: these cross between processes for every request.

The rules are those of ``codec``; only the way to check them is quicker. A result's status travels as its number.
"""

from __future__ import annotations

from typing import Any, Final

from appliance.workers.codec import MessageInvalid
from appliance.workers.port import ItemStatus, Run, RunItem, RunResult

_INTEGERS: Final = frozenset((int,))
_SHAPES: Final = frozenset((tuple,))
_OPTIONAL_SHAPES: Final = frozenset((tuple, type(None)))
_STATUSES: Final = tuple(ItemStatus)
_ITEM_FIELDS: Final = (int, int, tuple, tuple, int, tuple, int, int)
_RESULT_FIELDS: Final = (int, int, tuple, tuple, int, str)


def plain_results(results: tuple[RunResult, ...]) -> list[tuple[object, ...]]:
    """What to pack for ``results``."""
    return [
        (ticket, status._value_, shapes, sizes, needed, error)
        for ticket, status, shapes, sizes, needed, error in results
    ]


def decode_results(plain: object) -> tuple[RunResult, ...]:
    """The results behind ``plain``, or MessageInvalid."""
    if type(plain) is not tuple:
        raise MessageInvalid("results that are no array")
    return tuple([decode_result(each) for each in plain])


def decode_result(plain: Any) -> RunResult:
    """One result, or MessageInvalid."""
    if type(plain) is not tuple or tuple(map(type, plain)) != _RESULT_FIELDS:
        raise MessageInvalid("a result without its six fields")
    ticket, status, shapes, sizes, needed, error = plain
    if not 0 <= status < len(_STATUSES):
        raise MessageInvalid(f"result status {status}")
    if not _INTEGERS.issuperset(map(type, sizes)):
        raise MessageInvalid("sizes that are no integers")
    if not _SHAPES.issuperset(map(type, shapes)):
        raise MessageInvalid("shapes that are no arrays")
    for shape in shapes:
        if not _INTEGERS.issuperset(map(type, shape)):
            raise MessageInvalid("a shape of something else than integers")
    return RunResult(ticket, _STATUSES[status], shapes, sizes, needed, error)


def decode_run(plain: Any) -> Run:
    """The batch behind ``plain``, or MessageInvalid."""
    if type(plain) is not tuple or tuple(map(type, plain)) != (int, int, tuple):
        raise MessageInvalid("a batch without its three fields")
    batch, model, items = plain
    return Run(batch, model, tuple([_decode_item(each) for each in items]))


def _decode_item(plain: Any) -> RunItem:
    if type(plain) is not tuple or tuple(map(type, plain)) != _ITEM_FIELDS:
        raise MessageInvalid("an item without its eight fields")
    _, _, shapes, sizes, _, outputs, _, _ = plain
    if not (_INTEGERS.issuperset(map(type, sizes)) and _INTEGERS.issuperset(map(type, outputs))):
        raise MessageInvalid("sizes or outputs that are no integers")
    if not _OPTIONAL_SHAPES.issuperset(map(type, shapes)):
        raise MessageInvalid("shapes that are no arrays")
    for shape in shapes:
        if shape is not None and not _INTEGERS.issuperset(map(type, shape)):
            raise MessageInvalid("a shape of something else than integers")
    return RunItem._make(plain)
