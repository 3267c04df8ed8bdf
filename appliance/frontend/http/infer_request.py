"""An inference request as the v2 REST protocol words it, with the binary tensor data extension.

Pure. A body is a JSON head, then the binary tensors one after another in input order;
``Inference-Header-Content-Length`` says where the head ends (absent: everything is JSON; 0: no head at all, the body is
one row of the only input's tensor).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import OutputHead, Parameter, RequestHead, RequestPlan, TensorHead
from appliance.domain.model import ModelVersion
from appliance.domain.protocol import asks_for_region, output_classification, request_meaning
from appliance.domain.steps import Steps
from appliance.domain.tensor import FREE, MAX_RANK, Datatype, TensorSpec, encode_bytes
from appliance.domain.validation import check_raw
from appliance.engine.port import Tensor
from appliance.frontend.http.json_document import check_nesting, read_json
from appliance.frontend.http.json_tensor import raw_from_json
from appliance.frontend.http.status import quotable
from appliance.frontend.regions.registry import Regions
from appliance.frontend.regions.window import Window, Windows

HEAD_LENGTH_HEADER: Final = "Inference-Header-Content-Length"
JSON_BYTES_MAX: Final = 4 << 20
"""Largest JSON of a request: reading a MiB takes 20 to 60 ms of a processor."""
JSON_DATA: Final = -1
"""Size of an input whose data is in the JSON head."""
IN_REGION: Final = -2
"""That of one in shared memory."""

_MAX_DIMENSION: Final = 1 << 63


class Client(Protocol):
    """Whose a request is."""

    @property
    def user(self) -> int:
        """Its user on this machine; UNKNOWN_USER: that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferHead:
    """A request without its binary tensors. Per input, ``sizes`` holds the announced bytes (JSON_DATA: in
    ``data``; IN_REGION: in ``sources``) and ``data`` the JSON value. ``binary_outputs`` says per output name what was
    asked, ``binary_default`` for the others, but for those that go to ``windows`` of shared memory."""

    head: RequestHead
    sizes: tuple[int, ...]
    data: tuple[Any, ...]
    binary_outputs: Mapping[str, bool]
    binary_default: bool
    sources: Mapping[int, Window] = field(default_factory=dict)
    windows: Windows = field(default_factory=dict)

    @property
    def in_regions(self) -> bool:
        """Whether any tensor is in shared memory."""
        return bool(self.sources or self.windows)

    @property
    def repeatable(self) -> bool:
        """Whether an equal head may come again with other tensors: none of them is inside it."""
        return JSON_DATA not in self.sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A head, its plan, and the engine's generation when that was made."""

    request: InferHead
    plan: RequestPlan
    generation: int


def head_length(header: str | None, body_bytes: int) -> int:
    """Bytes of the JSON head, from the value of HEAD_LENGTH_HEADER (0: it is a raw binary request); raises
    InvalidRequest."""
    if header is None:
        return body_bytes
    if not (header.isascii() and header.isdigit() and len(header) < 19):
        raise InvalidRequest(
            f"header {HEAD_LENGTH_HEADER} must be a number of bytes, got '{quotable(header)}'"
        )
    length = int(header)
    if length > body_bytes:
        raise InvalidRequest(
            f"header {HEAD_LENGTH_HEADER} says {length} bytes, but the request body has {body_bytes} bytes"
        )
    return length


def parse_document(text: bytes) -> Steps[dict[str, Any]]:
    """The JSON of a head; raises InvalidRequest."""
    document = yield from read_json(text)
    if not isinstance(document, dict):
        raise InvalidRequest("request must be a JSON object with 'inputs'")
    return document


def id_of(document: Mapping[str, Any]) -> str:
    """The id of a request, by which errors name it; "" where there is none."""
    try:
        return _text(document, "id", "request")
    except InvalidRequest:
        return ""


def parse_head(
    document: dict[str, Any], name: str, version: str, regions: Regions, client: Client
) -> InferHead:
    """Read the head of a request of ``client`` for model ``name``, whose tensors may be in ``regions``. Raises
    InvalidRequest, and what ``Regions.window`` does."""
    inputs = _objects(document, "inputs")
    outputs = _objects(document, "outputs")
    _check_all_nesting(document, inputs)
    if "inputs" not in document:
        raise InvalidRequest("request has no 'inputs'")
    parameters = _parameters(document, "request")
    binary_default = _flag(parameters.pop("binary_data_output", False), "binary_data_output")
    meaning = request_meaning(parameters)
    tensors = [_input(entry, name) for entry in inputs]
    sizes = tuple(size for _, size, _ in tensors)
    wanted = [_output(entry) for entry in outputs]
    sources: dict[int, Window] = {}
    if IN_REGION in sizes:
        sources = {
            index: _source(entry, tensor.name, regions, client.user)
            for index, (tensor, size, entry) in enumerate(tensors)
            if size == IN_REGION
        }
        regions.check_inputs(sources.values())
    if "id" in document:
        _text(document, "id", "request")  # what is no text is refused
    return InferHead(
        head=RequestHead(
            model_name=name,
            model_version=version,
            inputs=tuple(tensor for tensor, _, _ in tensors),
            outputs=tuple(output for output, _, _ in wanted),
            priority=meaning.priority,
            timeout_us=meaning.timeout_us,
            parameters=parameters,
        ),
        sizes=sizes,
        data=tuple(data for _, _, data in tensors),
        binary_outputs={output.name: binary for output, binary, _ in wanted if binary is not None},
        binary_default=binary_default,
        sources=sources,
        windows={
            output.name: regions.window(client.user, "output", output.name, asked)
            for output, _, asked in wanted
            if asked
        },
    )


def raw_request(model: ModelVersion, version: str, body: memoryview) -> tuple[InferHead, memoryview]:
    """The head for a body that has none, and the tensor that the body is: of the only input of ``model``, one row where
    that is batched, one element of BYTES. Outputs come as binary data. Raises InvalidRequest where no shape follows
    from the size."""
    required = [spec for spec in model.inputs if not spec.optional] or list(model.inputs)
    if len(required) != 1:
        raise InvalidRequest(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(model.inputs)} inputs in "
            f"'{model.name}' model configuration"
        )
    spec = required[0]
    tensor = memoryview(encode_bytes([body])) if spec.datatype is Datatype.BYTES else body
    row = _raw_shape(spec, len(body))
    shape = (1, *row) if model.max_batch_size else row
    head = RequestHead(
        model_name=model.name,
        model_version=version,
        inputs=(TensorHead(spec.name, spec.datatype.wire, shape),),
    )
    raw = InferHead(head=head, sizes=(len(tensor),), data=(None,), binary_outputs={}, binary_default=True)
    return raw, tensor


def _raw_shape(spec: TensorSpec, nbytes: int) -> tuple[int, ...]:
    if spec.datatype is Datatype.BYTES:
        shape = tuple(1 if dimension == FREE else dimension for dimension in spec.shape)
        if set(shape) - {1}:
            raise InvalidRequest(
                f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
            )
        return shape
    if spec.shape.count(FREE) > 1:
        raise InvalidRequest(
            f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    step = spec.datatype.size * math.prod(dimension for dimension in spec.shape if dimension != FREE)
    return tuple(
        nbytes // step if dimension == FREE and step else max(dimension, 0) for dimension in spec.shape
    )


def tensors_of(request: InferHead, plan: RequestPlan, binary: memoryview) -> Steps[list[Tensor]]:
    """Raw tensors in the request's order, checked against ``plan``: views of ``binary`` (what follows the
    head), made from JSON, or windows of shared memory, of which strings are copied. Raises InvalidRequest."""
    name = plan.model.name
    tensors: list[Tensor] = [b""] * len(request.sizes)
    position = 0
    for index, size in enumerate(request.sizes):
        if size >= 0:
            if position + size > len(binary):
                raise InvalidRequest(
                    f"unexpected end of binary data of input '{request.head.inputs[index].name}' for model '{name}': "
                    f"{size} bytes announced, {len(binary) - position} left"
                )
            tensors[index] = binary[position : position + size]
            position += size
    if position != len(binary):
        raise InvalidRequest(
            f"unexpected additional input data for model '{name}': {len(binary) - position} bytes follow the "
            "last binary tensor"
        )
    for planned in plan.inputs:
        source = planned.source
        if source < 0:
            continue
        if request.sizes[source] == JSON_DATA:
            tensors[source] = yield from raw_from_json(
                request.data[source], planned.datatype, planned.elements, planned.name
            )
        elif request.sizes[source] == IN_REGION:
            window = request.sources[source]
            tensors[source] = window if planned.nbytes >= 0 else (yield from window.read())
        steps = check_raw(plan, planned, tensors[source])
        if steps is not None:
            yield from steps
    return tensors


def _check_all_nesting(document: dict[str, Any], inputs: Sequence[dict[str, Any]]) -> None:
    # tensor data is the one thing that may be large; its nesting is checked where it is flattened
    check_nesting({key: value for key, value in document.items() if key != "inputs"})
    for entry in inputs:
        check_nesting({key: value for key, value in entry.items() if key != "data"})


def _objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = document.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest(f"'{key}' of the request must be an array of objects")
    return entries


def _input(entry: dict[str, Any], model: str) -> tuple[TensorHead, int, Any]:
    """An input, its size, and its data, if that is in the head; in place of that, of one in shared memory, all
    that was said of it."""
    name = _text(entry, "name", "an input")
    where = f"input '{name}'"
    tensor = TensorHead(name, _text(entry, "datatype", where), _shape(entry, where))
    parameters = _parameters(entry, where)
    size = parameters.get("binary_data_size")
    if asks_for_region(parameters):
        return tensor, IN_REGION, entry
    if size is None:
        if "data" not in entry:
            raise InvalidRequest(
                f"unable to find data for input tensor '{name}' for model '{model}' in request."
            )
        return tensor, JSON_DATA, entry["data"]
    if "data" in entry:
        raise InvalidRequest(f"{where} has both 'data' and 'binary_data_size'; send one of them")
    if type(size) is not int or size < 0:
        raise InvalidRequest(
            f"parameter 'binary_data_size' of {where} must be a number of bytes, got {size!r}"
        )
    return tensor, size, None


def _source(entry: dict[str, Any], name: str, regions: Regions, user: int) -> Window:
    """Where an input in shared memory is. Raises as ``parse_head`` does."""
    parameters = _parameters(entry, f"input '{name}'")
    window = regions.window(user, "input", name, parameters)
    if "data" in entry or "binary_data_size" in parameters:
        raise InvalidRequest(
            f"input '{name}' is in shared memory and has data in the request; send one of them"
        )
    return window


def _output(entry: dict[str, Any]) -> tuple[OutputHead, bool | None, dict[str, Parameter]]:
    """An output, whether it was asked for as binary data, and the parameters of one that goes to shared memory."""
    name = _text(entry, "name", "an output")
    parameters = _parameters(entry, f"output '{name}'")
    binary = parameters.get("binary_data")
    return (
        OutputHead(name, output_classification(name, parameters)),
        None if binary is None else _flag(binary, f"binary_data' of output '{name}"),
        parameters if asks_for_region(parameters) else {},
    )


def _shape(entry: dict[str, Any], where: str) -> tuple[int, ...]:
    shape = entry.get("shape")
    if isinstance(shape, list) and len(shape) > MAX_RANK:  # of more, not even the types are looked at
        raise InvalidRequest(
            f"shape of {where} has rank {len(shape)}; at most {MAX_RANK} dimensions are supported"
        )
    if not isinstance(shape, list) or not set(map(type, shape)) <= {int}:
        raise InvalidRequest(f"'shape' of {where} must be an array of integers")
    if not all(-_MAX_DIMENSION <= dimension < _MAX_DIMENSION for dimension in shape):
        raise InvalidRequest(f"'shape' of {where} has a dimension that does not fit in 64 bits")
    return tuple(shape)


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"'{key}' of {where} must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"'{key}' of {where} is not valid Unicode") from None
    return value


def _parameters(entry: dict[str, Any], where: str) -> dict[str, Parameter]:
    parameters = entry.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"'parameters' of {where} must be an object")
    for key, value in parameters.items():
        if not isinstance(value, (bool, int, float, str)):
            raise InvalidRequest(f"parameter '{key}' of {where} must be a boolean, a number or a string")
    return dict(parameters)


def _flag(value: Parameter, key: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter '{key}' must be true or false, got {value!r}")
    return value
