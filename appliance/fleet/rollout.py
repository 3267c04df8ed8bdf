"""A version that goes out in waves of groups, one after the other, as long as enough devices of a wave came to serve it
and not too many refused it. Pure: where devices are and what is wished come in, what becomes of the rollout and what is
to be wished go out. Nothing of it is kept but the ``Rollout``, so a controller that starts anew goes on with it.

A device counts for a wave unless it was revoked, is held, has another wish of its own, or refused: how many may refuse
has a bound of its own, over all waves that began, also after their end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from appliance.domain.quantity import counted
from appliance.fleet.arrival import Arrival, Place, Stay

WAVES_MAX: Final = 100
GROUPS_MAX: Final = 1000
"""Of a rollout."""
STAY_S: Final = 300
"""More than boxes watch a version for, unless somebody has them do so for long."""
STAY_S_MOST: Final = 86_400
FAILURES_MAX: Final = 20
"""Devices that are named."""
REASON_CHARACTERS: Final = 300
NAMED_MAX: Final = 8
"""Groups in a text."""


class State(StrEnum):
    """What a rollout is at. ``BACK``: its groups have the wishes again that they had before. ``STOPPED``: over, and
    what it wished stays."""

    RUNNING = "running"
    HALTED = "halted"
    DONE = "done"
    BACK = "taken back"
    STOPPED = "stopped"


OPEN: Final = frozenset({State.RUNNING, State.HALTED})
"""What may wish for something yet."""


class Wave(Struct, frozen=True, kw_only=True):
    """Groups that are wished the version at once, when that was (0: not yet), when enough were there (0: not yet), and
    where their devices were when they were looked at last: ``there`` are those that said long enough that they serve
    it, ``serving`` those that say so, and have not for long enough, the last of which may be there at ``due_ms``;
    ``apart`` have another wish of their own."""

    groups: tuple[str, ...]
    began_ms: int = 0
    done_ms: int = 0
    there: int = 0
    serving: int = 0
    coming: int = 0
    unheard: int = 0
    held: int = 0
    refused: int = 0
    apart: int = 0
    due_ms: int = 0

    @property
    def counted(self) -> int:
        """Devices of which a share is to be there."""
        return self.there + self.serving + self.coming + self.unheard


class FailedDevice(Struct, frozen=True, kw_only=True):
    """A device that refused the version or went back from it, in its own words."""

    device: str
    phase: str
    reason: str


class Rollout(Struct, frozen=True, kw_only=True):
    """A rollout: which version goes to whom and when, ``by`` whom and ``at_ms`` which time it began; how long devices
    are to say that they serve it, which ``share`` of a wave is to be there in percent, how many devices ``allow``s it
    to refuse; whether it goes ``back`` by itself if more do; whether clients' interfaces may change, and whether it is
    taken where a newer one was wanted. And what it is at since when, why, and who refused: some of them, where they are
    many."""

    number: int
    model: str
    version: int
    waves: tuple[Wave, ...]
    by: str
    at_ms: int
    stay_s: int = STAY_S
    share: int = 100
    allow: int = 0
    back: bool = False
    interface_change: bool = False
    downgrade: bool = False
    state: State = State.RUNNING
    since_ms: int
    reason: str = ""
    failed: tuple[FailedDevice, ...] = ()

    @property
    def what(self) -> str:
        """Which one it is, in words."""
        return f"rollout {self.number} of {self.model}/{self.version}"

    @property
    def begun(self) -> tuple[Wave, ...]:
        """The waves that began."""
        return tuple(each for each in self.waves if each.began_ms)

    @property
    def refused(self) -> int:
        """How many devices refused the version."""
        return sum(each.refused for each in self.waves)

    @property
    def groups(self) -> tuple[str, ...]:
        """Those for which the version was wished."""
        return tuple(group for wave in self.begun for group in wave.groups)


class Wishes(NamedTuple):
    """The version that is wished for a group (None: there is no wish), and who wished so."""

    version: int | None
    by: str = ""


class Look(NamedTuple):
    """Where the devices of a wave are, and since when they serve the version."""

    arrival: Arrival
    stay: Stay


class Step(NamedTuple):
    """What becomes of a rollout, and the groups for which the version is to be wished now. One that is ``BACK`` has its
    groups be wished what they were before."""

    rollout: Rollout
    wish: tuple[str, ...] = ()


def plan_problems(waves: Sequence[Sequence[str]], stay_s: int, share: int) -> Iterator[str]:
    """What is wrong with what a rollout is to be."""
    counts = Counter(group for wave in waves for group in wave)
    if not waves:
        yield "it has no wave: name the groups of each, the first wave first"
    if not all(waves):
        yield "a wave has no group"
    if len(waves) > WAVES_MAX or counts.total() > GROUPS_MAX:
        yield f"it has more than {WAVES_MAX} waves, or more than {GROUPS_MAX:,} groups"
    if twice := sorted(group for group, count in counts.items() if count > 1):
        yield f"groups that come twice: {some_of(twice)}"
    if not 1 <= share <= 100:
        yield f"the share is from 1 to 100 percent, and not {share}"
    if not 1 <= stay_s <= STAY_S_MOST:
        yield f"devices are to stay for 1 to {STAY_S_MOST:,} seconds, and not {stay_s}"


def some_of(groups: Sequence[str]) -> str:
    """Their names, as far as they are few."""
    more = len(groups) - NAMED_MAX
    return ", ".join(groups[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")


def begun(rollout: Rollout, now_ms: int) -> Step:
    """Its first wave begins."""
    return _next(rollout, 0, now_ms)


def other_wish(rollout: Rollout, wished: Mapping[str, Wishes], before: Mapping[str, Wishes]) -> str:
    """Who wished meanwhile for another version in one of its groups, in words; "": nobody. ``before`` is what was
    wished for groups whose turn is yet to come."""
    for wave in rollout.waves:
        for group in wave.groups:
            now = wished.get(group, Wishes(None))
            expected = rollout.version if wave.began_ms else before.get(group, Wishes(None)).version
            if now.version not in (rollout.version, expected):
                if now.version is None:
                    return f"the wish for the group '{group}' was taken back"
                return f"{now.by} wished {rollout.model}={now.version} for the group '{group}'"
    return ""


def step(rollout: Rollout, looks: Sequence[Look], other: str, now_ms: int) -> Step:
    """What becomes of one that runs, whose devices are where the ``looks`` say, one for each wave that began; ``other``
    is what ``other_wish`` says."""
    rollout = seen(rollout, looks)
    if other:
        return Step(halted(rollout, other, now_ms))
    if rollout.refused > rollout.allow:
        halt = halted(rollout, refused_text(rollout), now_ms)
        return Step(replace(halt, state=State.BACK) if rollout.back else halt)
    last = len(rollout.begun) - 1
    if not is_there(rollout, rollout.waves[last]):
        return Step(rollout)
    rollout = _with(rollout, last, replace(rollout.waves[last], done_ms=now_ms))
    if last + 1 < len(rollout.waves):
        return _next(rollout, last + 1, now_ms)
    return Step(replace(rollout, state=State.DONE, since_ms=now_ms, reason=""))


def seen(rollout: Rollout, looks: Sequence[Look]) -> Rollout:
    """The same, as its devices were seen last."""
    waves = [_counted(wave, look) for wave, look in zip(rollout.begun, looks, strict=True)]
    failed = [
        FailedDevice(device=each.device, phase=each.phase, reason=_shortened(each.reason))
        for look in looks
        for each in look.arrival.standings
        if each.place is Place.REFUSED
    ]
    return replace(rollout, waves=(*waves, *rollout.waves[len(waves) :]), failed=tuple(failed[:FAILURES_MAX]))


def is_there(rollout: Rollout, wave: Wave) -> bool:
    """Whether enough devices of the wave, and one at least, serve the version for long enough."""
    return wave.there > 0 and wave.there * 100 >= wave.counted * rollout.share


def refused_text(rollout: Rollout) -> str:
    """That too many devices refused."""
    return f"{counted(rollout.refused, 'device')} refused it or went back, and {rollout.allow:,} may"


def halted(rollout: Rollout, reason: str, now_ms: int) -> Rollout:
    """Nothing further is wished."""
    return replace(rollout, state=State.HALTED, since_ms=now_ms, reason=reason)


def _next(rollout: Rollout, number: int, now_ms: int) -> Step:
    wave = replace(rollout.waves[number], began_ms=now_ms)
    return Step(_with(rollout, number, wave), wave.groups)


def _with(rollout: Rollout, number: int, wave: Wave) -> Rollout:
    return replace(rollout, waves=(*rollout.waves[:number], wave, *rollout.waves[number + 1 :]))


def _counted(wave: Wave, look: Look) -> Wave:
    arrival = look.arrival
    serving = [device for device, _ in look.stay.outstanding(arrival)]
    last_ms = max((look.stay.since_ms[device] for device in serving), default=0)
    return replace(
        wave,
        there=arrival.count(Place.SERVES) - len(serving),
        serving=len(serving),
        due_ms=last_ms + int(look.stay.stay_s * 1000) if serving else 0,
        coming=arrival.count(Place.COMING),
        unheard=arrival.count(Place.UNHEARD),
        held=arrival.count(Place.HELD),
        refused=arrival.count(Place.REFUSED),
        apart=len(arrival.apart),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= REASON_CHARACTERS else f"{text[:REASON_CHARACTERS]} ..."
