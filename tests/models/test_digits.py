"""The committed digits model answers its golden set, is as accurate as its card says, and can be made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from PIL import Image

from models.generators.digits_data import split_digits
from models.make_digits import HOME, write_digits

VERSIONS = ("1", "2")
MODEL_BYTES_MAX = 200_000
HAND_WRITTEN = {"config.pbtxt", "digits_labels.txt"}


def _golden() -> dict[str, Any]:
    record: dict[str, Any] = json.loads((HOME / "golden" / "golden.json").read_text())
    return record


def _picture(name: str) -> NDArray[np.uint8]:
    return np.asarray(Image.open(HOME / "golden" / name))


def _answer(version: str, pictures: NDArray[Any]) -> NDArray[np.float32]:
    path = str(HOME / version / "model.onnx")
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["probabilities"], {"image": pictures.astype(np.float32)})[0])


def _files(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_golden_picture_gets_its_expected_answer(version: str) -> None:
    golden = _golden()
    tolerance = golden["tolerance"]["probabilities"]
    for case in golden["versions"][version]["cases"]:
        answered = _answer(version, _picture(case["file"])[np.newaxis])
        np.testing.assert_allclose(answered, [case["probabilities"]], **tolerance)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_golden_pictures_get_the_same_answers_in_one_batch(version: str) -> None:
    golden = _golden()
    cases = golden["versions"][version]["cases"]
    answered = _answer(version, np.stack([_picture(case["file"]) for case in cases]))
    expected = [case["probabilities"] for case in cases]
    np.testing.assert_allclose(answered, expected, **golden["tolerance"]["probabilities"])
    np.testing.assert_allclose(answered.sum(axis=1), 1.0, rtol=1e-5)


def test_the_golden_pictures_are_held_out_ones_with_their_true_labels() -> None:
    _, test = split_digits()
    rows = {int(position): row for row, position in enumerate(test.positions)}
    for case in _golden()["versions"]["1"]["cases"]:
        digit, position = Path(case["file"]).stem.split("-")
        row = rows[int(position)]
        assert case["label"] == int(digit) == test.labels[row]
        np.testing.assert_array_equal(_picture(case["file"]), test.pictures[row])


def test_accuracy_in_the_runtime_is_the_published_one_and_version_2_is_better() -> None:
    _, test = split_digits()
    measured = {
        version: float((_answer(version, test.pictures).argmax(axis=1) == test.labels).mean())
        for version in VERSIONS
    }
    published = {version: _golden()["versions"][version]["accuracy"] for version in VERSIONS}
    assert measured == pytest.approx(published, abs=1e-9)
    assert measured["2"] > measured["1"] > 0.9
    card = (HOME / "MODEL_CARD.md").read_text()
    for version in VERSIONS:
        assert f"{published[version]:.4f}" in card


def test_the_versions_disagree_on_the_last_golden_pictures() -> None:
    versions = _golden()["versions"]
    for first, second in zip(versions["1"]["cases"][-2:], versions["2"]["cases"][-2:], strict=True):
        assert int(np.argmax(first["probabilities"])) != first["label"]
        assert int(np.argmax(second["probabilities"])) == second["label"]


def test_making_it_again_gives_the_committed_files(tmp_path: Path) -> None:
    write_digits(tmp_path)
    committed = {name: content for name, content in _files(HOME).items() if name not in HAND_WRITTEN}
    assert _files(tmp_path) == committed


@pytest.mark.parametrize("version", VERSIONS)
def test_the_file_is_small_and_batchable(version: str) -> None:
    path = HOME / version / "model.onnx"
    assert path.stat().st_size < MODEL_BYTES_MAX
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (image,), (probabilities,) = session.get_inputs(), session.get_outputs()
    assert (image.name, image.type, image.shape) == ("image", "tensor(float)", ["batch", 8, 8])
    assert (probabilities.name, probabilities.type) == ("probabilities", "tensor(float)")
    assert probabilities.shape == ["batch", 10]


def test_there_is_a_label_for_each_digit() -> None:
    assert (HOME / "digits_labels.txt").read_text().split() == (
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    )
