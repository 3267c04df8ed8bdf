"""What other tools and servers leave behind: told as what it is, by every command that is given it."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.repository.onnx.foreign import foreign_format

COMMANDS = ("pack", "inspect", "verify", "import", "golden", "bench")
SAVED_MODEL = b"\x08\x01\x12\x9c\x01\n" + bytes(200)


def write(path: Path) -> Path:
    """The file that tools write with such a name."""
    match path.suffix:
        case ".pt":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("archive/data.pkl", bytes(600))
        case ".pkl":
            path.write_bytes(pickle.dumps({"weights": [1.0] * 100}))
        case ".safetensors":
            head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
            path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
        case _:
            path.write_bytes(SAVED_MODEL)
    return path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.pt", "torch.onnx.export"),
        ("a.pkl", "torch.onnx.export"),
        ("a.safetensors", "optimum-cli export onnx"),
        ("saved_model.pb", "tf2onnx.convert"),
    ],
)
def test_files_of_other_tools_are_recognised(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    said: str,
) -> None:
    if command == "pack":
        pytest.importorskip("onnx")
    monkeypatch.setenv("COLUMNS", "300")
    where = {"import": ["-o", str(tmp_path / "models")], "golden": ["--random", "2"]}.get(command, [])
    assert main(["model", command, str(write(tmp_path / name)), *where]) == Exit.REFUSED
    told = capsys.readouterr()
    assert said in told.out + told.err


def test_a_model_of_onnx_is_no_other_tools() -> None:
    for head in (b"\x08\x08\x12\x07pytorch", b"\x08\x01\x12\x07pytorch", b"\x08\x01\x12"):
        assert foreign_format(head) == ""
    assert "TensorFlow SavedModel" in foreign_format(SAVED_MODEL[:64])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('platform: "ensemble"', "made of other models"),
        ('platform: "tensorflow_savedmodel"', "tf2onnx.convert"),
        ('platform: "tensorrt_plan"', "give the ONNX model it was made from"),
        ('backend: "pytorch"', "torch.onnx.export"),
        ('backend: "python"', "is Python code, which is never run here"),
    ],
)
@pytest.mark.parametrize("command", ["import", "bench"])
def test_models_of_other_backends_are_told_as_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, config: str, said: str
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    where = ["-o", str(tmp_path / "models")] if command == "import" else []
    assert main(["model", command, str(tmp_path / "m"), *where]) == Exit.REFUSED
    assert said in capsys.readouterr().err
