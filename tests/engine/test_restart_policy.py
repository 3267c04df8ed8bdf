"""Restarts: two crashes in the window quarantine; restarts back off and recover; which loads are to blame."""

from __future__ import annotations

from appliance.core.processes.restart import SECOND_NS, RestartPolicy, Restarts, load_is_to_blame
from appliance.domain.exit_cause import ExitCause


def test_the_second_crash_in_the_window_quarantines() -> None:
    restarts = Restarts(RestartPolicy(quarantine_after=2, crash_window_s=60))
    assert not restarts.crashed(1, 0)
    assert not restarts.crashed(2, 1)
    assert restarts.crashed(1, 59 * SECOND_NS)


def test_old_crashes_are_forgiven() -> None:
    restarts = Restarts(RestartPolicy(quarantine_after=2, crash_window_s=60))
    assert not restarts.crashed(1, 0)
    assert not restarts.crashed(1, 61 * SECOND_NS)
    restarts.forgive(1)
    assert not restarts.crashed(1, 62 * SECOND_NS)


def test_restarts_in_a_row_wait_longer_and_a_stable_life_resets() -> None:
    restarts = Restarts(RestartPolicy(restart_delay_ms=50, restart_delay_max_ms=150, stable_after_s=10))
    delays = [restarts.restart_delay_ns(1, 0) // 1_000_000 for _ in range(5)]
    assert delays == [0, 50, 100, 150, 150]
    assert restarts.restart_delay_ns(2, 0) == 0
    assert restarts.restart_delay_ns(1, 11 * SECOND_NS) == 0


def test_what_loaded_beside_a_run_is_to_blame_only_when_it_is_new() -> None:
    def blamed(*, running: bool, new: bool, cause: ExitCause = ExitCause.DIED) -> bool:
        return load_is_to_blame(cause, running=running, loads_new=new)

    assert blamed(running=True, new=True)
    assert not blamed(running=True, new=False)
    assert blamed(running=False, new=False)
    assert not blamed(running=True, new=True, cause=ExitCause.ZYGOTE)
    assert not blamed(running=False, new=True, cause=ExitCause.ZYGOTE)
    assert not blamed(running=True, new=True, cause=ExitCause.GAVE_UP)
    assert blamed(running=False, new=True, cause=ExitCause.GAVE_UP)


def test_what_is_as_old_as_the_window_counts_and_who_lived_as_long_as_is_stable_is() -> None:
    restarts = Restarts(RestartPolicy(quarantine_after=2, crash_window_s=60, stable_after_s=10))
    assert not restarts.crashed(1, 0)
    assert restarts.crashed(1, 60 * SECOND_NS)
    assert [restarts.restart_delay_ns(1, lived * SECOND_NS) > 0 for lived in (0, 9, 10)] == [
        False,
        True,
        False,
    ]
