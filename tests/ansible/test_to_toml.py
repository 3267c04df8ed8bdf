"""The filter that writes a configuration: what is read again is what was given."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ansible.collection import ROOT


class AnsibleFilterError(Exception):
    """Stands for Ansible's own, which is in another environment."""


@pytest.fixture(name="to_toml", scope="module")
def _to_toml() -> Callable[[Mapping[str, Any]], str]:
    errors = types.ModuleType("ansible.errors")
    errors.AnsibleFilterError = AnsibleFilterError  # type: ignore[attr-defined]
    sys.modules |= {"ansible": types.ModuleType("ansible"), "ansible.errors": errors}
    spec = importlib.util.spec_from_file_location("to_toml", ROOT / "ansible/plugins/filter/to_toml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("ansible", "ansible.errors"):
        del sys.modules[name]
    found: Callable[[Mapping[str, Any]], str] = module.FilterModule().filters()["to_toml"]
    return found


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.lists(TEXTS),
)
SETTINGS = st.recursive(
    st.dictionaries(TEXTS, VALUES),
    lambda inner: st.dictionaries(TEXTS, st.one_of(VALUES, inner)),
    max_leaves=8,
)


@given(settings=SETTINGS)
def test_what_was_written_is_read_again(
    to_toml: Callable[[Mapping[str, Any]], str], settings: dict[str, Any]
) -> None:
    assert tomllib.loads(to_toml(settings)) == settings


def test_what_toml_has_not_is_told_with_its_place(to_toml: Callable[[Mapping[str, Any]], str]) -> None:
    with pytest.raises(AnsibleFilterError, match=r"c: .*NoneType.*; a\.b: .*NoneType"):
        to_toml({"a": {"b": None}, "c": [None]})
