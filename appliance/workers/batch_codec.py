"""Batches and results to plain arrays and strictly back, by hand: these cross between processes for every request.

The rules are those of ``codec``; only the way to check them is quicker. A result's status travels as its number.
"""

from __future__ import annotations

from typing import Any, Final

from appliance.workers.codec import MessageInvalid
from appliance.workers.port import ItemStatus, Run, RunItem, RunResult, Shape

_INTEGERS: Final = frozenset((int,))
_SHAPES: Final = frozenset((tuple,))
_OPTIONAL_SHAPES: Final = frozenset((tuple, type(None)))
_STATUSES: Final = tuple(ItemStatus)
_ITEM_FIELDS: Final = (int, int, tuple, tuple, int, tuple, int, int)
_OK: Final = ItemStatus.OK
KNOWN_MAX: Final = 1024
_RESULT_FIELDS: Final = (int, int, tuple, tuple, int, str)


def plain_results(results: tuple[RunResult, ...]) -> list[tuple[object, ...]]:
    """What to pack for ``results``."""
    return [
        (ticket, status._value_, shapes, sizes, needed, error)
        for ticket, status, shapes, sizes, needed, error in results
    ]


class KnownResults:
    """Decodes results, and remembers shapes and sizes that were found well-formed: most results look like one before.

    Equal is as good as the same here, for what is handed out is what was remembered. Owned by one reader.
    """

    def __init__(self) -> None:
        self._known: dict[object, tuple[tuple[Shape, ...], tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def decode(self, plain: object) -> tuple[RunResult, ...]:
        """The results behind ``plain``, or MessageInvalid."""
        if type(plain) is not tuple:
            raise MessageInvalid("results that are no array")
        recall, decoded = self._known.get, []
        for each in plain:
            try:
                ticket, status, shapes, sizes, needed, error = each
                known = recall((shapes, sizes))
            except (TypeError, ValueError):
                known = None
            if known is None or type(ticket) is not int or status or needed or error:
                decoded.append(self._thoroughly(each))
            else:
                decoded.append(RunResult(ticket, _OK, known[0], known[1], 0, ""))
        return tuple(decoded)

    def _thoroughly(self, plain: Any) -> RunResult:
        result = decode_result(plain)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[result.shapes, result.sizes] = (result.shapes, result.sizes)
        return result


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
