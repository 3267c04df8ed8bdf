"""Whether and when a version may be tried again, by what is remembered of its attempts.

A version that used up its tries is out. Where nothing else of its model serves it is tried once more after a pause that
grows with each such try: an operator may not be on site to ask for it. The pause is kept across restarts by the wall
clock, which may jump: it is never longer than it should be, counted from the start.
"""

from __future__ import annotations

from typing import Final

from appliance.core.rollout.ledger import Standing
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import OutOfTries, Refusal, Rejected
from appliance.domain.model import ModelVersion

DOUBLINGS_MAX: Final = 30


def refusal_of(standing: Standing, config: RolloutPolicy, model: ModelVersion) -> Refusal | None:
    """Why a version is not tried; None when it may be."""
    if standing.rejected is not None:
        return Rejected(why=standing.rejected, again=_again(model))
    if standing.tries >= config.tries:
        return OutOfTries(tries=standing.tries, again=_again(model))
    return None


def has_fallen(standing: Standing) -> bool:
    """Whether a version was tried or given up since it was proven last, or is not to be tried again."""
    return bool(standing.at_ms) or standing.rejected is not None


def tries_left(standing: Standing, config: RolloutPolicy) -> int:
    """How often a version may still be tried before it is given up."""
    return 0 if standing.rejected is not None else max(config.tries - standing.tries, 0)


def pause_ms(standing: Standing, config: RolloutPolicy, now_ms: int) -> int | None:
    """How long from now a version is to be left alone before it is tried once more because nothing else of its model
    serves: all of the pause where it began in the future; None: it is not tried."""
    if standing.rejected is not None or not config.retry_first_s:
        return None
    doublings = min(standing.again, DOUBLINGS_MAX)
    longest_s = max(config.retry_max_s, config.retry_first_s)
    pause = int(min(config.retry_first_s * 2**doublings, longest_s) * 1_000)
    if not standing.at_ms:
        return pause
    return min(max(standing.at_ms + pause - now_ms, 0), pause)


def _again(model: ModelVersion) -> str:
    """What an operator can do about a version that is not tried any more."""
    if model.digest:
        return f"'appliance model want {model.key}' asks for it again"
    return f"change its files, or ask for it again: 'appliance model load {model.name}', or SIGHUP"
