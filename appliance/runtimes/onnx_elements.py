"""Element types of ONNX: what the wire and numpy call them, and the inputs and outputs that a session of ONNX Runtime
tells of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from appliance.domain.errors import LoadFailed
from appliance.domain.tensor import Datatype
from appliance.runtimes.runtime import Port


class ElementType(NamedTuple):
    """An element type: what the wire calls it, its ONNX number, its numpy name ("" when numpy lacks it)."""

    datatype: Datatype
    number: int
    numpy: str


ELEMENT_TYPES: Final[Mapping[str, ElementType]] = MappingProxyType(
    {
        "tensor(float)": ElementType(Datatype.FP32, 1, "<f4"),
        "tensor(uint8)": ElementType(Datatype.UINT8, 2, "u1"),
        "tensor(int8)": ElementType(Datatype.INT8, 3, "i1"),
        "tensor(uint16)": ElementType(Datatype.UINT16, 4, "<u2"),
        "tensor(int16)": ElementType(Datatype.INT16, 5, "<i2"),
        "tensor(int32)": ElementType(Datatype.INT32, 6, "<i4"),
        "tensor(int64)": ElementType(Datatype.INT64, 7, "<i8"),
        "tensor(string)": ElementType(Datatype.BYTES, 8, "O"),
        "tensor(bool)": ElementType(Datatype.BOOL, 9, "?"),
        "tensor(float16)": ElementType(Datatype.FP16, 10, "<f2"),
        "tensor(double)": ElementType(Datatype.FP64, 11, "<f8"),
        "tensor(uint32)": ElementType(Datatype.UINT32, 12, "<u4"),
        "tensor(uint64)": ElementType(Datatype.UINT64, 13, "<u8"),
        "tensor(bfloat16)": ElementType(Datatype.BF16, 16, ""),
    }
)
BY_DATATYPE: Final[Mapping[Datatype, ElementType]] = MappingProxyType(
    {element.datatype: element for element in ELEMENT_TYPES.values()}
)


def ports_of(metas: Sequence[Any], kind: str, *, optional: bool = False) -> tuple[Port, ...]:
    ports = []
    for meta in metas:
        element = ELEMENT_TYPES.get(meta.type)
        if element is None:
            raise LoadFailed(
                f"{kind} '{meta.name}' is of type {meta.type}, which the protocol cannot carry; "
                f"export the model with plain tensors of {', '.join(Datatype.__members__)}"
            )
        # ONNX Runtime gives [] both for a scalar and for a rank it does not know
        shape = tuple(size if isinstance(size, int) else -1 for size in meta.shape) or None
        ports.append(Port(name=meta.name, datatype=element.datatype, shape=shape, optional=optional))
    return tuple(ports)
