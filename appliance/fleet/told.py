"""What a controller tells of devices, groups and rollouts, as far as who waits goes by it. Values only."""

from __future__ import annotations

from typing import NotRequired, TypedDict, cast

import msgspec

from appliance.fleet.documents import Count
from appliance.fleet.messages import MessageInvalid


class Model(TypedDict):
    """A model on a device."""

    name: str
    wanted: Count
    serving: Count
    phase: str
    reason: str
    missing_bytes: Count
    managed: bool


class Wish(TypedDict):
    """A wish for a model."""

    version: Count


class Device(TypedDict):
    """A device."""

    name: str
    group: str
    state: str
    seen_ms: Count
    generation: Count
    told_generation: Count
    models: list[Model]
    problems: list[str]
    poll_s: NotRequired[Count]
    wishes: dict[str, Wish]


class Group(TypedDict):
    """A group."""

    name: str
    wishes: dict[str, Wish]


class Wave(TypedDict):
    """A wave of a rollout."""

    groups: list[str]
    began_ms: Count
    done_ms: Count
    there: Count
    serving: Count
    coming: Count
    unheard: Count
    held: Count
    refused: Count
    apart: Count
    due_ms: NotRequired[Count]


class FailedDevice(TypedDict):
    """A device that refused it or went back."""

    device: str
    phase: str
    reason: str


class Rollout(TypedDict):
    """A rollout."""

    number: Count
    model: str
    version: Count
    waves: list[Wave]
    stay_s: Count
    share: Count
    allow: Count
    state: str
    since_ms: Count
    reason: str
    failed: list[FailedDevice]


def devices_in(answer: object) -> list[Device]:
    """The devices that a controller's ``answer``, which was JSON, tells of. Raises MessageInvalid."""
    try:
        return msgspec.convert(answer, list[Device])
    except msgspec.ValidationError as error:
        raise MessageInvalid(str(error)) from error


def groups_in(answer: object) -> list[Group]:
    """The groups that it tells of. Raises MessageInvalid."""
    try:
        return msgspec.convert(answer, list[Group])
    except msgspec.ValidationError as error:
        raise MessageInvalid(str(error)) from error


def rollouts_in(answer: object) -> list[Rollout]:
    """The rollouts that it tells of, with all that is said of each. Raises MessageInvalid."""
    try:
        msgspec.convert(answer, list[Rollout])
    except msgspec.ValidationError as error:
        raise MessageInvalid(str(error)) from error
    return cast("list[Rollout]", answer)
