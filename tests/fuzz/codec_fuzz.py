"""Fuzz the codec of the gRPC front end: ``python -m tests.fuzz.codec_fuzz --minutes 10 [--seed N]``.

Mutates valid requests and holds the codec to two rules: only the appliance's own errors about requests escape, and a
message is accepted as a message exactly when protobuf's parser accepts it, with the same contents. An input that
breaks a rule is written to the corpus directory and ends the run with status 1; every test run replays the corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from appliance.domain.errors import CallerError, InvalidRequest
from appliance.domain.tensor import encode_bytes
from appliance.frontend.grpc.envelope import Envelope, EnvelopeLimits, request_id_text, scan
from appliance.frontend.grpc.request import take_in
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.domain.sample import make_version
from tests.frontend.grpc.engine_double import EngineDouble
from tests.frontend.grpc.messages import infer_request, two_inputs
from tests.steps import finished

CORPUS = Path(__file__).with_name("corpus")
LIMITS = EnvelopeLimits(tensors_max=64)
_LIMIT_WORDS = (
    "request has more than",
    "raw tensors; at most",
    "too deep or are too long",
    "bytes outside of raw",
)

Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], None]


class RuleBroken(Exception):
    """The codec did what it must not; the text says which rule."""


class Judge:
    """Feeds messages to the codec in front of one engine, and counts what became of them."""

    def __init__(self) -> None:
        self._engine = EngineDouble(make_version(), two_inputs())
        self.accepted = self.refused = self.limited = 0

    def judge(self, message: bytes) -> None:
        """Raise RuleBroken when the codec breaks a rule on ``message``."""
        ours = self._opened(message)
        theirs = _parsed(message)
        if isinstance(ours, InvalidRequest):
            self._judge_refusal(ours, theirs)
            return
        if theirs is None:
            raise RuleBroken("accepted what protobuf refuses")
        if _together(ours) != _contents(theirs):
            raise RuleBroken("read other contents than protobuf")
        self.accepted += 1
        self._take_in(ours)

    def _opened(self, message: bytes) -> Envelope | InvalidRequest:
        try:
            envelope = scan(message, LIMITS)
            request_id_text(envelope.request_id)
            pb.ModelInferRequest.FromString(envelope.head)
        except DecodeError as error:
            return InvalidRequest(str(error))
        except InvalidRequest as error:
            return error
        except Exception as error:
            raise RuleBroken(f"opening raised {error!r}") from error
        return envelope

    def _judge_refusal(self, refusal: InvalidRequest, theirs: pb.ModelInferRequest | None) -> None:
        if any(words in str(refusal) for words in _LIMIT_WORDS):
            self.limited += 1
        elif theirs is not None:
            raise RuleBroken(f"refused what protobuf accepts: {refusal}")
        else:
            self.refused += 1

    def _take_in(self, envelope: Envelope) -> None:
        try:
            taken = finished(take_in(envelope, self._engine, LIMITS))
        except CallerError:
            return
        except Exception as error:
            raise RuleBroken(f"intake raised {error!r}") from error
        for planned_input in taken.plan.inputs:
            size = len(taken.tensors[planned_input.source]) if planned_input.source >= 0 else 0
            if planned_input.nbytes >= 0 and size != planned_input.nbytes:
                raise RuleBroken(f"let {size} bytes through for input {planned_input}")


def _parsed(message: bytes) -> pb.ModelInferRequest | None:
    try:
        return pb.ModelInferRequest.FromString(message)
    except DecodeError:
        return None


def _together(envelope: Envelope) -> bytes:
    request = pb.ModelInferRequest.FromString(envelope.head)
    request.id = request_id_text(envelope.request_id)
    request.raw_input_contents.extend(bytes(tensor) for tensor in envelope.raw)
    return _contents(request)


def _contents(request: pb.ModelInferRequest) -> bytes:
    return request.SerializeToString(deterministic=True)


# --- messages to begin with


def seeds() -> Iterator[bytes]:
    """Valid requests of many forms, and what earlier runs kept."""
    yield infer_request(request_id="a").SerializeToString()
    yield infer_request(raw=None).SerializeToString()
    request = infer_request(request_id="request-7", shape=(2, 4), raw=bytes(32))
    request.model_version = "1"
    request.parameters["priority"].uint64_param = 1
    request.parameters["timeout"].int64_param = 5000
    request.outputs.add(name="y").parameters["classification"].int64_param = 2
    yield request.SerializeToString()
    two = pb.ModelInferRequest(model_name="two")
    two.inputs.add(name="a", datatype="FP32", shape=[1, 2]).parameters["mine"].double_param = 0.5
    two.inputs.add(name="s", datatype="BYTES", shape=[1, 1])
    two.raw_input_contents.extend([bytes(8), encode_bytes([b"text"])])
    yield two.SerializeToString()
    typed = infer_request(raw=None)
    typed.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    yield typed.SerializeToString()
    yield from (path.read_bytes() for path in sorted(CORPUS.iterdir()))


# --- mutations, each in place


def _flip(chance: random.Random, message: bytearray, _: Sequence[bytes]) -> None:
    if message:
        message[chance.randrange(len(message))] ^= 1 << chance.randrange(8)


def _overwrite(chance: random.Random, message: bytearray, _: Sequence[bytes]) -> None:
    if message:
        message[chance.randrange(len(message))] = chance.choice(
            (0, 1, 0x0A, 0x1A, 0x3A, 0x7F, 0x80, 0xFF, chance.randrange(256))
        )


def _insert(chance: random.Random, message: bytearray, _: Sequence[bytes]) -> None:
    at = chance.randrange(len(message) + 1)
    message[at:at] = chance.randbytes(chance.randrange(1, 12))


def _cut(chance: random.Random, message: bytearray, _: Sequence[bytes]) -> None:
    at = chance.randrange(len(message) + 1)
    del message[at : at + chance.randrange(1, 12)]


def _truncate(chance: random.Random, message: bytearray, _: Sequence[bytes]) -> None:
    del message[chance.randrange(len(message) + 1) :]


def _splice(chance: random.Random, message: bytearray, others: Sequence[bytes]) -> None:
    other = chance.choice(others)
    begin = chance.randrange(len(other) + 1)
    at = chance.randrange(len(message) + 1)
    message[at:at] = other[begin : begin + chance.randrange(1, 64)]


def _concatenate(chance: random.Random, message: bytearray, others: Sequence[bytes]) -> None:
    message.extend(chance.choice(others))


def _add_field(chance: random.Random, message: bytearray, _: Sequence[bytes]) -> None:
    fields = (
        b"\x40\x96\x01", b"\x41" + bytes(8), b"\x42\x03abc", b"\x43\x40\x01\x44", b"\x45" + bytes(4), b"\x3a\x00",
        b"\x1a\x01b", b"\x8a\x00\x01m", b"\x3a\x84\x00abcd", b"\x18\x05", b"\x38\x05", b"\x44", b"\x43",
    )  # fmt: skip
    at = chance.choice((0, len(message), chance.randrange(len(message) + 1)))
    message[at:at] = chance.choice(fields) * chance.choice((1, 1, 1, 2, 90))


MUTATIONS: tuple[Mutation, ...] = (
    _flip,
    _overwrite,
    _insert,
    _cut,
    _truncate,
    _splice,
    _concatenate,
    _add_field,
)


def mutated(chance: random.Random, pool: Sequence[bytes]) -> bytes:
    """A message of ``pool`` after a few mutations; the same for the same state of ``chance``."""
    message = bytearray(chance.choice(pool))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        chance.choice(MUTATIONS)(chance, message, pool)
    return bytes(message[:4096])


def run(seed: int, until: Callable[[int], bool]) -> tuple[Judge, int]:
    """Judge mutated messages while ``until`` of their number is false; raises RuleBroken with the message attached as
    its second argument."""
    chance = random.Random(seed)
    pool = list(seeds())
    judge = Judge()
    number = 0
    while not until(number):
        message = mutated(chance, pool)
        number += 1
        try:
            judge.judge(message)
        except RuleBroken as broken:
            raise RuleBroken(str(broken), message) from broken
        if chance.random() < 0.001:
            pool.append(message)
            del pool[256:]
    return judge, number


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    end = time.monotonic() + options.minutes * 60
    print(f"seed {seed}", flush=True)
    try:
        judge, number = run(seed, lambda number: number % 256 == 0 and time.monotonic() > end)
    except RuleBroken as broken:
        text, message = broken.args
        path = CORPUS / hashlib.sha256(message).hexdigest()[:16]
        path.write_bytes(message)
        print(f"{text}\n{message!r}\nkept as {path}", file=sys.stderr)
        return 1
    print(
        f"{number} messages: {judge.accepted} accepted, {judge.refused} refused, {judge.limited} over a limit"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
