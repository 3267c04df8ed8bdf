"""The handwritten digits bundled with scikit-learn, as grey pictures, in one fixed split.

The data set is the UCI "Optical Recognition of Handwritten Digits" test part: 1,797 pictures of 8 by 8 counts from 0 to
16. Here every count becomes a grey value from 0 to 255, rounded, so that a picture written to a PNG file is exactly the
picture that was trained and measured on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

CLASSES: Final = 10
SIDE: Final = 8
COUNT_MAX: Final = 16
GREY_MAX: Final = 255
SPLIT_SEED: Final = 7
TEST_SHARE: Final = 0.3

Pictures = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DigitSet:
    """Grey pictures [n, 8, 8], their digits [n], and their positions [n] in the bundled data set."""

    pictures: Pictures
    labels: Labels
    positions: Labels

    def select(self, rows: NDArray[np.intp]) -> DigitSet:
        """The same set narrowed to `rows`, in that order."""
        return DigitSet(
            pictures=self.pictures[rows], labels=self.labels[rows], positions=self.positions[rows]
        )


def all_digits() -> DigitSet:
    """The whole data set in its own order."""
    bunch = load_digits()
    pictures = np.rint(bunch.images * (GREY_MAX / COUNT_MAX)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    return DigitSet(pictures=pictures, labels=labels, positions=np.arange(len(labels), dtype=np.int64))


def split_digits() -> tuple[DigitSet, DigitSet]:
    """(training part, held-out test part), 70 to 30, every digit equally present in both."""
    digits = all_digits()
    rows = np.arange(len(digits.labels), dtype=np.intp)
    train, test = train_test_split(
        rows, test_size=TEST_SHARE, random_state=SPLIT_SEED, stratify=digits.labels
    )
    return digits.select(np.sort(train)), digits.select(np.sort(test))
