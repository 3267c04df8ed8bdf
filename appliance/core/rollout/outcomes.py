"""What trials come to, for the succession to carry out.

Parts of the rollout give their steps one after the other: actions for the one that performs them, and outcomes, each of
which is carried out before the step that follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.core.rollout.actions import Action
from appliance.core.rollout.attempt import Attempt
from appliance.core.rollout.reasons import Verdict
from appliance.core.rollout.version import Version


class TakesOver(NamedTuple):
    """From the next request on it serves."""

    attempt: Attempt


class RollsBack(NamedTuple):
    """It serves no more, and what served before does again."""

    attempt: Attempt
    reason: Verdict


class IsGivenUp(NamedTuple):
    """It never serves (again), which its history says. ``form``: a packed form that it was to run from is to blame,
    too."""

    version: Version
    reason: Verdict
    form: bool


class Leaves(NamedTuple):
    """It serves no more; it goes when its last request has ended, unless it is kept to go back to."""

    version: Version


Outcome = TakesOver | RollsBack | IsGivenUp | Leaves
Step = Action | Outcome
Steps = Iterator[Step]
