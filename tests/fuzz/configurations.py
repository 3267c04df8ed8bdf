"""The configuration file: a tree that can be shown and read back, or all that is wrong with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from appliance import configuration
from appliance.cli.config import as_plain, as_toml
from appliance.config import loading
from appliance.config.tree import ApplianceConfig
from appliance.domain.errors import ConfigInvalid
from tests.config.texts import parse
from tests.fuzz.boundary import Boundary, Judge, RuleBroken, check_text
from tests.fuzz.mutations import DEEP, DIGITS, as_json, changed, changed_bytes

DEFAULTS = as_plain(ApplianceConfig())
NAMED = {
    **DEFAULTS,
    "quotas": {
        **DEFAULTS["quotas"],
        "clients": {"10.0.0.1": {"requests_per_s": 5.0, "burst": 3}, "unix": {"burst": 2}},
    },
}
SEEDS = [as_toml(ApplianceConfig()).encode(), b'models = "m"\n[quotas.clients."10.0.0.1"]\nburst = 3\n']


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, float) and abs(value) == float("inf"):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, str) and value not in (DEEP, DIGITS):
        return '"' + "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in value) + '"'
    return "''" if value is None else as_json(value).decode()


def _key(key: object) -> str:
    return _value(str(key))


def as_file(tree: Any) -> bytes:
    """A tree of odd values as TOML."""
    if not isinstance(tree, dict):
        return _value(tree).encode()
    lines = [f"{_key(key)} = {_value(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, value in tree.items():
        if isinstance(value, dict):
            lines.append(f"[{_key(key)}]")
            lines += [f"{_key(inner)} = {_value(each)}" for inner, each in value.items() if each is not None]
    return "\n".join(lines).encode(errors="surrogatepass")


CASES = st.one_of(changed([NAMED, DEFAULTS]).map(as_file), changed_bytes(SEEDS))


@contextmanager
def opened() -> Iterator[Judge]:
    """A judge of files; what this machine says of them is asked as well."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "config.toml"

        def judge(case: bytes) -> None:
            path.write_bytes(case)
            try:
                configuration.load(path)
            except ConfigInvalid as error:
                for problem in error.problems:
                    check_text(str(problem))
            try:
                found = loading.load(path)
            except ConfigInvalid:
                return
            shown = as_toml(found)
            if as_plain(parse(shown)) != as_plain(found) and "nan" not in shown.lower():
                raise RuleBroken("is not read as it is shown")

        yield judge


BOUNDARY = Boundary(kept="configurations", cases=CASES, opened=opened, examples=250)
