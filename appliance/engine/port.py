"""What front ends may ask of the engine. They depend on this port, never on the engine's inside.

All calls come from the event loop's thread and return at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from appliance.core.rollout.reasons import Outlook
from appliance.domain.device import CPU, DeviceName
from appliance.domain.errors import ApplianceError, InvalidRequest
from appliance.domain.inference import Outcome, RequestHead, RequestPlan
from appliance.domain.model import ModelVersion, VersionState
from appliance.telemetry.meter import VersionStatistics
from appliance.telemetry.snapshot import EngineStatus
from appliance.telemetry.trace import Trace

Buffer = bytes | memoryview


class Outside(Protocol):
    """A tensor that is not in this process's memory: its bytes are copied from where it is, once, into the slot."""

    def __len__(self) -> int:
        """Its bytes."""

    def read_into(self, place: memoryview) -> InvalidRequest | None:
        """Fill ``place``, which has as many bytes; gives why that is not possible."""


Tensor = Buffer | Outside
BUFFERS: Final = (bytes, memoryview)
"""The kinds of Buffer, for isinstance."""
NEVER: Final = "never fits"
"""What a version waits for that memory has no room for as long as nothing else is configured."""
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Submission(NamedTuple):
    """A request as a front end gives it to the engine, but for its tensors. ``deadline_ns`` is the transport's own
    deadline or NO_DEADLINE. ``on_done`` is called exactly once, later, never from inside ``submit``. ``attempts``: how
    often workers died with it already; ``client``: the caller, by its certificate (empty: that is not known);
    ``account``: the caller, as quotas tell clients apart; ``trace``: where to note how it goes; ``headers``: those of
    ``wanted_headers`` that it brought."""

    plan: RequestPlan
    request_id: str
    arrived_ns: int
    deadline_ns: int
    on_done: Callable[[Outcome], None]
    attempts: int = 0
    client: str = ""
    trace: Trace | None = None
    headers: Mapping[str, str] = NO_HEADERS
    account: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A version in the repository index. ``reason`` says, in words, why it is not READY, or what there is to say of it
    while it is; ``outlook`` and ``waiting`` say it to programs, see VersionStatus. ``device`` is where one is to run
    that is no version of the engine's."""

    name: str
    version: str
    state: VersionState
    reason: str
    outlook: Outlook = Outlook.AS_WANTED
    waiting: str = ""
    device: DeviceName = CPU


class EnginePort(Protocol):
    """The engine as the front ends see it."""

    @property
    def generation(self) -> int:
        """Changes whenever ``resolve`` may answer differently: a cached plan is valid only for its generation."""

    @property
    def accepting(self) -> bool:
        """Whether new requests are welcome: False once the stop is announced, although they are still taken until
        draining begins, and end as Stopping from then on."""

    @property
    def ready(self) -> bool:
        """True once every model of the first load is READY or UNAVAILABLE, until the stop is announced."""

    @property
    def wanted_headers(self) -> tuple[str, ...]:
        """Headers (gRPC metadata) that ``submit`` is to be told of, in lower case; none but while versions are tried
        by them."""

    def epoch(self, model: ModelVersion) -> int:
        """A number that becomes another one whenever front ends have to forget their templates of ``model``."""

    def now_ns(self) -> int:
        """The engine's monotonic clock."""

    def resolve(self, name: str, version: str) -> ModelVersion:
        """The version that serves ``name`` now (``version`` "" means the server's choice).

        Raises UnknownModel, NotReady, InvalidRequest (bad version string), with the texts clients match on.
        """

    def in_force(self, name: str, version: str) -> ModelVersion:
        """What ``resolve`` gives as its requests are served: without batching where a worker saw that its rows change
        one another's answers. Raises as ``resolve`` does."""

    def plan(self, head: RequestHead) -> RequestPlan:
        """The plan of a request for the version that serves its model now. Raises as ``resolve`` does, and what
        ``validation.plan_request`` raises."""

    def has_memory(self, plan: RequestPlan, tensors: Sequence[Tensor]) -> bool:
        """Whether there is memory now for the tensors of a request and of its answer, which ``submit`` would take. True
        also where that would refuse it for another reason."""

    def submit(self, submission: Submission, tensors: Sequence[Tensor]) -> int:
        """Take a request; ``tensors`` are raw bytes in the *request's* input order (sizes already checked against
        the plan), copied before this returns. Returns a handle.

        Raises what refuses the request at once, before its tensors are copied; ``on_done`` is then never called:
        NotReady (the plan's version is no longer the one that serves), Stopping, QueueFull, DeadlineUnreachable,
        DeadlineExpired; InvalidRequest for a tensor that lies outside and is not there any more.
        """

    def rejected(self, error: ApplianceError, request_id: str, client: str = "") -> None:
        """A front end refused a request before it got here: counted and logged like any other failure."""

    def cancel(self, handle: int) -> None:
        """Nobody waits any more; ``on_done`` will get Cancelled or, if it is too late, its answer (release it)."""

    def versions(self, name: str) -> tuple[ModelVersion, ...]:
        """Ready versions of ``name``, ascending; raises UnknownModel when there is no such model."""

    def is_ready(self, name: str, version: str) -> bool:
        """Whether ``resolve`` would succeed, until the stop is announced. Never raises."""

    def index(self, ready_only: bool) -> tuple[IndexEntry, ...]:
        """All versions known, by name and version."""

    def statistics(self, name: str, version: str) -> tuple[VersionStatistics, ...]:
        """Statistics per version; "" selects all. Raises UnknownModel."""

    def status(self) -> EngineStatus:
        """A snapshot for people."""

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after each change of readiness of anything; returns what ends the watch."""
