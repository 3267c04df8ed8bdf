"""How far a build is."""

from __future__ import annotations

from appliance.runtimes.tensorrt.build_progress import WHOLE, BuildProgress


def test_phases_within_phases_count_for_their_part() -> None:
    progress = BuildProgress()
    progress.begin("build", None, 2)
    progress.begin("prepare", "build", 4)
    assert [progress.step("prepare", step) for step in range(4)] == [125, 250, 375, 500]
    progress.end("prepare")
    assert progress.step("build", 0) == 500
    progress.begin("measure", "build", 10)
    assert progress.step("measure", 4) == 750
    progress.end("measure")
    assert progress.step("build", 1) == WHOLE


def test_it_never_goes_back_nor_beyond_its_end() -> None:
    progress = BuildProgress()
    progress.begin("build", None, 2)
    assert progress.step("build", 0) == 500
    progress.begin("again", "build", 0)
    assert progress.step("again", 5) == WHOLE
    assert progress.step("build", 0) == WHOLE
    assert progress.step("nobody knows it", 3) == WHOLE


def test_phases_that_are_around_one_another_end() -> None:
    progress = BuildProgress()
    progress.begin("a", "b", 2)
    progress.begin("b", "a", 2)
    assert 0 <= progress.step("a", 0) <= WHOLE
