"""Reshapes: a tensor that clients see in one shape and the model in another. The bytes of both are the same.

Free dimensions stand for one another in their order, and between them lie as many elements on both sides, as in Triton,
so that no tensor of the one shape is without its counterpart.
"""

from __future__ import annotations

from appliance.domain.tensor import FREE

Shape = tuple[int, ...]


def reshape_problem(dims: Shape, shape: Shape) -> str:
    """What keeps ``dims``, which clients see, from being ``shape`` to the model; "" when nothing does."""
    seen, own = _parts(dims), _parts(shape)
    if seen == own:
        return ""
    counts = [" x free x ".join(map(str, parts)) for parts in (own, seen)]
    return f"shape {list(shape)} has {counts[0]} elements and dims {list(dims)} {counts[1]}; make them equal"


def _parts(shape: Shape) -> list[int]:
    """Elements of the stretches that free dimensions part."""
    counts = [1]
    for size in shape:
        if size == FREE:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts


def reshaped(full: Shape, given: Shape, wanted: Shape, batch: int) -> Shape | None:
    """The tensor shape ``full``, which is as ``given`` says, as ``wanted`` says it, its first ``batch`` dimensions left
    alone; None when it is not as ``given`` says."""
    sizes = full[batch:]
    if len(full) != batch + len(given) or any(
        said not in (FREE, size) for said, size in zip(given, sizes, strict=True)
    ):
        return None
    free = iter([size for said, size in zip(given, sizes, strict=True) if said == FREE])
    return (*full[:batch], *(next(free) if said == FREE else said for said in wanted))
