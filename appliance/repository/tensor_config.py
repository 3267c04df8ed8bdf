"""The ``input`` and ``output`` parts of a model's configuration, as written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from appliance.domain.reshape import reshape_problem
from appliance.domain.tensor import FREE, MAX_RANK, Datatype
from appliance.repository.section import INT64_MAX, NAME_BYTES_MAX, Section

_DATATYPES: Final = MappingProxyType({datatype.config_name: datatype for datatype in Datatype})
_UNOFFERED_INPUT: Final = MappingProxyType(
    {
        "allow_ragged_batch": "is not offered: requests of different shapes are not merged; remove it",
        "is_shape_tensor": "is not offered: shape tensors belong to another runtime; remove it",
        "is_non_linear_format_io": "is not offered: tensors are row-major; remove it",
    }
)
_UNOFFERED_OUTPUT: Final = MappingProxyType(
    {name: reason for name, reason in _UNOFFERED_INPUT.items() if name != "allow_ragged_batch"}
)


class TensorFormat(Enum):
    """How pictures lie in an input, which clients alone go by."""

    FORMAT_NONE = 0
    FORMAT_NHWC = 1
    FORMAT_NCHW = 2


_FORMATS: Final = MappingProxyType(dict(TensorFormat.__members__))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorConfig:
    """An input or output as written, and the ``section`` that says where. None means not said; ``dims`` leave out the
    batch dimension when the model is batched, as does ``reshape``: the model's own shape, where it is another."""

    section: Section
    name: str
    datatype: Datatype | None
    dims: tuple[int, ...] | None
    reshape: tuple[int, ...] | None = None
    optional: bool | None = None
    format: str = ""
    label_file: str = ""


def read_input(section: Section) -> TensorConfig:
    """One ``input { ... }``."""
    section.refuse(_UNOFFERED_INPUT)
    layout = section.choice("format", _FORMATS)
    if layout not in (None, TensorFormat.FORMAT_NONE):
        section.ignore(
            ("format",), "is accepted, but nothing acts on it: clients lay out images as the model wants"
        )
    config = replace(_read_tensor(section), format=layout.name if layout else "")
    section.close()
    return config


def read_output(section: Section) -> TensorConfig:
    """One ``output { ... }``."""
    section.refuse(_UNOFFERED_OUTPUT)
    config = _read_tensor(section, output=True)
    section.close()
    return config


def read_datatype(section: Section) -> Datatype | None:
    """The field ``data_type``; None when it is missing or wrong."""
    return section.choice("data_type", _DATATYPES)


def _read_tensor(section: Section, *, output: bool = False) -> TensorConfig:
    name = section.text("name", longest=NAME_BYTES_MAX)
    if not name:
        section.problem("name", "is missing")
    dims = section.integers("dims", minimum=FREE, maximum=INT64_MAX) if section.has("dims") else None
    if dims and 0 in dims:
        section.problem("dims", "0 is not a dimension; -1 stands for a free one")
    return TensorConfig(
        section=section,
        name=name,
        datatype=read_datatype(section),
        dims=dims,
        reshape=_read_reshape(section, dims),
        optional=section.flag("optional") if not output and section.has("optional") else None,
        label_file=section.text("label_filename") if output else "",
    )


def _read_reshape(section: Section, dims: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The shape that the model has in place of ``dims``; None where they are the same."""
    reshape = section.section("reshape")
    if reshape is None:
        return None
    shape = reshape.integers("shape", minimum=FREE, maximum=INT64_MAX)
    reshape.close()
    if dims is None:
        section.problem("reshape", "needs dims, the shape that clients see")
    elif 0 in shape:
        section.problem("reshape", "0 is not a dimension; -1 stands for a free one")
    elif max(len(dims), len(shape)) > MAX_RANK:
        pass  # told where sizes are
    elif 0 not in dims and (wrong := reshape_problem(dims, shape)):
        section.problem("reshape", wrong)
    return None if shape == dims else shape
