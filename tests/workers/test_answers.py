"""What a worker says about a batch is held to its model, and what was found right is remembered within bounds."""

from __future__ import annotations

import pytest

from appliance.domain.tensor import Datatype, TensorSpec
from appliance.workers.codec import MessageInvalid
from appliance.workers.daemon.answers import AGREED_MAX, ModelContract
from appliance.workers.port import ItemStatus, Run, RunItem, RunResult
from tests.domain.sample import make_version

FREE = TensorSpec(name="y", datatype=Datatype.UINT8, shape=(-1,))


def test_shapes_that_were_found_right_are_remembered_within_bounds() -> None:
    contract = ModelContract(make_version(outputs=(FREE,)))
    item = RunItem(7, 1, ((1, 4),), (16,), 0, (0,), 0, 1 << 20)
    run = Run(1, 1, (item,))
    for width in [*range(1, 2 * AGREED_MAX)] * 2:
        right = RunResult(7, ItemStatus.OK, ((1, width),), (width,), 0, "")
        assert contract.check_batch(run, (right,))
        assert len(contract._agreed) <= AGREED_MAX
        with pytest.raises(MessageInvalid):
            contract.check_batch(run, (right._replace(sizes=(width + 1,)),))
