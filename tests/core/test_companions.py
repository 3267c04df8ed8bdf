"""Which workers share the processor of the door's thread, decided from what threads have used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.scheduling.companions import (
    CALM_NS,
    CROWDED,
    ENTER_SHARE,
    KEPT_SHARE,
    LOOK_NS,
    OVER,
    PROOF_NS,
    REQUEST_NS,
    REST_NS,
    REST_NS_MAX,
    STAY_SHARE,
    TRIED,
    Part,
)
from tests.core.stretches import BUSY, DOOR_NS, Time, ran, rest


def test_a_worker_that_uses_little_is_a_companion_while_many_requests_come() -> None:
    time = Time()
    assert time.settled({1: ran(0.05)}, requests=BUSY - 1) == set()
    for _ in range(TRIED - 1):
        assert time.after({1: ran(0.05)}, requests=BUSY) == set(), (
            "it is not known yet what is served without"
        )
    assert time.after({1: ran(0.05)}, requests=BUSY) == {1}
    assert time.settled({1: ran(0.05)}, requests=BUSY) == {1}
    assert time.settled({1: ran(0.05)}, requests=BUSY // 2) == {1}, "half as many will do for staying"
    assert time.after({1: ran(0.05)}, requests=BUSY // 2 - 1) == set()
    assert time.settled({1: ran(0.05)}, requests=BUSY) == {1}, "that was no fault of anybody's"


def test_a_long_stretch_with_few_requests_is_a_quiet_one() -> None:
    time = Time()
    assert time.settled({1: 0}) == {1}
    assert time.after({1: 0}, requests=10 * BUSY, span_ns=100 * LOOK_NS) == set()


def test_a_worker_whose_requests_take_long_stays_apart_however_few_they_are() -> None:
    time = Time()
    slow = Part(20_000_000, 20_000_000 // REQUEST_NS - 1)
    assert slow.ran_ns < ran(STAY_SHARE)
    for _ in range(TRIED):
        chosen = time.stretch({1: slow, 2: Part(ran(0.5), 10 * BUSY)})
    assert chosen == {2}, "its time is not taken from others"
    other = Time()
    fast = Part(slow.ran_ns, slow.requests + 1)
    for _ in range(TRIED):
        chosen = other.stretch({1: fast, 2: Part(0, 10 * BUSY)})
    assert chosen == {1, 2}
    for _ in range(OVER):
        chosen = other.stretch({1: slow, 2: Part(0, 10 * BUSY)})
    assert chosen == {2}


def test_others_that_bring_little_are_no_reason_to_gather_anew() -> None:
    time = Time()
    alone = {1: Part(ran(0.2), 10 * BUSY)}
    for _ in range(TRIED):
        assert time.together == set()
        time.stretch(alone)
    for _ in range(3 * CALM_NS // LOOK_NS):
        assert time.stretch(alone | {2: Part(ran(0.05), BUSY // 2 - 1)}) == {1}
    assert time.stretch(alone | {2: Part(ran(0.05), BUSY // 2)}) == set()


def test_who_has_nothing_to_do_goes_in_the_end_and_is_no_reason_to_stay_together() -> None:
    """The door's thread would be bound for nobody, and others that serve would be kept out."""
    time, many = Time(), Part(ran(0.1), 10 * BUSY)
    for _ in range(TRIED):
        chosen = time.stretch({1: many, 2: many})
    assert chosen == {1, 2}
    for _ in range(TRIED - 1):
        assert time.stretch({1: many, 2: Part(0, 0)}) == {1, 2}
    assert time.stretch({1: many, 2: Part(0, 1)}) == {1, 2}, "from time to time it has"
    for _ in range(TRIED - 1):
        assert time.stretch({1: many, 2: Part(0, 0)}) == {1, 2}
    assert time.stretch({1: many, 2: Part(0, 0)}) == {1}
    slow = Part(ran(0.9), 300)
    assert time.stretch({1: Part(0, BUSY // 2 - 1), 3: slow}) == set(), "the others' requests do not count"
    for _ in range(2 * TRIED):
        assert time.stretch({1: Part(0, BUSY - 1), 3: slow}) == set()
    for _ in range(TRIED):
        chosen = time.stretch({1: Part(0, BUSY), 3: slow})
    assert chosen == {1}, "there was no need to rest"


def test_when_a_companion_has_gone_others_gather_without_a_rest() -> None:
    """As in a swap: another worker has its model."""
    time, worker = Time(), {1: ran(0.2)}
    assert time.settled(worker) == {1}
    assert time.settled(worker) == {1}
    for number in range(2, 12):
        assert time.after({number: ran(0.2)}) == set()
        assert time.settled({number: ran(0.2)}) == {number}
    assert time.settled({11: ran(0.2)}) == {11}
    assert time.stretch({}) == set(), "nothing is known of it"
    assert time.settled({11: ran(0.2), 12: ran(0.2)}) == {11, 12}
    assert time.after({12: ran(0.2)}) == {12}, "one of two"


def test_of_several_workers_those_that_use_least() -> None:
    most = ran(ENTER_SHARE)
    assert Time().settled({1: most // 2, 2: most // 10, 3: most // 5, 4: most // 4}) == {2, 3, 4}


def test_of_several_workers_those_that_use_least_for_each_request() -> None:
    time, busy, small = Time(), Part(ran(0.44), 20 * BUSY), Part(ran(0.28), 10 * BUSY)
    for _ in range(TRIED):
        assert time.stretch({1: busy, 2: small}) in (set(), {1, 2})
    for _ in range(OVER):
        assert time.together == {1, 2}
        time.stretch({1: busy, 2: small})
    assert time.together == {1}, "each of its requests saves as much"


def test_one_that_serves_more_than_all_of_the_smaller_is_the_one() -> None:
    time, cheap, busy = Time(), Part(ran(0.3), 7 * BUSY), Part(ran(1.0), 20 * BUSY)
    for _ in range(TRIED):
        chosen = time.stretch({1: busy, 2: cheap})
    assert chosen == {1}
    other = Time()
    for _ in range(TRIED):
        chosen = other.stretch({1: busy, 2: cheap, 3: Part(ran(0.6), 14 * BUSY)})
    assert chosen == {2, 3}


def test_one_that_fits_comes_although_a_busier_one_is_too_much() -> None:
    time, too_much, fits = Time(), Part(ran(ENTER_SHARE) + 1, 100 * BUSY), Part(ran(0.2), 2 * BUSY)
    for _ in range(TRIED):
        chosen = time.stretch({1: too_much, 2: fits})
    assert chosen == {2}


def test_where_none_could_be_bound_it_rests_and_begins_anew() -> None:
    time, worker = Time(), {1: ran(0.2)}
    assert time.settled(worker) == {1}
    time.together = frozenset()
    assert time.after(worker) == set()
    rest(time, worker, REST_NS)


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
    less = int(many * KEPT_SHARE) - 1
    assert time.settled(worker, requests=many) == {1}
    assert time.settled(worker, requests=less) == {1}, "rates go up and down"
    assert time.settled(worker, requests=less + 2) == {1}
    assert time.settled(worker, requests=many // 2) == {1}, "later there may be less to serve"
    assert time.settled(worker, requests=many // 2) == {1}
    time = Time()
    assert time.settled(worker, requests=many) == {1}
    assert time.settled(worker, requests=less) == {1}
    for _ in range(TRIED - 1):
        assert time.after(worker, requests=less) == {1}
    assert time.after(worker, requests=less) == set()
    rest(time, worker, REST_NS)


def test_after_a_silence_they_gather_at_once_for_it_is_known_that_it_pays() -> None:
    time, worker = Time(), {1: ran(0.2)}
    assert time.settled(worker) == {1}
    assert time.settled(worker) == {1}
    for _ in range(3):
        assert time.after(worker, requests=0) == set()
        time.now_ns += CALM_NS - 3 * LOOK_NS
        assert time.after(worker, requests=0) == set()
        assert time.after(worker) == {1}
        assert time.settled(worker) == {1}
    assert time.settled(worker, requests=5 * BUSY) == {1}
    assert time.settled(worker, requests=5 * BUSY) == {1}, "it is not compared again"
    assert time.after(worker, requests=0) == set()
    time.now_ns += CALM_NS
    assert time.after(worker) == set(), "that was long ago"
    assert time.settled(worker) == {1}
    assert time.settled(worker) == {1}
    assert time.after(worker, requests=0) == set()
    assert time.after(worker) == {1}
    assert time.crowded(worker, CROWDED) == set()
    rest(time, worker, REST_NS)


def test_what_is_known_counts_for_as_many_and_for_a_while() -> None:
    time, worker = Time(), {1: ran(0.2)}
    assert time.settled(worker) == {1}
    assert time.settled(worker) == {1}
    begin_ns = time.now_ns - TRIED * LOOK_NS
    assert time.after(worker, requests=0) == set()
    assert time.after({1: ran(0.2), 2: ran(0.1)}) == set(), "of two it is not known"
    assert time.after({2: ran(0.1)}) == {2}
    while time.after({2: ran(0.1)}) == {2}:
        assert time.settled({2: ran(0.1)}) == {2}
        assert time.after({2: ran(0.1)}, requests=0) == set()
    assert 0 <= time.now_ns - begin_ns - PROOF_NS <= 2 * TRIED * LOOK_NS


def test_who_is_together_for_a_moment_proves_nothing() -> None:
    """Requests that come in batches, or one that is let go at once each time."""
    for parted in (False, True):
        time, worker = Time(), {1: ran(0.2)}
        assert time.settled(worker) == {1}
        assert time.settled(worker) == {1}
        assert time.after(worker, requests=0) == set()
        assert time.after(worker) == {1}
        gathered = 0
        for number in range(20 * TRIED):
            if parted:
                time.together = frozenset()
            gathered += bool(time.after(worker, requests=10 * BUSY * (parted or number % 2)))
        assert gathered <= 3, "they rest in between"


def test_what_was_doubted_is_not_known() -> None:
    time, worker = Time(), {1: ran(0.2)}
    assert time.settled(worker) == {1}
    assert time.settled(worker, requests=int(10 * BUSY * KEPT_SHARE) - 1) == {1}
    assert time.after(worker, requests=0) == set()
    assert time.after(worker) == set()


def test_after_a_rest_it_is_tried_anew_whatever_was_known() -> None:
    time, worker = Time(), {1: ran(0.2)}
    assert time.settled(worker) == {1}
    assert time.settled(worker) == {1}
    assert time.after(worker, requests=0) == set()
    assert time.after(worker) == {1}
    assert time.crowded(worker, CROWDED) == set()
    rest(time, worker, REST_NS)
    assert time.settled(worker, requests=5 * BUSY) == {1}
    assert time.settled(worker, requests=5 * BUSY) == set(), "half of what is served apart"


def test_full_companions_that_come_after_a_silence_stay_for_a_while() -> None:
    time, worker, door_ns = Time(), {1: 24_000_000}, 70_000_000
    assert time.settled(worker, requests=50 * BUSY) == {1}
    time.now_ns += CALM_NS - 2 * TRIED * LOOK_NS
    assert time.settled(worker, requests=50 * BUSY) == {1}
    assert time.after(worker, requests=0) == set()
    time.now_ns += CALM_NS // 2
    for _ in range(TRIED):
        assert time.after(worker, requests=50 * BUSY, door_ns=door_ns) == {1}
    assert time.after(worker, requests=50 * BUSY, door_ns=door_ns) == set()


def test_the_small_do_not_take_the_place_of_who_serves_more() -> None:
    time, busy = Time(), {1: Part(ran(0.44), 20 * BUSY)}
    for _ in range(TRIED):
        time.stretch(busy)
    for _ in range(3 * CALM_NS // LOOK_NS):
        assert time.stretch(busy | {2: Part(ran(0.28), 10 * BUSY)}) == {1}


def test_rests_double_where_others_are_found_after_each_silence() -> None:
    time, worker, rest_ns = Time(), {1: ran(0.2)}, REST_NS
    for _ in range(4):
        while time.together == frozenset():
            time.after(worker)
        assert time.settled(worker) == {1}
        time.now_ns += CALM_NS // 2
        assert time.after(worker, requests=0) == set()
        time.now_ns += CALM_NS // 2
        assert time.after(worker) == {1}
        assert time.crowded(worker, CROWDED) == set()
        rest(time, worker, rest_ns)
        rest_ns *= 2


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
    assert time.settled(worker, door_ns=door_ns, requests=50 * BUSY) == {1}
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
            st.dictionaries(
                st.integers(0, 3),
                st.builds(Part, st.integers(0, DOOR_NS), st.integers(0, 2 * BUSY) | st.just(10 * BUSY)),
                max_size=4,
            ),
            st.integers(0, LOOK_NS // 2),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 2 * TRIED),
)
def test_companions_are_some_of_those_that_serve_and_never_too_much(
    phases: list[tuple[dict[int, Part], int]], stretches: int
) -> None:
    """Phases of some stretches each, for somebody gathers only where nothing changes for a while."""
    time, over = Time(), 0
    for parts, waited_ns in phases:
        for _ in range(stretches):
            before = time.together
            requests = sum(part.requests for part in parts.values())
            chosen = time.stretch(parts, requests=requests, waited_ns=waited_ns)
            assert chosen <= parts.keys()
            assert chosen <= before or not before, "they gather at once"
            used_ns = sum(parts[each].ran_ns for each in chosen)
            over = over + 1 if before and used_ns > STAY_SHARE * DOOR_NS else 0
            assert over < OVER
            assert before or used_ns <= ENTER_SHARE * DOOR_NS
            least = BUSY / 2 if before else BUSY
            staying = before & parts.keys() if before else chosen
            assert not chosen or sum(parts[each].requests for each in staying) >= least


@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 3),
            st.builds(Part, st.integers(0, DOOR_NS), st.integers(0, 2 * BUSY) | st.just(10 * BUSY)),
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_what_goes_on_as_before_has_nobody_come_and_go(pattern: list[dict[int, Part]], proven: bool) -> None:
    """For a minute the same again and again."""
    time = Time()
    for _ in range(2 * TRIED * proven):
        time.stretch({0: Part(0, 10 * BUSY)})
    changes, together = 0, time.together
    for number in range(60_000_000_000 // LOOK_NS):
        parts = pattern[number % len(pattern)]
        time.stretch(parts, requests=10 * BUSY)
        changes += time.together != together
        together = time.together
    assert changes <= 40
