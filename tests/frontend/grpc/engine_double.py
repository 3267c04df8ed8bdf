"""An engine for tests of the front end alone: resolves made-up models, keeps what is submitted until the test ends
it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from appliance.domain.errors import ApplianceError, Cancelled, InvalidRequest, NotReady, UnknownModel
from appliance.domain.inference import Answer, Outcome, OutputTensor, RequestHead, RequestPlan
from appliance.domain.model import ModelVersion, VersionState
from appliance.domain.validation import plan_request
from appliance.engine import port
from appliance.engine.port import BUFFERS, IndexEntry, Tensor
from appliance.telemetry.meter import VersionMeter, VersionStatistics
from appliance.telemetry.snapshot import EngineStatus
from appliance.telemetry.trace import Trace


@dataclass(slots=True)
class Submission:
    """One request the front end gave to the engine."""

    plan: RequestPlan
    tensors: tuple[bytes, ...]
    request_id: str
    deadline_ns: int
    on_done: Callable[[Outcome], None]
    client: str = ""
    trace: Trace | None = None
    attempts: int = 0
    released: int = 0
    cancelled: bool = False

    def answer(self, *data: bytes) -> None:
        """End with outputs of the model's shapes, holding ``data``."""
        model = self.plan.model
        outputs = tuple(
            OutputTensor(spec.name, spec.datatype, (self.plan.rows, *spec.shape), memoryview(raw))
            for spec, raw in zip(model.outputs, data, strict=True)
        )
        self.on_done(Answer(model=model, outputs=outputs, release=self._release))

    def fail(self, error: ApplianceError) -> None:
        """End with an error."""
        self.on_done(error)

    def _release(self) -> None:
        self.released += 1


def bytes_of(tensor: Tensor) -> bytes:
    """What the engine would copy."""
    if isinstance(tensor, BUFFERS):
        return bytes(tensor)
    place = memoryview(bytearray(len(tensor)))
    assert tensor.read_into(place) is None
    return bytes(place)


class EngineDouble:
    """EnginePort whose requests end when the test says so."""

    def __init__(self, *models: ModelVersion) -> None:
        self.models = {(model.name, model.version): model for model in models}
        self.submissions: list[Submission] = []
        self.rejections: list[tuple[str, str]] = []
        self.generation = 1
        self.accepting = True
        self.ready = True
        self.wanted_headers: tuple[str, ...] = ()
        self.headers: list[Mapping[str, str]] = []
        self.resolved = 0
        self.clock_ns = 1_000_000_000
        self.refuse_submit: ApplianceError | None = None
        self.memory: Callable[[int], bool] = lambda nbytes: True
        self._watchers: list[Callable[[], None]] = []

    def now_ns(self) -> int:
        return self.clock_ns

    def in_force(self, name: str, version: str) -> ModelVersion:
        return self.resolve(name, version)

    def resolve(self, name: str, version: str) -> ModelVersion:
        self.resolved += 1
        found = [model for (known, _), model in self.models.items() if known == name]
        if not found:
            raise UnknownModel(f"Request for unknown model: '{name}' is not found")
        if version and not version.isdigit():
            raise InvalidRequest(f"failed to get model version from specified version string '{version}'")
        chosen = [model for model in found if not version or str(model.version) == version]
        if not chosen:
            raise UnknownModel(f"Request for unknown model: '{name}' version {version} is not found")
        return chosen[-1]

    def plan(self, head: RequestHead) -> RequestPlan:
        return plan_request(self.resolve(head.model_name, head.model_version), head)

    def submit(self, submission: port.Submission, tensors: Sequence[Tensor]) -> int:
        if self.refuse_submit is not None:
            raise self.refuse_submit
        copied = tuple(map(bytes_of, tensors))
        self.headers.append(submission.headers)
        given = submission
        self.submissions.append(
            Submission(
                given.plan,
                copied,
                given.request_id,
                given.deadline_ns,
                given.on_done,
                given.client,
                given.trace,
                given.attempts,
            )
        )
        return len(self.submissions) - 1

    def has_memory(self, plan: RequestPlan, tensors: Sequence[Tensor]) -> bool:
        return self.memory(sum(map(len, tensors)))

    def rejected(self, error: ApplianceError, request_id: str, client: str = "") -> None:
        self.rejections.append((str(error), request_id))  # the error would keep the message

    def cancel(self, handle: int) -> None:
        self.submissions[handle].cancelled = True

    def cancel_now(self, handle: int) -> None:
        """What an engine does after ``cancel``: the request ends as cancelled."""
        self.submissions[handle].fail(Cancelled("Request cancelled"))

    def versions(self, name: str) -> tuple[ModelVersion, ...]:
        self.resolve(name, "")
        return tuple(model for (known, _), model in self.models.items() if known == name)

    def epoch(self, model: ModelVersion) -> int:
        return 0

    def is_ready(self, name: str, version: str) -> bool:
        try:
            self.resolve(name, version)
        except (UnknownModel, NotReady, InvalidRequest):
            return False
        return self.accepting

    def index(self, ready_only: bool) -> tuple[IndexEntry, ...]:
        broken = IndexEntry(name="broken", version="1", state=VersionState.UNAVAILABLE, reason="not ONNX")
        ready = tuple(
            IndexEntry(name=name, version=str(version), state=VersionState.READY, reason="")
            for name, version in self.models
        )
        return ready if ready_only else (broken, *ready)

    def statistics(self, name: str, version: str) -> tuple[VersionStatistics, ...]:
        meters = []
        for model in self.versions(name) if name else self.models.values():
            meter = VersionMeter(model.name, model.version)
            meter.batch_finished(3, 10, 200, 30)
            meter.succeeded(3, 5, (10, 200, 30), 250, 1_700_000_000_000)
            meters.append(meter.frozen())
        return tuple(meters)

    def status(self) -> EngineStatus:
        raise AssertionError("the front end does not ask for the status")

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def change(self) -> None:
        """Tell the watchers that readiness changed."""
        for changed in tuple(self._watchers):
            changed()


class LogDouble:
    """A log whose settings can be read and changed."""

    def __init__(self) -> None:
        self.current: dict[str, bool | int | str] = {
            "log_info": True,
            "log_verbose_level": 0,
            "log_format": "json",
        }

    def settings(self) -> dict[str, bool | int | str]:
        return dict(self.current)

    def update(self, changes: dict[str, bool | int | str] | object) -> None:
        assert isinstance(changes, dict)
        unknown = sorted(set(changes) - set(self.current))
        if unknown:
            raise InvalidRequest(f"unknown log setting '{unknown[0]}'")
        self.current.update(changes)
