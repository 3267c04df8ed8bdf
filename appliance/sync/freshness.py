"""How old what the box trusts may be: fresh, stale or frozen. Pure; nothing stops because of it.

The controller signs the timestamp anew each period, so a box that hears from it sees its version rise. *Fresh*: it rose
no longer ago than twice the period. *Stale*: it did not, and there was no contact either, so nothing is known.
*Frozen*: there is contact, and the timestamp stands still all the same: somebody keeps newer ones from the box, or the
controller does not sign any more.

Only the time that the box itself counted plays a part, never a wall clock. Time without power cannot be counted: after
a boot nothing is fresh before the next contact, and ages go on from where they were, as lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import Struct, structs

from appliance.fleet.documents import Count
from appliance.fleet.metadata import TIMESTAMP_PERIOD_S

FRESH: Final = "fresh"
STALE: Final = "stale"
FROZEN: Final = "frozen"
LIMIT_MS: Final = 2 * TIMESTAMP_PERIOD_S * 1000
KEEP_AFTER_MS: Final = 3600 * 1000
"""How much counted time a loss of power may cost: what is counted is kept at least this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """A moment by the box's own count: milliseconds since it booted, sleep included, and which boot that was (the
    kernel's ``boot_id``)."""

    boot: str
    ms: int


class Contact(Struct, frozen=True, kw_only=True):
    """What is kept of contacts, as of ``at_ms`` in the boot ``boot``: how long ago, at least, the timestamp rose last
    and there was contact last (None: never), and whether the latter was in that boot."""

    boot: str = ""
    at_ms: Count = 0
    rose_ms: Count | None = None
    heard_ms: Count | None = None
    heard_here: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """``word`` is "fresh", "stale" or "frozen"; the ages are how long ago, at least, the timestamp rose and there was
    contact (None: never); ``exact``: no time without power lies between the latter and now."""

    word: str
    rose_ms: int | None
    heard_ms: int | None
    exact: bool


def heard(last: Contact, now: Instant, *, rose: bool) -> Contact:
    """What is kept after the controller, or a bundle of it, was heard and all it sent was taken; ``rose``: the
    timestamp got a higher version."""
    then = counted(last, now)
    return structs.replace(then, rose_ms=0 if rose else then.rose_ms, heard_ms=0, heard_here=True)


def counted(last: Contact, now: Instant) -> Contact:
    """The same as of ``now``: what is kept now and then while there is no contact. A counter that stands lower than it
    did is of another boot, whatever its name."""
    same = last.boot == now.boot and now.ms >= last.at_ms
    passed = now.ms - last.at_ms if same else now.ms
    return Contact(
        boot=now.boot,
        at_ms=now.ms,
        rose_ms=None if last.rose_ms is None else last.rose_ms + passed,
        heard_ms=None if last.heard_ms is None else last.heard_ms + passed,
        heard_here=same and last.heard_here,
    )


def is_worth_keeping(kept: Contact, latest: Contact) -> bool:
    """Whether ``latest`` should be on the disk in the place of ``kept``: it is of another boot, the timestamp rose, or
    an hour has passed."""
    since_ms = latest.at_ms - kept.at_ms
    if kept.boot != latest.boot or since_ms >= KEEP_AFTER_MS:
        return True
    return latest.rose_ms is not None and latest.rose_ms < since_ms


def freshness(last: Contact, now: Instant) -> Freshness:
    """How things stand."""
    then = counted(last, now)
    in_contact = then.heard_here and _is_recent(then.heard_ms)
    word = (FRESH if _is_recent(then.rose_ms) else FROZEN) if in_contact else STALE
    return Freshness(word=word, rose_ms=then.rose_ms, heard_ms=then.heard_ms, exact=then.heard_here)


def _is_recent(age_ms: int | None) -> bool:
    return age_ms is not None and age_ms <= LIMIT_MS
