"""A session of a model whose tensors clients see in other shapes: the same port, with shapes exchanged on both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from appliance.domain.errors import RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.reshape import reshaped
from appliance.domain.tensor import TensorSpec
from appliance.runtimes.runtime import (
    Feed,
    Place,
    Produced,
    Region,
    Runtime,
    RuntimeSettings,
    Session,
    Shape,
)
from appliance.runtimes.wrapped import WrappedSession

Exchange = tuple[Shape, Shape]
"""The shape that clients see, and the model's own."""


def load(runtime: Runtime, version: ModelVersion, settings: RuntimeSettings) -> Session:
    """A session of ``version`` that takes and gives what clients see. Raises LoadFailed."""
    session = runtime.load(version, settings)
    if version.input_reshapes or version.output_reshapes:
        return ReshapedSession(session, version)
    return session


class ReshapedSession(WrappedSession):
    """``session`` as clients see it; its ports stay the model's own."""

    def __init__(self, session: Session, version: ModelVersion) -> None:
        super().__init__(session)
        self._batch = 1 if version.max_batch_size > 0 else 0
        self._names = tuple(spec.name for spec in version.outputs)
        self._inputs = _exchanges(version.inputs, version.input_reshapes)
        self._outputs = _exchanges(version.outputs, version.output_reshapes)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """Run the session. Raises RunFailed, too, where the model gives an output of another shape than it should."""
        produced = self._session.run(source, self._own(feeds), wanted, place)
        shapes = tuple(self._seen(index, shape) for index, shape in zip(wanted, produced.shapes, strict=True))
        return produced._replace(shapes=shapes)

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """What the session has prepared: shapes are no part of it."""
        return self._session.prepared(source, self._own(feeds), wanted, place)

    def memory(self) -> int:
        """The session's."""
        return self._session.memory()

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _own(self, feeds: tuple[Feed | None, ...]) -> tuple[Feed | None, ...]:
        """The inputs in the model's shapes; requests were held to what clients see."""
        own = list(feeds)
        for index, (seen, wanted) in self._inputs.items():
            feed = feeds[index]
            if feed is not None:
                shape = reshaped(feed.shape, seen, wanted, self._batch)
                assert shape is not None, f"input {index} has shape {feed.shape}, which is not {seen}"
                own[index] = feed._replace(shape=shape)
        return tuple(own)

    def _seen(self, index: int, shape: Shape) -> Shape:
        if index not in self._outputs:
            return shape
        seen, own = self._outputs[index]
        found = reshaped(shape, own, seen, self._batch)
        if found is None:
            raise RunFailed(
                f"output '{self._names[index]}' has shape {list(shape)}; its reshape in config.pbtxt says {list(own)}"
                + (" after the batch dimension" if self._batch else "")
            )
        return found


def _exchanges(specs: Sequence[TensorSpec], reshapes: Mapping[str, Shape]) -> dict[int, Exchange]:
    """By the index of the tensor."""
    return {
        index: (spec.shape, reshapes[spec.name]) for index, spec in enumerate(specs) if spec.name in reshapes
    }
