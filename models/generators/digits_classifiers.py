"""Two digit classifiers: how they are trained, what they answer by the formula, and their ONNX graphs.

Both problems are convex and solved to the end, and the weights are then rounded to multiples of 2**-10. Rounding errors
of another machine's linear algebra are a million times smaller than that, so training again gives the same file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from models.generators.digits_data import CLASSES, GREY_MAX, SIDE, DigitSet, Labels, Pictures
from models.generators.graph import Constant, Node, constant, model_bytes, node, tensor_port

GRID: Final = 2.0**10
PENALTY_INVERSE: Final = 1.0
FILTERS: Final = 64
FILTER_SIDE: Final = 5
FILTER_SEED: Final = 1
FILTER_BIAS_SCALE: Final = 0.3
RIDGE: Final = 1.0
POOL: Final = 2
SHARPNESS_CHOICES: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
FOLDS: Final = 5

Floats = NDArray[np.float64]


class Classifier(Protocol):
    """A trained digit classifier."""

    def probabilities(self, pictures: Pictures) -> Floats:
        """Probability of each digit, FP64 [n, 10], for grey pictures [n, 8, 8]: the formula, without a runtime."""
        ...

    def model(self) -> bytes:
        """The ONNX file: image FP32 [batch, 8, 8] with values 0 to 255, probabilities FP32 [batch, 10]."""
        ...


def accuracy(classifier: Classifier, digits: DigitSet) -> float:
    """Share of pictures whose most probable digit is the right one."""
    guesses = classifier.probabilities(digits.pictures).argmax(axis=1)
    return float((guesses == digits.labels).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelClassifier:
    """Softmax of a linear function of the 64 pixels: `weight` [64, 10], `bias` [10]."""

    weight: Floats
    bias: Floats

    def probabilities(self, pictures: Pictures) -> Floats:
        """See `Classifier`."""
        return _softmax(_pixels(pictures).reshape(len(pictures), -1) @ self.weight + self.bias)

    def model(self) -> bytes:
        """See `Classifier`."""
        nodes = [node("Flatten", ["grey"], ["features"], axis=1)]
        return _classifier_model("digits_pixels", nodes, [], weight=self.weight, bias=self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionClassifier:
    """Softmax of a linear function of pooled filter responses.

    `filters` [64, 5, 5] and `filter_bias` [64] are drawn, not trained; `weight` [1024, 10] and `bias` [10] are trained.
    """

    filters: Floats
    filter_bias: Floats
    weight: Floats
    bias: Floats

    def probabilities(self, pictures: Pictures) -> Floats:
        """See `Classifier`."""
        responses = filter_responses(pictures, self.filters, self.filter_bias)
        return _softmax(responses @ self.weight + self.bias)

    def model(self) -> bytes:
        """See `Classifier`."""
        border = FILTER_SIDE // 2
        nodes = [
            node("Reshape", ["grey", "picture_shape"], ["channel"]),
            node("Conv", ["channel", "filters", "filter_bias"], ["responses"], pads=[border] * 4),
            node("Relu", ["responses"], ["active"]),
            node("AveragePool", ["active"], ["pooled"], kernel_shape=[POOL] * 2, strides=[POOL] * 2),
            node("Flatten", ["pooled"], ["features"], axis=1),
        ]
        constants = [
            constant("picture_shape", np.array([-1, 1, SIDE, SIDE], np.int64)),
            constant("filters", self.filters[:, np.newaxis].astype(np.float32)),
            constant("filter_bias", self.filter_bias.astype(np.float32)),
        ]
        return _classifier_model("digits_convolution", nodes, constants, weight=self.weight, bias=self.bias)


def train_pixels(digits: DigitSet) -> PixelClassifier:
    """Multinomial logistic regression by Newton's method, which ends at the optimum to the last digits."""
    solver = LogisticRegression(solver="newton-cholesky", C=PENALTY_INVERSE, tol=1e-10)
    solver.fit(_pixels(digits.pictures).reshape(len(digits.labels), -1), digits.labels)
    return PixelClassifier(weight=_rounded(solver.coef_.T), bias=_rounded(solver.intercept_))


def train_convolution(digits: DigitSet) -> ConvolutionClassifier:
    """Ridge regression on random convolution features, then a softmax as sharp as held-out folds say."""
    filters, filter_bias = _draw_filters()
    responses = filter_responses(digits.pictures, filters, filter_bias)
    sharpness = _choose_sharpness(responses, digits.labels)
    weight, bias = _ridge(responses, digits.labels)
    return ConvolutionClassifier(
        filters=filters,
        filter_bias=filter_bias,
        weight=_rounded(weight * sharpness),
        bias=_rounded(bias * sharpness),
    )


def filter_responses(pictures: Pictures, filters: Floats, filter_bias: Floats) -> Floats:
    """Rectified, 2x2-averaged responses [n, 64 * 4 * 4], filter-major, of zero-bordered pictures [n, 8, 8]."""
    border = FILTER_SIDE // 2
    padded = np.pad(_pixels(pictures), ((0, 0), (border, border), (border, border)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (FILTER_SIDE, FILTER_SIDE), axis=(1, 2))
    patches = windows.reshape(len(pictures), SIDE * SIDE, -1)
    active = np.maximum(patches @ filters.reshape(len(filters), -1).T + filter_bias, 0.0)
    half = SIDE // POOL
    pooled = active.reshape(len(pictures), half, POOL, half, POOL, len(filters)).mean(axis=(2, 4))
    return np.asarray(pooled.transpose(0, 3, 1, 2).reshape(len(pictures), -1))


def _classifier_model(
    name: str, nodes: list[Node], constants: list[Constant], *, weight: Floats, bias: Floats
) -> bytes:
    """The frame of both graphs: grey = image / 255 before `nodes`, softmax of a linear map of `features` after."""
    scale = constant("grey_scale", np.float32(1 / GREY_MAX).reshape(1))
    head = [constant("weight", weight.astype(np.float32)), constant("bias", bias.astype(np.float32))]
    return model_bytes(
        name,
        [
            node("Mul", ["image", "grey_scale"], ["grey"]),
            *nodes,
            node("Gemm", ["features", "weight", "bias"], ["scores"]),
            node("Softmax", ["scores"], ["probabilities"], axis=1),
        ],
        inputs=[tensor_port("image", "FP32", ["batch", SIDE, SIDE])],
        outputs=[tensor_port("probabilities", "FP32", ["batch", CLASSES])],
        constants=[scale, *constants, *head],
    )


def _pixels(pictures: Pictures) -> Floats:
    return pictures.astype(np.float64) / GREY_MAX


def _rounded(weights: Floats) -> Floats:
    return np.rint(weights * GRID) / GRID


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _draw_filters() -> tuple[Floats, Floats]:
    generator = np.random.default_rng(FILTER_SEED)
    filters = generator.standard_normal((FILTERS, FILTER_SIDE, FILTER_SIDE))
    filters -= filters.mean(axis=(1, 2), keepdims=True)
    return _rounded(filters), _rounded(generator.standard_normal(FILTERS) * FILTER_BIAS_SCALE)


def _ridge(responses: Floats, labels: Labels) -> tuple[Floats, Floats]:
    """Least squares to +1 for the right digit and -1 for the others, with a penalty on the weights only."""
    targets = np.eye(CLASSES)[labels] * 2 - 1
    centre, middle = responses.mean(axis=0), targets.mean(axis=0)
    shifted = responses - centre
    normal = shifted.T @ shifted + RIDGE * np.eye(shifted.shape[1])
    weight = np.linalg.solve(normal, shifted.T @ (targets - middle))
    return weight, middle - centre @ weight


def _choose_sharpness(responses: Floats, labels: Labels) -> float:
    """The factor on the scores whose softmax makes the held-out folds of the training part most likely."""
    scores = np.empty((len(labels), CLASSES))
    for fitted, held_out in StratifiedKFold(FOLDS, shuffle=True, random_state=FILTER_SEED).split(
        responses, labels
    ):
        weight, bias = _ridge(responses[fitted], labels[fitted])
        scores[held_out] = responses[held_out] @ weight + bias
    rows = np.arange(len(labels))

    def surprise(sharpness: float) -> float:
        return float(-np.log(_softmax(scores * sharpness)[rows, labels]).mean())

    return min(SHARPNESS_CHOICES, key=surprise)
