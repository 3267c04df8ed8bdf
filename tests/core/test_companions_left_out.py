"""Which companions go because they use too much, and when they may come again."""

from __future__ import annotations

from appliance.core.scheduling.companions import (
    CALM_NS,
    ENTER_SHARE,
    JOIN_SHARE,
    LOOK_NS,
    OVER,
    REST_NS,
    REST_NS_MAX,
    STAY_SHARE,
    TRIED,
    Part,
)
from tests.core.stretches import BUSY, Time, ran, rest


def test_one_that_comes_to_use_too_much_goes_and_does_not_come_back_at_once() -> None:
    between = (ENTER_SHARE + STAY_SHARE) / 2
    time = Time()
    assert time.settled({1: ran(ENTER_SHARE + 0.01)}) == set()
    assert time.settled({1: ran(between)}) == {1}, "some of it is what waking from far away costs"
    for rest_ns in (REST_NS, 2 * REST_NS):
        for _ in range(OVER - 1):
            assert time.after({1: ran(between)}) == {1}
        assert time.after({1: ran(between)}) == set()
        rest(time, {1: ran(between)}, rest_ns)
    for _ in range(CALM_NS // LOOK_NS + 1):
        for _ in range(OVER - 1):
            assert time.after({1: ran(STAY_SHARE + 0.05)}) == {1}, "by chance"
        assert time.after({1: ran(0.2)}) == {1}
    for _ in range(OVER):
        chosen = time.after({1: ran(STAY_SHARE + 0.05)})
    assert chosen == set()
    rest(time, {1: ran(between)}, REST_NS)


def test_one_of_several_that_comes_to_use_too_much_stays_apart_until_all_gather_anew() -> None:
    """Its figures are others apart and together, and would have it come and go."""
    time, light = Time(), {1: ran(0.1), 2: ran(0.3)}
    assert time.settled(light) == {1, 2}
    begin_ns = time.now_ns
    for _ in range(OVER):
        chosen = time.after({1: ran(0.1), 2: ran(0.45)})
    assert chosen == {1}
    while time.after(light) == {1}:
        pass
    assert time.now_ns == begin_ns + CALM_NS + LOOK_NS
    assert time.together == set()
    for _ in range(TRIED - 1):
        assert time.after(light) == set()
    assert time.after(light) == {1, 2}, "that it may come was no reason to rest"
    for _ in range(3 * CALM_NS // LOOK_NS):
        assert time.after(light) == {1, 2}, "nobody is missing"


def test_one_that_always_comes_to_use_too_much_does_not_keep_out_another() -> None:
    """Apart it fits, and beside it the other does not."""
    time, other = Time(), Part(ran(0.26), 3 * BUSY // 2)
    heavy, apart = Part(ran(0.8), 10 * BUSY), Part(ran(1.04), 10 * BUSY)
    seen: list[frozenset[int]] = []
    for _ in range(30_000_000_000 // LOOK_NS):
        time.stretch({1: heavy if 1 in time.together else apart, 2: other})
        seen.append(time.together)
    assert seen[TRIED] == {1}
    assert seen.count(frozenset({2})) > 0.7 * len(seen)
    assert seen.count(frozenset({1})) < 0.1 * len(seen)


def test_all_part_for_one_that_would_serve_far_more() -> None:
    """It went, because it used too much for a moment, and is too large to join those that stayed."""
    time, small = Time(), Part(ran(0.05), 6 * BUSY // 10)
    apart, together, over = (Part(ran(share), 10 * BUSY) for share in (0.7, 0.25, 0.55))
    assert apart.ran_ns + small.ran_ns > ran(JOIN_SHARE)

    def pass_by(stretches: int) -> list[frozenset[int]]:
        seen = []
        for _ in range(stretches):
            time.stretch({1: together if 1 in time.together else apart, 2: small})
            seen.append(time.together)
        return seen

    assert pass_by(TRIED)[-1] == {1, 2}
    for _ in range(OVER):
        time.stretch({1: over, 2: small})
    assert time.together == {2}
    later = pass_by(2 * CALM_NS // LOOK_NS)
    assert later[-1] == {1, 2}
    assert later.count(frozenset({2})) <= CALM_NS // LOOK_NS + 1


def test_all_do_not_part_again_and_again_for_one_that_then_does_not_come() -> None:
    """Beside what the companions use together it would fit, and beside what they use apart it does not."""
    time, joins = Time(), Part(ran(0.4), 6 * BUSY // 10)
    apart, together = Part(ran(1.0), 10 * BUSY), Part(ran(0.25), 10 * BUSY)
    changes, before = 0, time.together
    for _ in range(5 * REST_NS_MAX // LOOK_NS):
        time.stretch({1: together if 1 in time.together else apart, 2: joins})
        changes += time.together != before
        before = time.together
    assert before == {1}
    assert changes <= 2 * 10


def test_who_comes_to_use_too_much_rests_though_others_that_do_not_are_with_it() -> None:
    time, feather = Time(), Part(0, 2)
    for _ in range(2 * TRIED):
        assert time.together in (set(), {1, 2})
        time.stretch({1: Part(ran(0.3), 10 * BUSY), 2: feather})
    heavy = {1: Part(ran(0.6), 10 * BUSY), 2: feather}
    for _ in range(OVER - 1):
        assert time.stretch(heavy) == {1, 2}
    for _ in range(REST_NS // LOOK_NS):
        assert time.stretch(heavy) == set()
    assert time.stretch(heavy) == {1, 2}
