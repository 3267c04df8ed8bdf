"""How many settings there are, and what becomes of a file that has one that was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest

from appliance.config import loading
from appliance.config.former import FORMER
from appliance.config.tree import ApplianceConfig
from appliance.domain.errors import ConfigInvalid
from tests.config.texts import parse

SETTINGS_MAX = 136
"""One more than it was for what a kWh costs, which nothing on a box can tell."""


def keys(section: type, path: str = "") -> Iterator[str]:
    """Every key that a file may have, those of named sub-sections included."""
    hints = get_type_hints(section)
    for each in fields(section):
        hint = hints[each.name]
        named = [one for one in get_args(hint) if is_dataclass(one)] if get_origin(hint) is Mapping else []
        inner = hint if is_dataclass(hint) else named[0] if named else None
        if inner is None:
            yield f"{path}{each.name}"
        else:
            assert isinstance(inner, type)
            yield from keys(inner, f"{path}{each.name}." if not named else f"{path}{each.name}.NAME.")


KEYS = tuple(keys(ApplianceConfig))


def test_there_are_no_more_settings_than_an_operator_can_know() -> None:
    assert len(set(KEYS)) == len(KEYS)
    assert len(KEYS) <= SETTINGS_MAX
    assert "quotas.clients.NAME.burst" in KEYS


def silent(section: type) -> Iterator[str]:
    """Fields that say nothing."""
    hints = get_type_hints(section)
    for each in fields(section):
        if "help" not in each.metadata:
            yield f"{section.__name__}.{each.name}"
        hint = hints[each.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from silent(hint)


def test_every_setting_says_what_it_is_for() -> None:
    assert not list(silent(ApplianceConfig))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[swap]\nwatch_s = 1e300", "at most 1000000000 s"),
        ("[store]\nscrub_interval_h = 1e9", "at most 1000000 h"),
        ("[restart]\nrestart_delay_ms = 9223372036854775807", "at most 1000000000000 ms"),
        ("[store]\nquota_bytes = 9223372036854775808", "at most 9223372036854775807 bytes"),
        ("[http]\nkeepalive_s = inf", "must be a finite number"),
        ("[swap]\ntries = " + "9" * 5000, "is not TOML"),
        ("models = " + "[" * 5000, "is not TOML"),
    ],
)
def test_no_number_is_beyond_what_can_be_counted(tmp_path: Path, text: str, says: str) -> None:
    (path := tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigInvalid, match=says):
        loading.load(path)


@pytest.mark.parametrize("key", FORMER)
def test_a_setting_that_was_is_an_error_that_says_what_became_of_it(key: str) -> None:
    section, _, name = key.rpartition(".")
    with pytest.raises(ConfigInvalid) as caught:
        parse(f"[{section}]\n{name} = 1\n")
    (problem,) = caught.value.problems
    assert (problem.key, problem.text) == (key, FORMER[key])
    assert key not in KEYS


def test_what_replaces_a_setting_exists() -> None:
    named = [text.split("'")[1] for text in FORMER.values() if text.startswith("is called")]
    assert named
    assert set(named) <= set(KEYS)
