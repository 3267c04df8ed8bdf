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
    REQUEST_NS,
    REST_NS,
    REST_NS_MAX,
    STAY_SHARE,
    TRIED,
    Companions,
    Part,
    Spent,
)

BUSY = BUSY_PER_S // 10
"""Requests that are just enough in one stretch."""
DOOR_NS = 50_000_000


class Time:
    """Stretch after stretch. ``together`` are those that were bound as it was decided."""

    def __init__(self) -> None:
        self.companions = Companions()
        self.now_ns = 1
        self.together: frozenset[int] = frozenset()

    def after(
        self,
        workers: dict[int, int],
        *,
        requests: int = 10 * BUSY,
        each: int = 10 * BUSY,
        waited_ns: int = 0,
        door_ns: int = DOOR_NS,
        span_ns: int = LOOK_NS,
    ) -> set[int]:
        """The companions after a stretch in which the ``workers`` ran so long, for ``each`` so many requests."""
        self.now_ns += span_ns
        parts = {worker: Part(ran_ns, each) for worker, ran_ns in workers.items()}
        self.together = self.companions.decide(
            self.now_ns, span_ns, requests, Spent(door_ns, waited_ns), parts, self.together
        )
        return set(self.together)

    def crowded(self, workers: dict[int, int], stretches: int) -> set[int]:
        """The same after so many stretches in which the door's thread waited for others."""
        return [self.after(workers, waited_ns=LOOK_NS) for _ in range(stretches)][-1]

    def settled(self, workers: dict[int, int], **more: int) -> set[int]:
        """The same after as many stretches as it takes to try."""
        return [self.after(workers, **more) for _ in range(TRIED)][-1]


def ran(share: float) -> int:
    """Nanoseconds that are this share of what the door's thread ran."""
    return int(DOOR_NS * share)


def rest(time: Time, worker: dict[int, int], rest_ns: int) -> None:
    """Nobody is anybody's companion for so long."""
    end_ns = time.now_ns + rest_ns
    while time.now_ns + LOOK_NS < end_ns:
        assert time.after(worker) == set()
    assert time.after(worker) == set(worker)


def test_a_worker_that_uses_little_is_a_companion_while_many_requests_come() -> None:
    time = Time()
    assert time.settled({1: ran(0.2)}, requests=BUSY - 1) == set()
    for _ in range(TRIED - 1):
        assert time.after({1: ran(0.2)}, requests=BUSY) == set(), "it is not known yet what is served without"
    assert time.after({1: ran(0.2)}, requests=BUSY) == {1}
    assert time.settled({1: ran(0.2)}, requests=BUSY) == {1}
    assert time.settled({1: ran(0.2)}, requests=BUSY // 2) == {1}, "half as many will do for staying"
    assert time.after({1: ran(0.2)}, requests=BUSY // 2 - 1) == set()
    assert time.settled({1: ran(0.2)}, requests=BUSY) == {1}, "that was no fault of anybody's"


def test_a_long_stretch_with_few_requests_is_a_quiet_one() -> None:
    time = Time()
    assert time.settled({1: 0}) == {1}
    assert time.after({1: 0}, requests=10 * BUSY, span_ns=100 * LOOK_NS) == set()


def test_a_worker_whose_requests_take_long_stays_apart_however_few_they_are() -> None:
    time = Time()
    slow_ns = 20_000_000
    assert slow_ns < ran(STAY_SHARE)
    assert time.settled({1: slow_ns}, each=1) == set()
    assert time.after({1: slow_ns}, each=slow_ns // REQUEST_NS) == {1}
    assert time.after({1: slow_ns}, each=slow_ns // REQUEST_NS - 1) == set()
    other = Time()
    for _ in range(TRIED):
        chosen = other.companions.decide(
            other.now_ns, LOOK_NS, 10 * BUSY, Spent(DOOR_NS, 0),
            {1: Part(slow_ns, 1), 2: Part(ran(0.5), 10 * BUSY)}, frozenset(),
        )  # fmt: skip
    assert chosen == {2}, "its time is not taken from others"


def test_one_that_comes_to_use_too_much_goes_and_does_not_come_back_at_once() -> None:
    between = (ENTER_SHARE + STAY_SHARE) / 2
    time = Time()
    assert time.settled({1: ran(ENTER_SHARE + 0.01)}) == set()
    assert time.after({1: ran(between)}) == {1}, "some of it is what waking from far away costs"
    assert time.after({1: ran(between)}) == set()
    rest(time, {1: ran(between)}, REST_NS)
    assert time.after({1: ran(between)}) == set()
    rest(time, {1: ran(between)}, 2 * REST_NS)


def test_of_several_workers_those_that_use_least() -> None:
    assert Time().settled({1: ran(0.5), 2: ran(0.1), 3: ran(0.2), 4: ran(0.3)}) == {2, 3, 4}


def test_where_none_could_be_bound_it_begins_anew() -> None:
    time = Time()
    assert time.settled({1: ran(0.2)}) == {1}
    time.together = frozenset()
    for _ in range(TRIED - 1):
        assert time.after({1: ran(0.2)}) == set()
    assert time.after({1: ran(0.2)}) == {1}


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


def test_companions_that_fill_their_processor_later_try_once_more_whether_it_pays() -> None:
    """Load that has grown since may be more than one processor serves, where two would."""
    time, worker, door_ns = Time(), {1: 24_000_000}, 70_000_000
    assert time.settled(worker) == {1}
    assert time.settled(worker) == {1}
    stretches = 0
    while time.after(worker, door_ns=door_ns, requests=50 * BUSY) == {1}:
        stretches += 1
        assert stretches * LOOK_NS <= CALM_NS
    for _ in range(TRIED - 1):
        assert time.after(worker, door_ns=door_ns, requests=75 * BUSY) == set()
    assert time.after(worker, door_ns=door_ns, requests=75 * BUSY) == {1}
    assert time.settled(worker, door_ns=door_ns, requests=50 * BUSY) == set(), (
        "two thirds of what is served apart"
    )
    rest(time, worker, REST_NS)
    assert time.settled(worker) == {1}
    for _ in range(2 * CALM_NS // LOOK_NS):
        assert time.after(worker) == {1}, "there is room on their processor"


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 5), st.integers(0, 2 * DOOR_NS), max_size=6),
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
        chosen = time.after(workers, requests=requests, each=requests, waited_ns=waited_ns)
        assert chosen <= workers.keys()
        assert sum(workers[each] for each in chosen) <= ENTER_SHARE * DOOR_NS
        assert not chosen or requests >= BUSY // 2
