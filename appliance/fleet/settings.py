"""The settings that a controller may change on a box: a closed list, with the bounds of the local configuration.

All of a document's settings are taken, or none: one that is wrong refuses them all, and the box goes on with those that
it has. What the box's own configuration file says in its ``[fleet]`` section stands: an operator who writes a setting
there keeps it from afar.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from appliance.config.fleet import TRAFFIC, FleetConfig
from appliance.domain.binding import Check, bind
from appliance.domain.errors import ConfigInvalid
from appliance.fleet.documents import Setting
from appliance.fleet.windows import window_problems

SECTION: Final = "fleet."
KEYS: Final = (
    "activation_windows",
    "metered",
    "month_bytes",
    "month_day",
    "poll_s",
    "priorities",
    "rate_bytes_per_s",
    "windows",
)
NAMES: Final = tuple(f"{SECTION}{key}" for key in KEYS)


def _classes(values: tuple[str, ...]) -> Iterator[str]:
    if wrong := [each for each in values if each not in TRAFFIC]:
        yield f"has {len(wrong)} entries that are not one of {', '.join(TRAFFIC)}"


CHECKS: Final[Mapping[str, Check]] = {
    "windows": window_problems,
    "activation_windows": window_problems,
    "metered": _classes,
    "priorities": _classes,
}


def setting_problems(settings: Mapping[str, Setting]) -> tuple[str, ...]:
    """What keeps these from being taken, all of it."""
    unknown = sorted(set(settings) - set(NAMES))
    problems = [f"{name[:64]!a} is no setting from afar; those are {', '.join(NAMES)}" for name in unknown]
    try:
        bind(FleetConfig, _table(settings, NAMES), "settings", checks=CHECKS)
    except ConfigInvalid as error:
        problems += [f"{SECTION}{each.key}: {each.text}" for each in error.problems]
    return tuple(problems)


def local_problems(local: FleetConfig) -> Iterator[str]:
    """What is wrong with what the box's own file says."""
    for key, check in CHECKS.items():
        yield from (f"{SECTION}{key}: {text}" for text in check(getattr(local, key)))


def effective(local: FleetConfig, said: Collection[str], settings: Mapping[str, Setting]) -> FleetConfig:
    """The section with the right ``settings`` in it, but for the keys that the box's own file has ``said``."""
    allowed = [name for name in NAMES if name.removeprefix(SECTION) not in said]
    bound = bind(FleetConfig, _table(settings, allowed), "settings")
    taken = {name.removeprefix(SECTION) for name in allowed if name in settings}
    return replace(local, **{key: getattr(bound, key) for key in taken})


def shown(local: FleetConfig, said: Collection[str], settings: Mapping[str, Setting]) -> dict[str, str]:
    """How each setting from afar stands, for a report: its value, and where it is the box's own."""
    now = effective(local, said, settings)
    assert set(KEYS) <= {each.name for each in fields(FleetConfig)}
    return {
        f"{SECTION}{key}": f"{_text(getattr(now, key))}{' (set on the box)' if key in said else ''}"
        for key in KEYS
    }


def _table(settings: Mapping[str, Setting], names: Collection[str]) -> dict[str, object]:
    return {
        name.removeprefix(SECTION): list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if name in names
    }


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
