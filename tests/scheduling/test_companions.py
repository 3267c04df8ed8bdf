"""Which workers share the processor of the door's thread, decided from what threads have used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.scheduling.companions import (
    BUSY_PER_S,
    CALM_NS,
    CROWDED,
    ENTER_SHARE,
    KEPT_SHARE,
    LOOK_NS,
    REST_NS,
    REST_NS_MAX,
    STAY_SHARE,
    TRIED,
    Companions,
    Spent,
)

BUSY = BUSY_PER_S // 10
"""Requests that are just enough in one stretch."""
DOOR = Spent(50_000_000, 0)


class Time:
    """Stretch after stretch."""

    def __init__(self) -> None:
        self.companions = Companions()
        self.now_ns = 1

    def after(
        self, workers: dict[int, int], *, requests: int = BUSY, waited_ns: int = 0, span_ns: int = LOOK_NS
    ) -> set[int]:
        """The companions after a stretch in which the ``workers`` ran so long."""
        self.now_ns += span_ns
        return set(
            self.companions.decide(
                self.now_ns,
                span_ns,
                requests,
                Spent(DOOR.ran_ns, waited_ns),
                {worker: Spent(ran_ns, 0) for worker, ran_ns in workers.items()},
            )
        )

    def crowded(self, workers: dict[int, int], stretches: int) -> set[int]:
        """The same after so many stretches in which the door's thread waited for others."""
        return [self.after(workers, waited_ns=LOOK_NS) for _ in range(stretches)][-1]

    def settled(self, workers: dict[int, int], **more: int) -> set[int]:
        """The same after as many stretches as it takes to try."""
        return [self.after(workers, **more) for _ in range(TRIED)][-1]


def ran(share: float) -> int:
    """Nanoseconds that are this share of what the door's thread ran."""
    return int(DOOR.ran_ns * share)


def test_a_worker_that_uses_little_is_a_companion_while_many_requests_come() -> None:
    time = Time()
    assert time.settled({1: ran(0.2)}, requests=BUSY - 1) == set()
    for _ in range(TRIED - 1):
        assert time.after({1: ran(0.2)}) == set(), "it is not known yet what is served without"
    assert time.after({1: ran(0.2)}) == {1}
    assert time.settled({1: ran(0.2)}) == {1}
    assert time.settled({1: ran(0.2)}, requests=BUSY // 2) == {1}, "half as many will do for staying"
    assert time.after({1: ran(0.2)}, requests=BUSY // 2 - 1) == set()
    assert time.settled({1: ran(0.2)}) == {1}, "that was no fault of anybody's"


def test_a_long_stretch_with_few_requests_is_a_quiet_one() -> None:
    time = Time()
    assert time.settled({1: 0}) == {1}
    assert time.after({1: 0}, requests=10 * BUSY, span_ns=100 * LOOK_NS) == set()


def test_what_wakes_from_far_away_cost_is_forgiven_at_first_only() -> None:
    between = (ENTER_SHARE + STAY_SHARE) / 2
    time = Time()
    assert time.settled({1: ran(ENTER_SHARE + 0.01)}) == set()
    assert time.after({1: ran(between)}) == {1}
    assert time.after({1: ran(between)}) == set()


def test_of_several_workers_those_that_use_least() -> None:
    assert Time().settled({1: ran(0.5), 2: ran(0.1), 3: ran(0.2), 4: ran(0.3)}) == {2, 3, 4}


def rest(time: Time, worker: dict[int, int], rest_ns: int) -> None:
    """Nobody is anybody's companion for so long."""
    end_ns = time.now_ns + rest_ns
    while time.now_ns + LOOK_NS < end_ns:
        assert time.after(worker) == set()
    assert time.after(worker) == {1}


def test_where_others_are_found_everybody_goes_and_comes_back_later_each_time() -> None:
    time, worker = Time(), {1: ran(0.2)}
    assert time.settled(worker) == {1}
    rest_ns = REST_NS
    while rest_ns <= 2 * REST_NS_MAX:
        for _ in range(2 * CROWDED):
            assert time.after(worker, waited_ns=ran(0.2) + LOOK_NS // 5) == {1}, (
                "its companion ran, and little more"
            )
        assert time.crowded(worker, CROWDED - 1) == {1}
        assert time.after(worker) == {1}, "they passed by"
        assert time.crowded(worker, CROWDED) == set()
        rest(time, worker, min(rest_ns, REST_NS_MAX))
        rest_ns *= 2
    assert time.after(worker, span_ns=CALM_NS + LOOK_NS, requests=BUSY * 200) == {1}
    assert time.crowded(worker, CROWDED) == set()
    rest(time, worker, REST_NS)


def test_where_less_is_served_together_they_part_and_try_again_later() -> None:
    time, worker, many = Time(), {1: ran(0.2)}, 10 * BUSY
    assert time.settled(worker, requests=many) == {1}
    assert time.settled(worker, requests=int(many * KEPT_SHARE) + 1) == {1}, "rates go up and down"
    assert time.settled(worker, requests=many // 2) == {1}, "later there may be less to serve"
    assert time.after(worker, requests=0) == set()
    assert time.settled(worker, requests=many) == {1}
    for _ in range(TRIED - 1):
        assert time.after(worker, requests=int(many * KEPT_SHARE) - 1) == {1}
    assert time.after(worker, requests=int(many * KEPT_SHARE) - 1) == set()
    rest(time, worker, REST_NS)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 5), st.integers(0, 2 * DOOR.ran_ns), max_size=6),
            st.integers(0, 3 * BUSY),
            st.integers(0, LOOK_NS),
        ),
        max_size=40,
    )
)
def test_companions_are_some_of_those_that_served_and_never_too_much(
    stretches: list[tuple[dict[int, int], int, int]],
) -> None:
    time = Time()
    for workers, requests, waited_ns in stretches:
        chosen = time.after(workers, requests=requests, waited_ns=waited_ns)
        assert chosen <= workers.keys()
        assert sum(workers[each] for each in chosen) <= ENTER_SHARE * DOOR.ran_ns
        assert not chosen or requests >= BUSY // 2
