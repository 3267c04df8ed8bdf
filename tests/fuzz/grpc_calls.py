"""gRPC over real sockets, at the port of clients, at the control socket and where shared memory is on: frames, heads
and messages of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import hpack
from google.protobuf.message import Message
from hypothesis import strategies as st

from appliance.frontend.grpc.health import SERVICE
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from native.tests.raw_client import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawClient,
    framed,
)
from tests.fuzz.boundary import Boundary, Judge
from tests.fuzz.mutations import NUMBERS, TEXTS, changed_bytes
from tests.fuzz.served import KEY, KEY_BYTES, MODEL, served

FRAME = RawClient.frame
CONTROL = ("RepositoryModelLoad", "RepositoryModelUnload")


def _infer() -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=MODEL, id="a", model_version="1")
    message.parameters["priority"].uint64_param = 1
    message.parameters["timeout"].int64_param = 5000
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(bytes(64))
    message.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    return message


def _infer_in_region() -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=MODEL, id="a")
    for index, name in enumerate(("INPUT0", "INPUT1")):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.outputs.add(name=f"OUTPUT{index}")
    tensors: list[Any] = [*message.inputs, *message.outputs]
    for index, tensor in enumerate(tensors):
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = 64
        tensor.parameters["shared_memory_offset"].int64_param = 64 * index
    return message


def _load() -> pb.RepositoryModelLoadRequest:
    message = pb.RepositoryModelLoadRequest(model_name="other")
    message.parameters["config"].string_param = '{"backend": "onnxruntime", "maxBatchSize": 4}'
    message.parameters["file:1/model.onnx"].bytes_param = b"\x08\x08"
    return message


INSIDE = _infer_in_region()
MESSAGES: dict[str, Message] = {
    "ModelInfer": _infer(),
    "ModelStreamInfer": _infer(),
    "ModelMetadata": pb.ModelMetadataRequest(name=MODEL, version="1"),
    "ModelConfig": pb.ModelConfigRequest(name=MODEL),
    "ModelStatistics": pb.ModelStatisticsRequest(name=MODEL),
    "RepositoryIndex": pb.RepositoryIndexRequest(ready=True),
    "ServerReady": pb.ServerReadyRequest(),
    "RepositoryModelLoad": _load(),
    "RepositoryModelUnload": pb.RepositoryModelUnloadRequest(model_name="other"),
    "SystemSharedMemoryRegister": pb.SystemSharedMemoryRegisterRequest(
        name="r", key=KEY, byte_size=KEY_BYTES
    ),
    "SystemSharedMemoryStatus": pb.SystemSharedMemoryStatusRequest(name="r"),
    "SystemSharedMemoryUnregister": pb.SystemSharedMemoryUnregisterRequest(name="r"),
    "LogSettings": pb.ServerReadyRequest(),
    "TraceSetting": pb.ServerReadyRequest(),
}
OF_REGIONS = tuple(name for name in MESSAGES if name.startswith("System"))
REGION_KEYS = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
KEYS = ("priority", "timeout", "sequence_id", "binary_data_size", "file:../x", "config", "", *REGION_KEYS)
ODD_HEADERS = (
    ("grpc-timeout", "0n"), ("grpc-timeout", "99999999H"), ("grpc-timeout", "-1S"), ("grpc-timeout", "1x"),
    ("grpc-encoding", "gzip"), ("grpc-encoding", "br"), ("content-type", "text/html"), ("te", "gzip"),
    ("content-length", "-1"), ("content-length", "18446744073709551616"), ("x-bin", "%%%"), ("x-bin", "AAAA"),
    ("upper-Case", "x"), ("connection", "close"), (":path", "/twice"), (":odd", "x"), ("a", "\x1b[2J\r\nb: c"),
    ("grpc-accept-encoding", ","), ("x" * 9000, "y"), ("cookie", "y" * 9000),
    ("triton-request-id", "\N{RIGHT-TO-LEFT OVERRIDE}"),
)  # fmt: skip


def head(path: str, more: list[tuple[str, str]], authority: str = "localhost") -> bytes:
    """A block of headers; none of it refers to another one."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", authority)]
    fields += [("te", "trailers"), ("content-type", "application/grpc"), *more]
    packed: bytes = hpack.Encoder().encode(
        [
            (name.encode("utf-8", "surrogatepass"), value.encode("utf-8", "surrogatepass"))
            for name, value in fields
        ],
        huffman=False,
    )
    return packed


def call(
    path: str, body: bytes, more: list[tuple[str, str]], stream: int = 1, flags: int = END_STREAM
) -> bytes:
    return FRAME(HEADERS, END_HEADERS, stream, head(path, more)) + FRAME(DATA, flags, stream, body)


BEGIN = PREFACE + FRAME(SETTINGS, 0, 0)
SEEDS = [
    BEGIN + call(f"/{SERVICE}/{name}", framed(message.SerializeToString()), [])
    for name, message in MESSAGES.items()
]


def _numbers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted({min(max(n, low), high) for n in NUMBERS if isinstance(n, int)}))


KINDS = (DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, 5, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION, 77, 255)
PAYLOADS = (b"", bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(8), b"\0\x04\xff\xff\xff\xff")
FRAMES = st.builds(
    FRAME,
    st.sampled_from(KINDS),
    st.sampled_from((0, 1, 4, 5, 8, 0x20, 0x2D, 255)),
    st.sampled_from((0, 1, 2, 3, 5, (1 << 31) - 1)),
    st.binary(max_size=40) | st.sampled_from(PAYLOADS),
)


def _odd(draw: st.DrawFn, field: Any) -> Any:
    if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64):
        bits = 31 if field.cpp_type == field.CPPTYPE_INT32 else 63
        return draw(_numbers(-(1 << bits), (1 << bits) - 1))
    if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return draw(_numbers(0, (1 << (32 if field.cpp_type == field.CPPTYPE_UINT32 else 64)) - 1))
    if field.cpp_type == field.CPPTYPE_BOOL:
        return True
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return draw(st.sampled_from((0.0, float("nan"), float("inf"))))
    text = draw(st.sampled_from(TEXTS)).encode(errors="replace")
    return text if field.type == field.TYPE_BYTES else text.decode()


def _inner(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type and field.message_type.GetOptions().map_entry:
            yield from (each for each in value.values() if hasattr(each, "ListFields"))
        elif field.message_type:
            for each in value if field.is_repeated else (value,):
                yield from _inner(each)


def _bent(draw: st.DrawFn, whole: Message, times: int) -> Any:
    """``whole`` with some of its fields at odd values, left out or many times."""
    message: Any = type(whole)()
    message.CopyFrom(whole)
    for _ in range(times):
        inner = draw(st.sampled_from(list(_inner(message))))
        fields: list[Any] = list(inner.DESCRIPTOR.fields) or [None]
        field = draw(st.sampled_from(fields))
        if field is None or draw(st.integers(0, 4)) == 0:
            inner.Clear()
        elif field.message_type and field.message_type.GetOptions().map_entry:
            key = draw(st.sampled_from(KEYS))
            each = getattr(inner, field.name)[key]
            chosen = draw(st.sampled_from(list(each.DESCRIPTOR.fields)))
            setattr(each, chosen.name, _odd(draw, chosen))
        elif field.message_type:
            made = getattr(inner, field.name)
            if field.is_repeated:
                made.extend([made[0] if len(made) else made.add()] * draw(st.sampled_from((1, 3, 300))))
            else:
                made.SetInParent()
        elif field.is_repeated:
            getattr(inner, field.name).extend([_odd(draw, field)] * draw(st.sampled_from((1, 3, 300))))
        else:
            setattr(inner, field.name, _odd(draw, field))
    return message


@st.composite
def messages(draw: st.DrawFn, names: tuple[str, ...] = tuple(MESSAGES)) -> bytes:
    """A call whose message has some of its fields at odd values, left out or many times."""
    name = draw(st.sampled_from(names))
    message = _bent(draw, MESSAGES[name], draw(st.integers(1, 3)))
    body = framed(message.SerializeToString(), draw(st.sampled_from((0, 0, 0, 1, 255))))
    more = draw(st.lists(st.sampled_from(ODD_HEADERS), max_size=2)) if draw(st.booleans()) else []
    return BEGIN + call(f"/{SERVICE}/{name}", body, more)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Frames in any order, among calls that are well made."""
    pieces = st.one_of(FRAMES, FRAMES, st.sampled_from([seed[len(BEGIN) :] for seed in SEEDS]))
    return BEGIN + b"".join(draw(st.lists(pieces, min_size=1, max_size=12)))


@st.composite
def regions(draw: st.DrawFn) -> bytes:
    """A few calls about regions, of which some are odd, and inferences with tensors in them."""
    said = BEGIN
    for stream in range(1, 2 * draw(st.integers(2, 6)), 2):
        name = draw(st.sampled_from(("ModelInfer", "ModelInfer", *OF_REGIONS)))
        message = INSIDE if name == "ModelInfer" else MESSAGES[name]
        bent = _bent(draw, message, draw(st.integers(0, 2)))
        said += call(f"/{SERVICE}/{name}", framed(bent.SerializeToString()), [], stream)
    return said


CASES = st.one_of(messages(), frames(), changed_bytes(SEEDS))
OF = {
    "grpc": CASES,
    "local": st.one_of(regions(), regions(), messages(OF_REGIONS)),
    "control": st.one_of(messages(CONTROL), messages(CONTROL), frames(), changed_bytes(SEEDS)),
}


@contextmanager
def opened(to: str, front_end: str) -> Iterator[Judge]:
    """A judge of what is said to a daemon; it waits for an answer, since a call is cancelled by leaving."""
    with served(front_end) as daemon:
        yield partial(daemon.say, to, patient=True)


def boundary(to: str, front_end: str) -> Boundary:
    return Boundary(kept=f"{to}_calls", cases=OF[to], opened=partial(opened, to, front_end), examples=150)
