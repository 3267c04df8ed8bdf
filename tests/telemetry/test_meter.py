"""Figures of a version stay within bounds, whatever sizes of batches clients bring."""

from __future__ import annotations

from appliance.telemetry.meter import SIZES_MAX, VersionMeter

STAGES = (([1], 1),) * 5


def test_further_sizes_of_batches_are_counted_together() -> None:
    meter, other = VersionMeter("m", 1), VersionMeter("m", 1)
    sizes = range(1, 4 * SIZES_MAX + 1)
    for rows in sizes:
        meter.batch_finished(rows, 1, 1, 1)
        meter.merge(rows, [(rows, 1, 1, 1, 1)], STAGES, 0)
        other.merge(rows, [(rows, 1, 1, 1, 1)], STAGES, 0)
    meter.absorb(other)
    frozen = meter.frozen()
    assert [batch.rows for batch in frozen.batches] == [
        *range(1, SIZES_MAX + 1), 2 * SIZES_MAX, 4 * SIZES_MAX
    ]  # fmt: skip
    assert frozen.executions == 3 * len(sizes)
    assert frozen.executed_rows == 3 * sum(sizes)
    assert frozen.batches[-1].count == 3 * 2 * SIZES_MAX
