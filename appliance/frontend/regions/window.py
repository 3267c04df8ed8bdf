"""Where tensors of requests are in regions: inputs are read from there, outputs put there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import Answer, OutputTensor
from appliance.domain.protocol import RegionPart
from appliance.domain.steps import Steps
from appliance.frontend.regions.account import Account
from appliance.frontend.regions.region import Region
from appliance.frontend.regions.writer import Scratch

PIECE_BYTES: Final = 4 << 20
"""Of strings, what is read in one step."""


class Window:
    """The part of a region that a tensor of a request is in, or an output shall be put into. To the engine it is a
    tensor that lies outside: its bytes go straight from the region to where they are needed."""

    __slots__ = ("_part", "_region", "account")

    def __init__(self, region: Region, part: RegionPart, account: Account) -> None:
        self.account = account
        self._region = region
        self._part = part

    def __len__(self) -> int:
        return self._part.nbytes

    def read_into(self, place: memoryview) -> InvalidRequest | None:
        """See Outside."""
        return self._region.read_into(self._part.offset, place)

    def read(self) -> Steps[memoryview]:
        """All of it, copied: strings are checked where the client cannot change them any more. Raises InvalidRequest
        and QueueFull."""
        copied = self.account.copies.take(self._part.nbytes)
        for start in range(0, len(copied), PIECE_BYTES):
            if start:
                yield
            error = self._region.read_into(self._part.offset + start, copied[start : start + PIECE_BYTES])
            if error is not None:
                try:
                    raise error
                finally:
                    del error, copied  # the error's traceback holds this frame: a cycle would keep the region
        return copied

    def check_room(self, output: OutputTensor) -> None:
        """Raise InvalidRequest where ``output`` has no room."""
        if len(output.data) > self._part.nbytes:
            raise InvalidRequest(
                f"shared memory size specified with the request for output '{output.name}' ({self._part.nbytes} bytes) "
                f"should be at least {len(output.data)} bytes to hold the results"
            )

    def write(self, data: bytes | memoryview, scratch: Scratch) -> InvalidRequest | None:
        """Put ``data`` there; gives why that is not possible. By the writer's thread."""
        return self._region.write(self._part.offset, memoryview(data), scratch)

    def filled(self, nbytes: int) -> RegionPart:
        """Where ``nbytes`` are that were put there."""
        return self._part._replace(nbytes=nbytes)


Windows = Mapping[str, Window]
NO_WINDOWS: Final[Windows] = {}
NO_PARTS: Final[Mapping[str, RegionPart]] = {}


async def put_outputs(answer: Answer, windows: Windows) -> tuple[Answer, Mapping[str, RegionPart]]:
    """Copy outputs to the windows that there are for them, by their names: the answer, of whose outputs those have no
    data any more, and where that is. Raises InvalidRequest, where one has no room before any is written. Where it does
    not come to that, or nobody waits any more, the answer is released as soon as nothing reads it."""
    elsewhere = [(windows[output.name], output) for output in answer.outputs if output.name in windows]
    if not elsewhere:
        return answer, NO_PARTS
    try:
        for window, output in elsewhere:
            window.check_room(output)
    except InvalidRequest:
        answer.release()
        raise
    error = await _written(answer, elsewhere)
    if error is not None:
        answer.release()
        try:
            raise error
        finally:
            del error  # as above
    parts = {output.name: window.filled(len(output.data)) for window, output in elsewhere}
    outputs = tuple(each._replace(data=b"") if each.name in parts else each for each in answer.outputs)
    return Answer(model=answer.model, outputs=outputs, release=answer.release), parts


async def _written(answer: Answer, elsewhere: Sequence[tuple[Window, OutputTensor]]) -> InvalidRequest | None:
    """Wait until the thread of their user has written outputs of ``answer`` to windows; gives why not."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[InvalidRequest | None] = loop.create_future()

    def write(scratch: Scratch) -> None:
        try:
            tried = (window.write(output.data, scratch) for window, output in elsewhere)
            tell = partial(written.set_result, next(filter(None, tried), None))
        except Exception as defect:  # noqa: BLE001  it ends its own request
            tell = partial(written.set_exception, defect)
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(tell)

    elsewhere[0][0].account.writer.do(write)
    try:
        return await asyncio.shield(written)
    except BaseException:
        written.add_done_callback(lambda _: answer.release())
        raise
