"""Tensors that lie outside of the process: one copy into the slot, and one that is gone costs its request alone."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from appliance.config.shared_memory import SharedMemoryConfig
from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import NO_DEADLINE, Answer, Parameter, RequestHead, TensorHead
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.port import Submission
from appliance.frontend.regions.region import Registered
from appliance.frontend.regions.registry import Regions
from appliance.frontend.regions.window import Window, put_outputs
from appliance.telemetry.meter import Result
from tests.domain.sample import make_version
from tests.engine.rig import Rig, outcomes_of
from tests.engine.test_detours import ShadowRig
from tests.engine.test_displaced import TwoVersionsWorld, head_of
from tests.simulation.swap_world import SOUND

SHAPE = (3, 224, 224)
BYTES = 4 * 3 * 224 * 224
ME = os.getuid()


@pytest.fixture
def rig() -> Rig:
    return Rig(
        make_version(
            "m",
            inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=SHAPE),),
            outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=SHAPE),),
        )
    )


@pytest.fixture
def windows(tmp_path: Path) -> list[Window]:
    """Of a file: where the input is, and where the output shall go."""
    (tmp_path / "r").write_bytes(bytes(range(256)) * (2 * BYTES // 256))
    regions = Regions(SharedMemoryConfig(), frozenset({ME}), folder=str(tmp_path))
    regions.register(ME, Registered("r", "/r", 0, 2 * BYTES))
    told: dict[str, Parameter] = {"shared_memory_region": "r", "shared_memory_byte_size": BYTES}
    return [
        regions.window(ME, "input", "x", {**told, "shared_memory_offset": offset}) for offset in (0, BYTES)
    ]


def submission(rig: Rig, outcomes: list[object]) -> Submission:
    head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, *SHAPE)),))
    return Submission(
        plan_request(rig.engine.resolve("m", ""), head),
        request_id="",
        arrived_ns=rig.engine.now_ns(),
        deadline_ns=NO_DEADLINE,
        on_done=outcomes.append,
    )


async def test_600_kilobytes_in_and_out_take_no_memory_beside_the_slot(
    rig: Rig, windows: list[Window], tmp_path: Path
) -> None:
    outcomes, _ = outcomes_of(rig)
    asked = submission(rig, outcomes)
    tracemalloc.start()
    try:
        rig.engine.submit(asked, [windows[0]])
        rig.turns()
        (item,) = rig.runs[0].items
        slot = rig.view(item.offset, BYTES)
        assert slot[:512] == memoryview(bytes(range(256)) * 2)
        rig.view(item.out_offset, BYTES)[:] = slot
        rig.view(item.out_offset, 4)[:] = b"done"
        rig.work((1, *SHAPE), BYTES)
        (answer,) = outcomes
        assert isinstance(answer, Answer)
        await put_outputs(answer, {"y": windows[1]})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    answer.release()
    assert peak < BYTES / 4
    with (tmp_path / "r").open("rb") as file:
        file.seek(BYTES)
        assert file.read(8) == b"done\x04\x05\x06\x07"


def test_one_that_is_gone_is_refused_and_holds_nothing(
    rig: Rig, windows: list[Window], tmp_path: Path
) -> None:
    outcomes, _ = outcomes_of(rig)
    os.truncate(tmp_path / "r", BYTES - 1)
    with pytest.raises(InvalidRequest, match="is smaller than when it was registered"):
        rig.engine.submit(submission(rig, outcomes), [windows[0]])
    rig.turns()
    assert not rig.runs
    assert not outcomes
    assert rig.arena.statistics().allocated_bytes == 0
    rig.arena.check_integrity()
    os.truncate(tmp_path / "r", 2 * BYTES)
    rig.engine.submit(submission(rig, outcomes), [windows[0]])
    rig.turns()
    rig.work((1, *SHAPE), BYTES)
    (answer,) = outcomes
    assert isinstance(answer, Answer)
    answer.release()
    assert rig.arena.statistics().allocated_bytes == 0
    (counted,) = rig.engine.statistics("m", "")
    assert (counted.results[Result.SUCCESS], counted.results[Result.INVALID]) == (1, 1)


class Gone:
    """A tensor that cannot be had."""

    def __len__(self) -> int:
        return 8

    def read_into(self, place: memoryview) -> InvalidRequest | None:
        """It is not there."""
        return InvalidRequest("it is gone")


def test_one_that_is_gone_does_not_wait_for_a_model() -> None:
    """Nor has that been asked for in vain for good: the next request brings the model into memory."""
    world = TwoVersionsWorld(SOUND)
    plan = plan_request(world.engine.resolve("m0", ""), head_of("m0"))
    gone = Submission(
        plan,
        request_id="",
        arrived_ns=world.world.now,
        deadline_ns=NO_DEADLINE,
        on_done=world.outcomes.append,
    )
    with pytest.raises(InvalidRequest, match="it is gone"):
        world.engine.submit(gone, [Gone()])
    world.run(10_000)
    assert not world.outcomes
    world.ask("m0")
    world.run(10_000)
    assert isinstance(world.outcomes[0], Answer)


class Changing:
    """A tensor that is another one each time that it is looked at."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 16

    def read_into(self, place: memoryview) -> InvalidRequest | None:
        """The next one."""
        self.reads += 1
        place[:] = bytes([self.reads]) * 16
        return None


def test_a_version_in_the_shadow_gets_what_the_one_that_serves_got() -> None:
    """Else a client that changes its memory would make it look wrong."""
    rig, changing = ShadowRig(), Changing()
    rig.ask(changing)
    assert len(rig.lanes) == 2, "the request has no twin"
    for worker, run in rig.lanes:
        memory = rig.arena.of_worker(worker)
        assert memory is not None
        assert memory.view(run.items[0].offset, 16) == bytes([1]) * 16
    assert changing.reads == 1
