"""Train both versions of the digits model and write everything derived from them: `python models/make_digits.py`.

Written into `digits/`: the two model files, the golden set (real held-out pictures, expected answers, tolerances) and
the model card with the measured accuracy. The config and the label file beside them are written by hand. Expected
answers come from the classifiers' formulas in double precision, never from the runtime that they are used to check.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if __package__ in (None, ""):  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from appliance.domain.golden import GoldenCase, GoldenSet, TensorFile, Tolerance, write_golden
from appliance.domain.tensor import Datatype
from models.generators.digits_classifiers import Classifier, accuracy, train_convolution, train_pixels
from models.generators.digits_data import CLASSES, SPLIT_SEED, DigitSet, split_digits

HOME: Final = Path(__file__).resolve().parent / "digits"
TOLERANCE: Final[Mapping[str, float]] = {"atol": 1e-5, "rtol": 1e-3}
EXPECTED_DECIMALS: Final = 7
DISAGREEMENTS: Final = 2

CARD: Final = """\
# digits

Recognises one handwritten digit, 0 to 9, in an 8 by 8 grey picture.

| | |
|---|---|
| Input | `image` FP32 [batch, 8, 8], grey values 0 (paper) to 255 (ink) |
| Output | `probabilities` FP32 [batch, 10], one per digit, summing to 1 |
| Labels | `digits_labels.txt`, for classification answers |
| Data | the 1,797 digits bundled with scikit-learn (UCI Optical Recognition of Handwritten Digits) |
| Split | {train} to train, {test} held out; stratified, seed {seed} |

## Versions and measured accuracy on the held-out pictures

| Version | What it is | Right | Accuracy | File |
|---|---|---|---|---|
| 1 | logistic regression on the 64 pixels | {right_1} of {test} | {accuracy_1:.4f} | {size_1:,} bytes |
| 2 | 64 fixed random 5x5 filters, 2x2 averages, trained linear layer | {right_2} of {test} | {accuracy_2:.4f} \
| {size_2:,} bytes |

Both are convex problems solved to the end, with weights rounded to 2^-10: `python models/make_digits.py` trains
both again in seconds and writes the same bytes. The number and size of the filters and the penalty on the weights were
chosen by five-fold cross-validation inside the training part.

## Golden set

`golden/` holds {golden} held-out pictures, named `DIGIT-POSITION.png` after the right answer and the position in
the data set. The same cases are in the appliance's own form in `1/golden/set.json` and `2/golden/set.json`.
`golden/golden.json` has the expected probabilities of each version and how far an answer may be from them. The last
{disagreements} cases in that file are pictures that version 1 gets wrong and version 2 gets right.

## Limits

The pictures in the test part come from the same data collection as those in the training part, so the figures say
nothing about other pens, cameras or countries. A picture that shows no digit still gets ten probabilities. Do not build
anything on it that matters: it is here to show and to test the appliance.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One trained version and what was measured on the held-out part."""

    version: int
    classifier: Classifier
    model: bytes
    accuracy: float


def train_releases(train: DigitSet, test: DigitSet) -> tuple[Release, Release]:
    """Versions 1 and 2 in order."""
    trained: tuple[Classifier, Classifier] = (train_pixels(train), train_convolution(train))
    first, second = (
        Release(
            version=version,
            classifier=classifier,
            model=classifier.model(),
            accuracy=accuracy(classifier, test),
        )
        for version, classifier in enumerate(trained, start=1)
    )
    return first, second


def golden_rows(releases: tuple[Release, Release], test: DigitSet) -> NDArray[np.intp]:
    """Rows of `test`: the first picture of each digit, then the first ones that only version 2 gets right."""
    first, second = (release.classifier.probabilities(test.pictures).argmax(axis=1) for release in releases)
    improved = np.flatnonzero((first != test.labels) & (second == test.labels))[:DISAGREEMENTS]
    ordinary = [np.flatnonzero((test.labels == digit) & (first == digit))[0] for digit in range(CLASSES)]
    return np.concatenate([np.array(ordinary, np.intp), improved])


def golden_record(releases: Sequence[Release], golden: DigitSet, *, held_out: int) -> dict[str, Any]:
    """What `golden.json` says."""
    return {
        "model": "digits",
        "input": {"name": "image", "datatype": "FP32", "shape": [1, 8, 8]},
        "output": {"name": "probabilities", "datatype": "FP32", "shape": [1, 10]},
        "split": {"seed": SPLIT_SEED, "held_out": held_out},
        "tolerance": {"probabilities": dict(TOLERANCE)},
        "versions": {
            str(release.version): {
                "accuracy": release.accuracy,
                "cases": [
                    {"file": name, "label": int(label), "probabilities": expected.tolist()}
                    for name, label, expected in zip(
                        golden_names(golden),
                        golden.labels,
                        release.classifier.probabilities(golden.pictures).round(EXPECTED_DECIMALS),
                        strict=True,
                    )
                ],
            }
            for release in releases
        },
    }


def write_golden_set(folder: Path, release: Release, golden: DigitSet) -> None:
    """The golden set of one version in the appliance's form."""
    file = TensorFile()
    expected = release.classifier.probabilities(golden.pictures).round(EXPECTED_DECIMALS)
    cases = tuple(
        GoldenCase(
            name=name.removesuffix(".png"),
            inputs=(file.add("image", Datatype.FP32, (1, 8, 8), picture.astype("<f4").tobytes()),),
            outputs=(file.add("probabilities", Datatype.FP32, (1, CLASSES), right.astype("<f4").tobytes()),),
        )
        for name, picture, right in zip(golden_names(golden), golden.pictures, expected, strict=True)
    )
    tolerance = Tolerance(absolute=TOLERANCE["atol"], relative=TOLERANCE["rtol"])
    golden_set = GoldenSet(
        cases=cases, tolerances={"probabilities": tolerance}, note="held-out pictures; answers by formula"
    )
    write_golden(str(folder), golden_set, file.data())


def golden_names(golden: DigitSet) -> list[str]:
    """File name of each golden picture: the right digit and the position in the data set."""
    return [
        f"{label}-{position:04d}.png" for label, position in zip(golden.labels, golden.positions, strict=True)
    ]


def model_card(releases: tuple[Release, Release], *, train: int, test: int, golden: int) -> str:
    """The text of MODEL_CARD.md."""
    first, second = releases
    return CARD.format(
        train=train,
        test=test,
        seed=SPLIT_SEED,
        golden=golden,
        disagreements=DISAGREEMENTS,
        right_1=round(first.accuracy * test),
        accuracy_1=first.accuracy,
        size_1=len(first.model),
        right_2=round(second.accuracy * test),
        accuracy_2=second.accuracy,
        size_2=len(second.model),
    )


def write_digits(home: Path) -> tuple[Release, Release]:
    """Train, measure and write everything under `home`; returns what was written."""
    train, test = split_digits()
    releases = train_releases(train, test)
    golden = test.select(golden_rows(releases, test))
    pictures = home / "golden"
    pictures.mkdir(parents=True, exist_ok=True)
    for name, picture in zip(golden_names(golden), golden.pictures, strict=True):
        Image.fromarray(picture).save(
            pictures / name, compress_level=0
        )  # stored: no compressor version to differ
    record = golden_record(releases, golden, held_out=len(test.labels))
    (pictures / "golden.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for release in releases:
        target = home / str(release.version)
        target.mkdir(exist_ok=True)
        (target / "model.onnx").write_bytes(release.model)
        write_golden_set(target / "golden", release, golden)
    card = model_card(releases, train=len(train.labels), test=len(test.labels), golden=len(golden.labels))
    (home / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    return releases


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make_digits.py", description="Train the digits model again.")
    parser.add_argument(
        "home", nargs="?", type=Path, default=HOME, help=f"where to write (default: {HOME.name}/)"
    )
    home = parser.parse_args(arguments).home
    try:
        releases = write_digits(home)
    except OSError as problem:
        print(f"cannot write the digits model into {home}: {problem}", file=sys.stderr)
        return 1
    for release in releases:
        size = len(release.model)
        print(
            f"version {release.version}: accuracy {release.accuracy:.4f} on held-out pictures, {size:,} bytes"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
