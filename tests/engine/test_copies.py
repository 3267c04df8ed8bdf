"""A tensor is copied once on its way in, into its slot, and once on its way out, into the message.

Every other copy would need memory of the tensor's size from Python's allocator: it is watched. The arena is a mapping
and does not count, so the one copy into the slot costs nothing here.
"""

from __future__ import annotations

import tracemalloc

from appliance.domain.inference import NO_DEADLINE, Answer
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.engine.port import Submission
from appliance.frontend.grpc.envelope import EnvelopeLimits, scan
from appliance.frontend.grpc.request import take_in
from appliance.frontend.grpc.response import response_parts
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.domain.sample import make_version
from tests.engine.rig import Rig, outcomes_of
from tests.steps import finished

SHAPE = (3, 224, 224)
BYTES = 4 * 3 * 224 * 224


def picture() -> bytes:
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(range(256)) * (BYTES // 256)])
    message.inputs.append(pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, *SHAPE]))
    return bytes(message.SerializeToString())


def test_600_kilobytes_in_and_out_take_one_copy_each() -> None:
    rig = Rig(
        make_version(
            "m",
            inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=SHAPE),),
            outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=SHAPE),),
        )
    )
    limits = EnvelopeLimits()
    message = picture()
    outcomes, done = outcomes_of(rig)
    tracemalloc.start()
    try:
        envelope = scan(message, limits)
        intake = finished(take_in(envelope, rig.engine, limits))
        rig.engine.submit(
            Submission(
                intake.plan,
                request_id="",
                arrived_ns=rig.engine.now_ns(),
                deadline_ns=NO_DEADLINE,
                on_done=done,
            ),
            intake.tensors,
        )
        _, peak_in = tracemalloc.get_traced_memory()
        rig.turns()
        (item,) = rig.runs[0].items
        slot = rig.view(item.offset, BYTES)
        assert slot == memoryview(message)[-BYTES:]
        rig.view(item.out_offset, BYTES)[:] = slot
        rig.work((1, *SHAPE), BYTES)
        (answer,) = outcomes
        assert isinstance(answer, Answer)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        encoded = b"".join(response_parts(envelope.request_id, answer.model, answer.outputs))
        _, peak_out = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    answer.release()
    assert encoded[-BYTES:] == message[-BYTES:]
    assert peak_in < BYTES / 4, "something of the tensor's size was allocated on the way in"
    assert BYTES <= peak_out - before < BYTES * 1.25, "the answer took more than its one copy"
