"""Models in the wrong place, and files of other tools: each is told with what to do, none is served."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.sources.directory import DirectorySource
from tests.repository.onnx_files import plain_model, write_version
from tests.repository.scanning import scan

CONFIG = RepositoryConfig()


def _told(root: Path) -> dict[str, str]:
    found = scan(root, CONFIG)
    assert not found.servable
    return {broken.name: broken.reason for broken in found.broken}


def _file(root: Path, *parts: str) -> None:
    path = root.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(plain_model().SerializeToString())


def test_a_file_in_the_directory_of_models(tmp_path: Path) -> None:
    _file(tmp_path, "net.onnx")
    assert _told(tmp_path) == {
        "net.onnx": "lies in the directory of models itself; move it to net/1/model.onnx there"
    }


def test_a_file_without_a_version(tmp_path: Path) -> None:
    _file(tmp_path, "net", "model.onnx")
    assert _told(tmp_path) == {"net": "holds model.onnx itself; move it to net/1/model.onnx"}


@pytest.mark.parametrize("directory", ["v3", "V3", "version_3", "v0003"])
def test_a_version_that_is_no_number(tmp_path: Path, directory: str) -> None:
    _file(tmp_path, "net", directory, "model.onnx")
    (told,) = _told(tmp_path).values()
    assert told == f"has '{directory}' where a version directory is a number alone; rename it to net/3"


def test_a_directory_one_level_too_deep(tmp_path: Path) -> None:
    _file(tmp_path, "net", "1", "model.onnx")
    _file(tmp_path, "net", "2", "model.onnx")
    told = _told(tmp_path / "net")
    assert list(told) == ["1", "2"]
    assert set(told.values()) == {
        "is a version of the model 'net'; give the directory that holds 'net' as --models"
    }


def test_a_directory_two_levels_too_deep(tmp_path: Path) -> None:
    _file(tmp_path, "net", "1", "model.onnx")
    (told,) = _told(tmp_path / "net" / "1").values()
    assert told.endswith("give the directory that holds 'net' as --models")


def test_a_directory_one_level_too_shallow(tmp_path: Path) -> None:
    for name in "abcd":
        _file(tmp_path, "shop", name, "1", "model.onnx")
    assert _told(tmp_path) == {
        "shop": "holds models (a, b, c, ...) and is none; move them up, or give 'shop' below it as --models"
    }


def test_directories_without_models_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "pictures" / "v1").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("text")
    assert not _told(tmp_path)


def test_one_that_is_put_right_is_served(tmp_path: Path) -> None:
    _file(tmp_path, "net.onnx")
    source = DirectorySource(tmp_path, CONFIG)
    assert [each.name for each in source.read().broken] == ["net.onnx"]
    (tmp_path / "net.onnx").unlink()
    write_version(tmp_path, "net", plain_model(), 1)
    source.look()
    found = source.look().scan
    assert found is not None
    assert not found.broken
    assert [each.model.key for each in found.servable] == ["net/1"]


def _archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("net/data.pkl", b"")
    return buffer.getvalue()


def _safetensors() -> bytes:
    head = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    return struct.pack("<Q", len(head)) + head + bytes(4)


FOREIGN = {
    "archive": (_archive(), "torch.onnx.export"),
    "pickle": (pickle.dumps({"w": 1}), "never opened"),
    "safetensors": (_safetensors(), "optimum-cli"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(60), "--tflite"),
    "keras": (b"\x89HDF\r\n\x1a\n" + bytes(60), "tf2onnx"),
    "engine": (b"ptrt" + bytes(60), "TensorRT"),
    "openvino": (b'<?xml version="1.0"?><net name="m"/>', "OpenVINO"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_of_another_tool_is_told(tmp_path: Path, kind: str) -> None:
    data, advice = FOREIGN[kind]
    version = tmp_path / "net" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(data)
    (told,) = _told(tmp_path).values()
    assert told.startswith("model.onnx: is ")
    assert advice in told
    (version / "model.onnx").rename(version / "net.bin")
    (told,) = _told(tmp_path).values()
    assert told.startswith("model.onnx: is missing; net.bin is ")
    assert advice in told


def test_a_model_of_another_name_is_told(tmp_path: Path) -> None:
    _file(tmp_path, "net", "1", "net.onnx")
    (told,) = _told(tmp_path).values()
    assert told == (
        "model.onnx: is missing; there is net.onnx: rename it, or have config.pbtxt say "
        'default_model_filename: "net.onnx"'
    )


def test_a_tensorflow_model_is_told(tmp_path: Path) -> None:
    version = tmp_path / "net" / "1"
    version.mkdir(parents=True)
    (version / "model.savedmodel").mkdir()
    (told,) = _told(tmp_path).values()
    assert "tf2onnx" in told
