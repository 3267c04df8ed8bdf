"""What is said of versions, in words: rendered from data, and read by people and clients alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

from appliance.core.memory import budget
from appliance.core.rollout import reasons
from appliance.core.rollout.reasons import Outlook, Refusal, WaitReason
from appliance.engine.port import NEVER

MB: Final = 1_000_000
STILL_PREVIOUS: Final = "still serving the previous file; the new one"
"""How it is said that a version serves, but not from the file that was asked for; what the new one does follows."""


class Said(NamedTuple):
    """What there is to say of a version: in words, and to programs (see VersionStatus)."""

    reason: str = ""
    outlook: Outlook = Outlook.AS_WANTED
    waiting: str = ""


def megabytes(size_bytes: int) -> str:
    """For people."""
    return f"{size_bytes / MB:,.1f} MB"


def limit_text(limit: budget.Limit) -> str:
    """The budget, and what cannot be had of it."""
    text = f"residency.budget_bytes is {megabytes(limit.bytes)}"
    if not limit.configured:
        text = f"there is memory for models of {megabytes(limit.bytes)}"
    if limit.kept_bytes:
        text += f", of which residency.pins and versions on trial keep {megabytes(limit.kept_bytes)}"
    return text


def wait_text(waiting: WaitReason) -> str:
    """What a version waits for."""
    match waiting:
        case budget.NeverFits(need_bytes=need, limit=limit):
            return f"can never fit into memory: it needs about {megabytes(need)}, and {limit_text(limit)}"
        case budget.WaitsBesidePins(need_bytes=need, limit=limit):
            return f"waits for memory: it needs about {megabytes(need)}, and {limit_text(limit)}"
        case budget.WaitsForIdle(need_bytes=need):
            return (
                f"waits for memory: it needs about {megabytes(need)}, and what could leave memory is in use"
            )
        case budget.WaitsForOvercommit():
            return "waits for memory: another version is tried above the budget"
        case budget.WaitsForMachine(need_bytes=need, beside_bytes=beside, left_bytes=left, limit=limit):
            return (
                f"waits for memory: it needs about {megabytes(need)} beside the {megabytes(beside)} of the version "
                f"that serves; {limit_text(limit)}, and the machine has {megabytes(left)} left, too little to try it "
                "above the budget"
            )
        case reasons.WaitsForServing():
            return "waits for a version that serves, to be tried beside it"
        case reasons.WaitsForTrialOf(version=version):
            return f"waits for the trial of version {version} to end"
        case reasons.WaitsForWanted():
            return "waits for the trial of the version that is wanted to end"


def waiting_word(waiting: WaitReason | None) -> str:
    """What a version waits for, in a word that programs go by; "" where it waits for nothing."""
    match waiting:
        case None:
            return ""
        case budget.NeverFits():
            return NEVER
        case reasons.WaitsForServing() | reasons.WaitsForTrialOf() | reasons.WaitsForWanted():
            return "trial"
        case _:
            return "memory"


def refusal_text(refusal: Refusal) -> str:
    """Why a version is not served at all."""
    match refusal:
        case reasons.Failed(why=why):
            return why
        case reasons.RolledBack(why=why):
            return f"rolled back: {why}"
        case reasons.Rejected(why=why, again=again):
            return f"is not tried again: {why}; {again}"
        case reasons.OutOfTries(tries=tries, again=again):
            return f"was tried {tries} times and did not prove itself; swap.tries allows no more; {again}"


def setback_text(setback: Refusal) -> str:
    """Why the file that was asked for does not serve, behind STILL_PREVIOUS."""
    match setback:
        case reasons.Failed(why=why):
            return f"failed: {why}"
        case reasons.RolledBack(why=why):
            return f"was rolled back: {why}"
        case _:
            return refusal_text(setback)


def given_by_hand(name: str) -> str:
    """Said of all versions of a model that is served as an operator gave it by hand."""
    return (
        f"loaded by hand with other settings or files, which stay until 'appliance model load {name}' without any "
        "takes them back, or the appliance starts anew"
    )


def next_try(at_ms: int) -> str:
    """When a version that was given up is tried again; ``at_ms`` is by the wall clock, in UTC here: boxes of one fleet
    stand in many zones."""
    return f"next try at {datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%SZ}"


def with_next_try(reason: str, at_ms: int) -> str:
    """Why a version does not serve, and when it is tried again (0: it is not)."""
    return f"{reason}; {next_try(at_ms)}" if at_ms else reason
