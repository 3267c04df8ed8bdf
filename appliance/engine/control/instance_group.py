"""A worker process and a group of them, as they are kept. Owner: the rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from appliance.core.rollout.attempt import Attempt
from appliance.domain.device import DeviceName
from appliance.domain.load_wish import LoadWish
from appliance.engine.versions.served import Served

NAMED_MAX: Final = 8
"""Versions in one line of the log."""


class Ids(Protocol):
    """What gives out ids."""

    def take_id(self) -> int:
        """An id never used before."""


class Here(NamedTuple):
    """Looks at the versions that are here, ``served`` by id, and at the ``attempts`` of those on their way."""

    served: Mapping[int, Served]
    attempts: Mapping[int, Attempt]


class Held(NamedTuple):
    """What a process had that is gone: whether a batch was ``running``, which is not tried again if that is ``final``,
    how many requests under a lease, and the version ``asked`` that it ran, or was to run next (None: it had none)."""

    running: bool
    leased: int
    final: bool
    asked: Served | None


@dataclass(slots=True, kw_only=True)
class Worker:
    """A process of a group. ``number`` picks its processors; ``loaded`` are the model ids it holds, ``loading``
    those that it was asked to load and has not answered, and how; ``had`` are all that it ever held; ``whole``: it has
    answered all that it began with; ``kept_from`` is what its jail keeps it from; ``capturing`` are those whose
    runs it may capture."""

    id: int
    group: int
    number: int
    started_ns: int
    pid: int = 0
    kept_from: tuple[str, ...] = ()
    open: bool = False
    stopping: bool = False
    loaded: set[int] = field(default_factory=set)
    loading: dict[int, LoadWish] = field(default_factory=dict)
    had: set[int] = field(default_factory=set)
    capturing: set[int] = field(default_factory=set)
    whole: bool = False

    def answered(self, model: int) -> None:
        """It has loaded a model, or will not."""
        self.loading.pop(model, None)
        self.whole = self.whole or not self.loading

    def did_only(self, model: int) -> bool:
        """Whether it has held no other model, and loads none in its other line: of those in one, the first alone is
        under way."""
        background = {wish.background for wish in self.loading.values()}
        return self.had <= {model} and len(background) <= 1

    @property
    def state(self) -> str:
        """What it is doing, for people, in one word."""
        if self.stopping:
            return "stopping"
        if not self.pid:
            return "starting"
        return "serving" if self.open else "loading"


@dataclass(slots=True, kw_only=True)
class InstanceGroup:
    """Processes that hold the same models. ``due_ns`` holds when each missing process is to be started; ``load_ns`` is
    the longest its models took to load, for predicting when a replacement serves."""

    id: int
    device: DeviceName
    shared: bool
    processes: int
    models: list[Served] = field(default_factory=list)
    workers: dict[int, Worker] = field(default_factory=dict)
    due_ns: list[int] = field(default_factory=list)
    restarts: int = 0
    load_ns: int = 0
    closing: bool = False

    def names(self, worker: Worker) -> list[str]:
        """The versions that one of its workers holds or loads, for the log; some, where there are many."""
        there = worker.loaded | worker.loading.keys()
        named = [served.key for served in self.models if served.id in there]
        return [*named[:NAMED_MAX], *["..."] * (len(named) > NAMED_MAX)]
