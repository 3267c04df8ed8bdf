"""The front end's scanner and the engine's own reader: what the one takes apart the other takes apart alike, and what
ordinary clients send is never left to the long way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import edge_appliance_native
import pytest

from appliance.domain.errors import InvalidRequest
from appliance.frontend.grpc.envelope import Envelope, EnvelopeLimits, request_id_text, scan
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.fuzz import codec_fuzz

NativeScan = Callable[[bytes], tuple[bytes, bytes, list[tuple[int, int]]] | None]

CORPORA = (codec_fuzz.CORPUS, Path(__file__).parents[1] / "fuzz" / "corpus" / "scan")
LIMITS = EnvelopeLimits()
MESSAGES = 20_000
TENSORS, HEAD = 64, 4096
"""What the front end's scanner takes; see ``native/src/templates/scan.rs``."""


class Disagreement(Exception):
    """The two read a message differently; it is the second argument."""


def agreed(native: NativeScan, message: bytes) -> bool:
    """Whether the native scanner accepts ``message``; raises Disagreement if the engine would read it otherwise."""
    parts = native(message)
    if parts is None:
        return False
    head, request_id, ranges = parts
    try:
        envelope = scan(message, LIMITS)
        request_id_text(envelope.request_id)
    except InvalidRequest as error:
        raise Disagreement(f"accepted what the engine refuses: {error}", message) from error
    if any(stop > start for (_, stop), (start, _) in pairwise(ranges)):
        raise Disagreement("tensors that are not in order", message)
    if (head, request_id, [message[start:stop] for start, stop in ranges]) != _parts(envelope):
        raise Disagreement("other parts", message)
    return True


def _parts(envelope: Envelope) -> tuple[bytes, bytes, list[bytes]]:
    return envelope.head, envelope.request_id, [bytes(tensor) for tensor in envelope.raw]


def clients_messages(chance: random.Random) -> Iterator[bytes]:
    """Requests as clients write them, of every form that the front end is to recognise: in any order of fields, too."""
    while True:
        request = pb.ModelInferRequest(
            model_name=_text(chance), model_version=chance.choice(("", "1", "12")), id=_text(chance)
        )
        for _ in range(chance.choice((0, 1, 1, 2, 5, TENSORS))):
            tensor = request.inputs.add(
                name=_text(chance), datatype="FP32", shape=[1, chance.randrange(1 << 20)]
            )
            if chance.random() < 0.1:
                tensor.parameters["mine"].string_param = _text(chance)
            request.raw_input_contents.append(
                chance.randbytes(chance.choice((0, 1, 4, 127, 128, 300, 20_000)))
            )
        for _ in range(chance.choice((0, 0, 1, 3))):
            request.outputs.add(name=_text(chance)).parameters["classification"].int64_param = 3
        if chance.random() < 0.2:
            request.parameters["priority"].uint64_param = chance.randrange(1 << 64)
        message = request.SerializeToString()
        yield message if chance.random() < 0.5 else _shuffled(chance, request)


def _text(chance: random.Random) -> str:
    return "".join(chance.choices("abzé€😀 _/", k=chance.choice((0, 1, 4, 12))))


def _shuffled(chance: random.Random, request: pb.ModelInferRequest) -> bytes:
    """The same request with its kinds of fields in another order: messages may be written field by field."""
    pieces = []
    for field, _ in request.ListFields():
        piece = pb.ModelInferRequest()
        piece.MergeFrom(request)
        for other, _ in request.ListFields():
            if other.number != field.number:
                piece.ClearField(other.name)
        pieces.append(piece.SerializeToString())
    chance.shuffle(pieces)
    return b"".join(pieces)


def test_the_corpora_are_read_alike() -> None:
    messages = [path.read_bytes() for folder in CORPORA for path in sorted(folder.iterdir())]
    taken = sum(agreed(edge_appliance_native.scan, message) for message in messages)
    assert 5 <= taken <= len(messages) - 5


@pytest.mark.parametrize("seed", range(4))
def test_what_clients_send_is_recognised(seed: int) -> None:
    messages = clients_messages(random.Random(seed))
    for _ in range(1000):
        message = next(messages)
        short = len(scan(message, LIMITS).head) <= HEAD
        assert agreed(edge_appliance_native.scan, message) == short, message


@pytest.mark.parametrize("seed", range(4))
def test_mutated_messages_are_read_alike(seed: int) -> None:
    assert MESSAGES // 20 < accepted(edge_appliance_native.scan, seed) < MESSAGES - MESSAGES // 20


def accepted(native: NativeScan, seed: int) -> int:
    """How many of MESSAGES mutated messages the native scanner accepts; raises Disagreement."""
    chance = random.Random(seed)
    clients = [message for message, _ in zip(clients_messages(chance), range(50), strict=False)]
    pool = [*codec_fuzz.seeds(), *(message for message in clients if len(message) < HEAD)]
    return sum(agreed(native, codec_fuzz.mutated(chance, pool)) for _ in range(MESSAGES))


def _greedy(message: bytes) -> tuple[bytes, bytes, list[tuple[int, int]]] | None:
    """Accepts two ids, and takes the first."""
    parts = edge_appliance_native.scan(message)
    if parts is None and message.endswith(b"\x1a\x01b"):
        parts = edge_appliance_native.scan(message[:-3])
    return parts


def _shifted(message: bytes) -> tuple[bytes, bytes, list[tuple[int, int]]] | None:
    """Loses the last byte of tensors."""
    parts = edge_appliance_native.scan(message)
    return parts and (parts[0], parts[1], [(start, max(start, stop - 1)) for start, stop in parts[2]])


@pytest.mark.parametrize("careless", [_greedy, _shifted])
def test_a_careless_scanner_is_found_out(careless: NativeScan) -> None:
    with pytest.raises(Disagreement):
        accepted(careless, seed=1)
