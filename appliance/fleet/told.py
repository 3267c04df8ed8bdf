"""What a controller tells of devices and groups, as far as who waits for a wish goes by it. Values only."""

from __future__ import annotations

from typing import NotRequired, TypedDict

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
