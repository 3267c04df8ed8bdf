"""Under overload the scheduler keeps the lane full of work that is in time; below it, it refuses next to
nothing.

Virtual time and seeded chance: the figures are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.leased_load import play_leased
from tests.simulation.offered_load import MILLISECOND, SECOND, Offer, Play, play


def big_batches(requests_per_second: float, noise: float = 0.0, seeded: bool = True) -> Offer:
    """10 ms alone, 12 ms for eight; 50 ms to answer."""
    per_row_ns = 2 * MILLISECOND // 7
    return Offer(
        fixed_ns=10 * MILLISECOND - per_row_ns,
        per_row_ns=per_row_ns,
        max_batch=8,
        budgets_ns=(50 * MILLISECOND,),
        requests_per_second=requests_per_second,
        noise=noise,
        seeded=seeded,
    )


def short_batches(overload: float, noise: float = 0.0, seeded: bool = True) -> Offer:
    """2 ms for any batch of up to four; 10 ms to answer."""
    return Offer(
        fixed_ns=2 * MILLISECOND,
        per_row_ns=0,
        max_batch=4,
        budgets_ns=(10 * MILLISECOND,),
        requests_per_second=overload * 4 * 500,
        noise=noise,
        seeded=seeded,
    )


BIG_CAPACITY = big_batches(1.0).capacity


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("noise", "seeded"), [(0.0, True), (0.1, True), (0.1, False)])
def test_batching_serves_half_more_than_one_at_a_time_could(noise: float, seeded: bool, seed: int) -> None:
    tally = play(big_batches(1.5 * 100, noise, seeded), seconds=5, seed=seed)
    assert tally.in_time / tally.offered >= 0.97
    assert tally.late == 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("noise", "seeded"), [(0.0, True), (0.1, True), (0.1, False)])
@pytest.mark.parametrize(
    "offer", [big_batches(3 * BIG_CAPACITY), short_batches(3)], ids=["12 ms batches", "2 ms batches"]
)
def test_three_times_too_much_leaves_goodput_at_capacity(
    offer: Offer, noise: float, seeded: bool, seed: int
) -> None:
    make = big_batches if offer.max_batch == 8 else short_batches
    load = 3 * BIG_CAPACITY if offer.max_batch == 8 else 3
    tally = play(make(load, noise, seeded), seconds=3, seed=seed)
    assert tally.in_time / 3 >= 0.95 * offer.capacity
    assert tally.late <= tally.in_time / 500


def test_a_lane_that_becomes_slower_is_followed() -> None:
    """Seeds say 1 ms, the truth is 4 ms: after a short while admission knows."""
    offer = Offer(
        fixed_ns=4 * MILLISECOND,
        per_row_ns=0,
        max_batch=1,
        budgets_ns=(20 * MILLISECOND,),
        requests_per_second=3 * SECOND / (4 * MILLISECOND),
    )
    tally = play(offer, seconds=4, seed=1, measured_ns=MILLISECOND)
    assert tally.in_time / 4 >= 0.9 * offer.capacity
    assert tally.refused > 10 * (tally.late + tally.expired)


class SlowAtFirst(Play):
    """Every batch takes six times as long for the first five seconds."""

    def _service_ns(self, rows: int) -> int:
        return super()._service_ns(rows) * (6 if self.now_ns < 6 * SECOND else 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_lane_that_was_slow_is_tried_again_soon(seed: int) -> None:
    """Some twenty requests a second for 2 ms each, which took 12 ms of 10 at first: what is refused afterwards is not
    worth a second."""
    tally = SlowAtFirst(short_batches(0.01, noise=0.1), seed, None).run(15 * SECOND)
    assert tally.in_time >= 0.9 * tally.offered * 9 / 15
    assert tally.late + tally.expired <= tally.offered / 10


@pytest.mark.parametrize("limit", [16, 512])
@pytest.mark.parametrize(
    "offer", [big_batches(0.5 * BIG_CAPACITY), short_batches(0.5)], ids=["12 ms", "2 ms"]
)
def test_what_a_leased_lane_can_do_goes_by_the_front_end(offer: Offer, limit: int) -> None:
    tally = play_leased(offer, seconds=3, seed=1, limit=limit)
    assert tally.in_time / tally.offered >= 0.99
    assert tally.by_front_end / tally.offered >= 0.99


@pytest.mark.parametrize("limit", [16, 512])
@pytest.mark.parametrize(("overload", "least"), [(0.9, 0.92), (1.5, 0.97), (3, 0.97)])
@pytest.mark.parametrize("make", [big_batches, short_batches], ids=["12 ms", "2 ms"])
def test_a_leased_lane_is_not_worse_used(
    make: Callable[[float], Offer], overload: float, least: float, limit: int
) -> None:
    """At the limit of the lease, and past it, batches are as full as the scheduler's."""
    offer = make(overload * (BIG_CAPACITY if make is big_batches else 1))
    tally = play_leased(offer, seconds=3, seed=1, limit=limit)
    assert tally.in_time >= least * min(tally.offered, 3 * offer.capacity)
    assert tally.late <= tally.in_time / 500
