"""A model that is broken, or put aside by hand, says on which device it was to run."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.core.rollout.catalog import Catalog
from appliance.engine.engine import Engine
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.version_status import with_index
from appliance.reconciler.by_hand import ModelsByHand
from appliance.reconciler.wanted import catalog_of
from appliance.repository.directory import RepositoryScan
from appliance.sources.source import Source
from appliance.sources.watcher import Watcher
from tests.repository.conftest import ReadModel
from tests.repository.scanning import scan

WRONG = 'parameters { key: "gpu_mem_limit" value { string_value: "4G" } }'


def device(catalog: Catalog) -> str:
    table = Routes()
    table.set_problems(catalog.problems)
    table.set_aside(catalog.aside)
    (status,) = with_index((), table.index(False, {}))
    return status.placed


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("instance_group { kind: KIND_GPU }", "cuda"),
        ("instance_group { kind: KIND_GPU gpus: [ 1 ] }", "cuda"),
        ("instance_group { kind: KIND_CPU }", "cpu"),
    ],
)
def test_a_broken_model_says_where_it_was_to_run(read_model: ReadModel, config: str, said: str) -> None:
    found = read_model(f"{config} {WRONG}")
    assert [each.version for each in found.broken] == ["1"]
    assert device(catalog_of(found, {})) == said


def test_one_without_versions_and_one_that_is_no_configuration(read_model: ReadModel, tmp_path: Path) -> None:
    home = tmp_path / "_elsewhere" / "m"
    home.mkdir(parents=True)
    (home / "config.pbtxt").write_text("instance_group { kind: KIND_GPU }")
    found = scan(home.parent, RepositoryConfig())
    assert [each.version for each in found.broken] == [""]
    assert device(catalog_of(found, {})) == "cuda"
    assert device(catalog_of(read_model("{"), {})) == "cpu"


def test_one_that_was_put_aside_by_hand(read_model: ReadModel) -> None:
    hand = ModelsByHand(
        cast(Source, object()), cast(Engine, object()), RepositoryConfig(), cast(Watcher, object())
    )
    for wrong in ("", WRONG):
        found = read_model(f"instance_group {{ kind: KIND_GPU }} {wrong}")
        (name,) = {each.model.name for each in found.servable} | {each.name for each in found.broken}
        hand.put_aside(name)
        assert device(hand.with_reasons(catalog_of(RepositoryScan(), {}), found)) == "cuda"
