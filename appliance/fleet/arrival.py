"""How far a wish has got in a fleet, by what the controller tells of its devices. Pure.

What counts is what a device says that it serves, in a report that is newer than the wish. That is one which came when
the device told that it knows the document with the wish in it: the report of before it stands at the controller until
then, and may name the same version, as where a wish goes back. Where the wish changed no document, it is one that came
or was confirmed since. Silence is never taken for anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from appliance.domain.quantity import bytes_text
from appliance.fleet.places import CONFLICT, FAILURES, HELD, REVOKED
from appliance.fleet.told import Device

IN_CONFLICT: Final = "has seen newer documents than this controller knows"
UNCONFIRMED: Final = "has asked since, and has not said yet that it knows of the wish"
LEFT_ALONE: Final = "the fleet did not bring it there, and leaves it"
SILENT: Final = "reports nothing of it"
NOTHING_LEFT: Final = "says that nothing is left to be done, and serves something else"
NO_MODEL: Final[Mapping[str, Any]] = {
    "wanted": 0, "serving": 0, "phase": "", "reason": "", "missing_bytes": 0, "managed": True,
}  # fmt: skip
POLL_SPREAD: Final = 1.2
"""A box's longest pause between polls, in parts of how often it asks."""


class Place(StrEnum):
    """Where a device is on the way to what is wished. ``HELD``: it stays where it is until a person goes on."""

    REFUSED = "refused"
    HELD = "held"
    COMING = "coming"
    UNHEARD = "unheard"
    SERVES = "serves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wished:
    """The version of a model that is to serve, 0 for none, in a group or on a device."""

    model: str
    version: int
    group: str = ""
    device: str = ""

    @property
    def what(self) -> str:
        """What is to serve, in words."""
        return f"{self.model}/{self.version}" if self.version else f"nothing of {self.model}"

    @property
    def comes_true(self) -> str:
        """What is so where it is there, in words that a place may follow."""
        return f"{self.what} serves" if self.version else f"{self.model} no longer serves"

    @property
    def undo(self) -> str:
        """The command that takes the wish back."""
        where = f"--group {self.group}" if self.group else f"--device {self.device}"
        return f"appliance fleet want {self.model} --withdraw {where}"

    @property
    def scope(self) -> str:
        """For whom it is, in words."""
        return f"the group '{self.group}'" if self.group else f"the device '{self.device}'"


class Mark(NamedTuple):
    """A device as it was when it was looked at first after the wish; ``generation`` is of what was wanted then."""

    seen_ms: int
    told: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a device stands: what it ``serving`` reports (0: nothing), when it was heard last by the controller's clock
    (0: never), by when it is to ask next (0: that is not known, or it has said all), and in its own words what it
    waits for or why it does not go on."""

    device: str
    place: Place
    serving: int
    seen_ms: int
    due_ms: int = 0
    phase: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Where the devices are that a wish concerns, those first that will not get there; ``apart`` are those of the group
    for which another version is wished alone. ``marks`` are for the next look."""

    standings: Sequence[Standing] = ()
    apart: Sequence[str] = ()
    marks: Mapping[str, Mark]

    def count(self, place: Place) -> int:
        """How many devices are there."""
        return sum(each.place is place for each in self.standings)

    def outstanding(self) -> list[Standing]:
        """Those that do not serve what is wished."""
        return [each for each in self.standings if each.place is not Place.SERVES]

    @property
    def is_everywhere(self) -> bool:
        """Whether every device, of at least one, serves what is wished."""
        return bool(self.standings) and not self.outstanding()

    @property
    def is_stopped(self) -> bool:
        """Whether it is known that not all of them will: one refused it, or those that lack it are held."""
        held = self.count(Place.HELD)
        return self.count(Place.REFUSED) > 0 or (held > 0 and held == len(self.outstanding()))


class Stay:
    """Whether a version goes on serving where it came: a box may go back by itself while it watches one. By what
    devices say: one that is silent has not said that it still serves. Owner: who looks."""

    def __init__(self, stay_s: float, since_ms: Mapping[str, int] = MappingProxyType({})) -> None:
        self.stay_s = stay_s
        self.since_ms = since_ms
        """When each device that serves was heard to begin."""

    def look(self, arrival: Arrival) -> None:
        """Take note of how devices stand; what serves no more, or is not looked at, begins anew, and so does one that
        was heard before it began: the controller's clock was set back."""
        serving = [each for each in arrival.standings if each.place is Place.SERVES]
        self.since_ms = {
            each.device: min(self.since_ms.get(each.device, each.seen_ms), each.seen_ms) for each in serving
        }

    def outstanding(self, arrival: Arrival) -> list[tuple[str, float]]:
        """Devices that serve and were not heard so long after they began to, with how long after they were."""
        heard = (
            (each.device, (each.seen_ms - self.since_ms[each.device]) / 1000)
            for each in arrival.standings
            if each.place is Place.SERVES
        )
        return [(device, after_s) for device, after_s in heard if after_s < self.stay_s]


def arrival_of(wished: Wished, devices: Iterable[Device], marks: Mapping[str, Mark] | None = None) -> Arrival:
    """Where the ``devices``, as the controller tells of them, are on their way; ``marks`` are of the look before."""
    concerned = [each for each in devices if _is_in_scope(wished, each)]
    apart = [each["name"] for each in concerned if _has_another_wish(wished, each)]
    concerned = [each for each in concerned if each["name"] not in apart]
    kept = {each["name"]: (marks or {}).get(each["name"]) or _mark(each) for each in concerned}
    found = [_standing(wished, each, kept[each["name"]]) for each in concerned]
    order = list(Place)
    return Arrival(
        standings=sorted(found, key=lambda each: (order.index(each.place), each.device)),
        apart=apart,
        marks=kept,
    )


def together(arrivals: Sequence[Arrival]) -> Arrival:
    """Where the devices of several groups are."""
    return Arrival(
        standings=[each for arrival in arrivals for each in arrival.standings],
        apart=[each for arrival in arrivals for each in arrival.apart],
        marks={name: mark for arrival in arrivals for name, mark in arrival.marks.items()},
    )


def _is_in_scope(wished: Wished, device: Device) -> bool:
    if device["state"] == REVOKED:
        return False
    return bool(device["group"] == wished.group if wished.group else device["name"] == wished.device)


def _has_another_wish(wished: Wished, device: Device) -> bool:
    """Whether what is wished of the model for it alone, which goes before its group's, is another version."""
    own = device["wishes"].get(wished.model) if wished.group else None
    return own is not None and own["version"] != wished.version


def _mark(device: Device) -> Mark:
    return Mark(device["seen_ms"], device["told_generation"], device["generation"])


def _standing(wished: Wished, device: Device, mark: Mark) -> Standing:
    model = next((each for each in device["models"] if each["name"] == wished.model), NO_MODEL)
    now = _mark(device)
    asked = now[:2] != mark[:2]
    place, reason = Place.UNHEARD, ""
    if device["state"] == CONFLICT:
        place, reason = Place.HELD, IN_CONFLICT
    elif asked and now.told < mark.generation:
        place, reason = Place.COMING, UNCONFIRMED
    elif asked:
        place = _place(wished, model)
        reason = "" if place is Place.SERVES else _reason(place, device, model)
    waits_for_it = place is Place.UNHEARD or reason == UNCONFIRMED
    return Standing(
        device=device["name"], place=place, serving=model["serving"], seen_ms=device["seen_ms"],
        due_ms=_due_ms(device) if waits_for_it else 0,
        phase=model["phase"], reason=reason,
    )  # fmt: skip


def _due_ms(device: Mapping[str, Any]) -> int:
    """By when it asks next, unless something keeps it; a controller of an earlier release does not say how often."""
    pause_ms = round(device.get("poll_s", 0) * 1000 * POLL_SPREAD)
    return device["seen_ms"] + pause_ms if device["seen_ms"] and pause_ms else 0


def _place(wished: Wished, model: Mapping[str, Any]) -> Place:
    """By a report that is newer than the wish. One that serves the version and is still to go to another one is not
    there: its box has yet to follow the wish."""
    if model["serving"] == model["wanted"] == wished.version:
        return Place.SERVES
    if model["phase"] in FAILURES:
        return Place.REFUSED
    if model["phase"] == HELD or _is_left_alone(wished.version, model):
        return Place.HELD
    return Place.COMING


def _is_left_alone(version: int, model: Mapping[str, Any]) -> bool:
    """Whether nothing is wished of a model that the box has from elsewhere."""
    return not version and not model["managed"] and model["phase"] == "done"


def _reason(place: Place, device: Device, model: Mapping[str, Any]) -> str:
    """What the device says of it, and what it says is wrong with itself."""
    said = [model["reason"]]
    if place is Place.COMING:
        missing = f", {bytes_text(model['missing_bytes'])} to come" if model["missing_bytes"] else ""
        phase = f"{model['phase']}{missing}" if model["phase"] not in ("", "done") else ""
        said = [phase, model["reason"], *device["problems"]]
    elif place is Place.HELD and model["phase"] != HELD:
        said = [LEFT_ALONE]
    return ": ".join(filter(None, said)) or (SILENT if model is NO_MODEL else NOTHING_LEFT)
