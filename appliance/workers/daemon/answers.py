"""Whether what a worker says about a batch can be true. Pure.

A worker runs foreign code in its process, so nothing it says is taken on trust: tickets, counts, shapes and sizes must
be exactly what was asked, or the worker is not believed at all.
"""

from __future__ import annotations

from typing import Final

from appliance.domain.errors import InvalidRequest
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import aligned, byte_size, element_count
from appliance.workers.codec import MessageInvalid
from appliance.workers.port import ERROR_CHARACTERS_MAX, ItemStatus, Run, RunItem, RunResult, Shape

AGREED_MAX: Final = 1024
TOO_MUCH: Final = 1 << 62


class ModelContract:
    """What the outputs of one model version must look like. Remembers shapes that were found right."""

    def __init__(self, version: ModelVersion) -> None:
        self._outputs = version.outputs
        self._batchable = version.max_batch_size > 0
        self._agreed: dict[object, int] = {}

    def check_batch(self, run: Run, results: tuple[RunResult, ...]) -> bool:
        """Raise MessageInvalid unless ``results`` answer the items of ``run`` in order; true when all went well."""
        if len(results) != len(run.items):
            raise MessageInvalid(f"{len(results)} results for a batch of {len(run.items)}")
        agreed = self._agreed
        well = True
        for item, result in zip(run.items, results, strict=True):
            needed = agreed.get((item.outputs, item.rows, result.shapes, result.sizes), TOO_MUCH)
            if (
                result.ticket != item.ticket
                or result.status is not ItemStatus.OK
                or needed > item.out_capacity
                or result.needed
                or result.error
            ):
                self.check_result(item, result, item.out_capacity)
                well = well and result.status is ItemStatus.OK
        return well

    def check_result(self, item: RunItem, result: RunResult, capacity: int) -> None:
        """Raise MessageInvalid unless ``result`` can be the end of ``item`` with that much room for its outputs."""
        if result.ticket != item.ticket:
            raise MessageInvalid(f"ticket {result.ticket} where {item.ticket} was asked")
        if result.status.failed:
            check_failure(result)
            return
        if result.error:
            raise MessageInvalid("outputs, and a reason why there are none")
        needed = self._needed(item, result.shapes, result.sizes)
        if result.status is ItemStatus.OK:
            if needed > capacity or result.needed:
                raise MessageInvalid(f"outputs of {needed} bytes where {capacity} fit")
        elif result.needed != needed or needed <= capacity:
            raise MessageInvalid(
                f"outputs of {needed} bytes said to need {result.needed}, not to fit in {capacity}"
            )

    def _needed(self, item: RunItem, shapes: tuple[Shape, ...], sizes: tuple[int, ...]) -> int:
        """Bytes that such outputs take, alignment included."""
        key = (item.outputs, item.rows, shapes, sizes)
        needed = self._agreed.get(key)
        if needed is None:
            needed = self._measure(item, shapes, sizes)
            if len(self._agreed) >= AGREED_MAX:
                self._agreed.clear()
            self._agreed[key] = needed
        return needed

    def _measure(self, item: RunItem, shapes: tuple[Shape, ...], sizes: tuple[int, ...]) -> int:
        if not len(shapes) == len(sizes) == len(item.outputs):
            raise MessageInvalid(
                f"{len(shapes)} shapes and {len(sizes)} sizes for {len(item.outputs)} outputs"
            )
        for index, shape, size in zip(item.outputs, shapes, sizes, strict=True):
            spec = self._outputs[index]
            if self._batchable and (not shape or shape[0] != item.rows):
                raise MessageInvalid(
                    f"output '{spec.name}' of rank {len(shape)} that is not for {item.rows} rows"
                )
            try:
                fixed = spec.datatype.size > 0
                right = size == byte_size(spec.datatype, shape) if fixed else size >= 4 * element_count(shape)
            except InvalidRequest as problem:
                raise MessageInvalid(f"output '{spec.name}': {problem}") from problem
            if not right:
                raise MessageInvalid(
                    f"output '{spec.name}' of shape {list(shape)} in {size} bytes of {spec.datatype.wire}"
                )
        return sum(map(aligned, sizes))


def check_failure(result: RunResult) -> None:
    """Raise MessageInvalid unless a result that failed says why, in as many words as are taken."""
    if not result.error:
        raise MessageInvalid("a failure without a reason")
    if result.shapes or result.sizes or result.needed:
        raise MessageInvalid("a failure with outputs")
    if len(result.error) > ERROR_CHARACTERS_MAX:
        raise MessageInvalid(
            f"a failure in {len(result.error)} characters where {ERROR_CHARACTERS_MAX} are taken"
        )
