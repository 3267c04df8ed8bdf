"""What processes have of a device and no version says."""

from __future__ import annotations

from appliance.core.memory.homes import CONTEXT_BYTES, GIB, STEP_BYTES, gpu_budget
from appliance.core.memory.unsaid import LOOKS, Found, Unsaid


def test_what_is_more_than_a_context_and_the_words_counts_when_it_was_there_in_each_look() -> None:
    unsaid = Unsaid()
    for _ in range(LOOKS - 1):
        assert unsaid.take({7: 12 * GIB, 8: 3 * GIB}, {7: 2 * GIB, 8: 2 * GIB}) == []
        assert unsaid.bytes == 0
    found = unsaid.take({7: 11 * GIB, 8: 3 * GIB}, {7: 2 * GIB, 8: 2 * GIB})
    assert found == [Found(7, 2 * GIB, 8 * GIB)]
    assert unsaid.bytes == 8 * GIB, "the least of the looks"
    assert unsaid.take({7: 11 * GIB}, {7: 2 * GIB}) == [], "it is told once"
    assert gpu_budget(80 * GIB, 5 * GIB, unsaid.bytes) == 67 * GIB - CONTEXT_BYTES


def test_an_honest_process_has_a_context_beside_what_its_versions_take() -> None:
    unsaid = Unsaid()
    for _ in range(2 * LOOKS):
        assert unsaid.take({7: 3 * GIB + CONTEXT_BYTES}, {7: 3 * GIB}) == []
    assert unsaid.bytes == 0


def test_a_version_that_has_just_left_is_no_lie() -> None:
    unsaid = Unsaid()
    for held, said in ((9, 8), (9, 8), (9, 2), (9, 2), (3, 2), (3, 2)):
        assert unsaid.take({7: held * GIB}, {7: said * GIB}) == []
        assert unsaid.bytes == 0


def test_while_a_process_loads_what_was_known_of_it_counts() -> None:
    unsaid = Unsaid()
    for _ in range(5 * LOOKS):
        assert unsaid.take({7: 50 * GIB}, {7: None}) == []
    for _ in range(LOOKS):
        unsaid.take({7: 10 * GIB}, {7: GIB})
    unsaid.take({7: 50 * GIB}, {7: None})
    assert unsaid.bytes == 8 * GIB


def test_it_is_over_at_once_and_with_the_process() -> None:
    unsaid = Unsaid()
    for held_gib, said in ((2, {7: GIB}), (10, {})):
        for _ in range(LOOKS):
            unsaid.take({7: 10 * GIB}, {7: GIB})
        assert unsaid.bytes == 8 * GIB
        unsaid.take({7: held_gib * GIB}, said)
        assert unsaid.bytes == 0


def test_allocators_move_by_less_than_counts() -> None:
    unsaid = Unsaid()
    for _ in range(LOOKS):
        assert unsaid.take({7: 2 * GIB + STEP_BYTES - 1}, {7: GIB}) == []
    assert unsaid.bytes == 0
    for more in (0, STEP_BYTES - 1, 1):
        for _ in range(LOOKS):
            unsaid.take({7: 10 * GIB + more}, {7: GIB})
        assert unsaid.bytes == 8 * GIB, "a budget that moves with each look would have models come and go"


def test_what_the_driver_does_not_say_of_a_process_is_no_lie() -> None:
    unsaid = Unsaid()
    for _ in range(LOOKS):
        assert unsaid.take({}, {7: GIB}) == []
    assert unsaid.bytes == 0
