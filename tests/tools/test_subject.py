"""What a path means: a file, a version, a model; read as the server reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.domain.errors import ArtefactError, ModelInvalid
from appliance.tools.subject import find_subject
from tests.repository.onnx_files import external_tensor, plain_model
from tests.tools.models import mlp_home, wide_model, write


def test_a_file_alone(tmp_path: Path) -> None:
    found = find_subject(write(tmp_path / "net.onnx", wide_model()))
    assert (found.version.key, found.home, found.folder) == ("net/1", "", str(tmp_path))
    assert [spec.name for spec in found.version.inputs] == ["x"]
    assert found.version.max_batch_size > 1
    assert found.golden_folder == str(tmp_path / "golden")


def test_a_file_of_a_version_is_that_version(tmp_path: Path) -> None:
    home = mlp_home(tmp_path)
    for path in (home, home / "1", home / "1" / "model.onnx"):
        found = find_subject(path)
        assert (found.version.key, found.home) == ("mlp/1", str(home))
        assert found.folder == str(home / "1")


def test_of_a_model_the_highest_version_whatever_its_policy_asks_for(tmp_path: Path) -> None:
    for number in (1, 3, 10):
        write(tmp_path / "m" / str(number) / "model.onnx", plain_model())
    (tmp_path / "m" / "config.pbtxt").write_text("version_policy { specific { versions: 1 } }")
    assert find_subject(tmp_path / "m").version.version == 10
    assert find_subject(tmp_path / "m" / "3").version.version == 3


def test_what_cannot_be_served_is_not_tried(tmp_path: Path) -> None:
    model = plain_model()
    model.graph.initializer.append(external_tensor("w", "../secret.bin"))
    alone = write(tmp_path / "net.onnx", model)
    versioned = write(tmp_path / "m" / "1" / "model.onnx", model)
    for path in (alone, versioned):
        with pytest.raises(ModelInvalid, match="not a path inside"):
            find_subject(path)


def test_a_golden_set_that_does_not_fit_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", plain_model())
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "set.json").write_text("{}")
    with pytest.raises(ModelInvalid, match=r"golden/set\.json"):
        find_subject(path)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_nothing_to_try(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtefactError, match=name):
        find_subject(tmp_path / name)
