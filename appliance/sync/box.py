"""The agent's own side of its box: what it keeps on the disk, what it looks at, and where it does its steps.

One process at a time holds it, by a lock that names it. Owner: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from appliance.config.fleet import FleetConfig
from appliance.config.repository import RepositoryConfig
from appliance.config.store import StoreConfig, Unsigned
from appliance.domain.errors import StoreBusy
from appliance.domain.moment import on_calendar
from appliance.durable import WriterLock
from appliance.fleet.documents import DesiredState
from appliance.fleet.settings import effective, setting_problems
from appliance.fleet.windows import opens_in_s, window_of
from appliance.package.keys import PublicKey
from appliance.store.layout import FLEET, GIVEN, MACHINE
from appliance.sync import progress as notes
from appliance.sync import trust_file
from appliance.sync.budget import FREE, LINK_STATES
from appliance.sync.freshness import Instant
from appliance.sync.identity import LOCK, NotEnrolled, fleet_folder, read_identity
from appliance.sync.observed import Observer, Sight
from appliance.sync.plan import Observed, Reason, Waiting, Waits
from appliance.sync.progress import Progress
from appliance.sync.step_order import StepOrder, StoreStep, body_of, keys_of
from appliance.sync.transfers import Transfers
from appliance.sync.trust import Trusted, keys_of_packages

LINK: Final = "link"
"""What the operator said of the link: one word, in a file that a command writes."""
NOTE_MAX: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the box's own configuration says: the sections that concern the agent, and which keys of ``[fleet]`` the
    file ``said``."""

    state: Path
    fleet: FleetConfig
    said: Collection[str] = ()
    store: StoreConfig
    repository: RepositoryConfig
    keys: Collection[PublicKey] = ()
    unsigned: Unsigned = Unsigned.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """``wall_ms``: the box's own idea of the time, for people and windows; ``instant``: what it counted since it
    booted; ``monotonic_s``: for pauses."""

    wall_ms: Callable[[], int]
    instant: Callable[[], Instant]
    monotonic_s: Callable[[], float]


class Box:
    """See the module. Raises NotEnrolled, NoRoot, StoreBusy with who holds it, and OSError."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        identity = read_identity(settings.state)
        if identity is None:
            raise NotEnrolled(
                f"'{settings.state}' belongs to no fleet; 'appliance sync enrol TOKEN' enrols it"
            )
        self.identity = identity
        self.settings = settings
        self.clock = clock
        self.folder = fleet_folder(settings.state)
        try:
            self._lock = WriterLock(settings.state / FLEET / LOCK)
        except StoreBusy as busy:
            who = f"process {busy.pid}" if busy.pid else "another process"
            raise StoreBusy(
                f"an agent works on '{settings.state}' already: {who}; stop it, or let it do its work",
                busy.pid,
            ) from None
        loaded = trust_file.load(self.folder)
        self.trusted, self.damage = loaded.trusted, loaded.damage
        self.progress = notes.read(self.folder)
        self._observer = Observer(settings.state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        self.folder.close()

    @property
    def desired(self) -> DesiredState | None:
        """What the box works towards."""
        return self.trusted.desired

    @property
    def fleet(self) -> FleetConfig:
        """The ``[fleet]`` section as it is in force."""
        return effective(self.settings.fleet, self.settings.said, self.progress.settings)

    def observed(self, transfers: Transfers, stuck: Mapping[tuple[str, int], Waiting]) -> Observed:
        """How the box is. Raises StoreUnavailable, CatalogInvalid, CatalogLost and OSError."""
        sight = self._observer.look()
        spooled, waits = transfers.spooled(), transfers.waits()
        found = observed_of(self.settings, self.clock, self.progress, self.desired, sight, spooled, waits)
        return replace(found, stuck=stuck)

    def wall_ms(self) -> int:
        """See ``calendar_ms``."""
        return calendar_ms(self.clock, self.progress)

    def order(self, step: StoreStep) -> StepOrder:
        """The step, and by which packages come into the store."""
        settings = self.settings
        return StepOrder(
            kind=type(step).__name__,
            body=body_of(step),
            state=str(settings.state.absolute()),
            store=settings.store,
            repository=settings.repository,
            keys=keys_of((*settings.keys, *keys_of_packages(self.trusted))),
            unsigned=settings.unsigned,
            now_ms=max(self.clock.wall_ms(), 0),
        )

    def trust(self, trusted: Trusted) -> None:
        """Trust this from now on. Raises OSError."""
        if trusted != self.trusted:
            trust_file.keep(self.folder, trusted)
            self.trusted = trusted

    def note(self, progress: Progress) -> None:
        """Keep this. Raises OSError."""
        if progress != self.progress:
            notes.keep(self.folder, progress)
            self.progress = progress


def observed_of(
    settings: Settings,
    clock: Clock,
    progress: Progress,
    desired: DesiredState | None,
    sight: Sight,
    spooled: Mapping[str, int],
    waits: Waits,
) -> Observed:
    """All that a plan goes by: ``spooled`` bytes of streams are here, and transfers wait (``waits``) or do not."""
    fleet = effective(settings.fleet, settings.said, progress.settings)
    return Observed(
        catalog=sight.catalog,
        serving=sight.serving,
        live=sight.live,
        failed=sight.failed,
        asked={_subject(key): wish for key, wish in progress.asked.items()},
        spooled=spooled,
        settings=progress.settings,
        settings_problems=setting_problems(desired.settings if desired else {}),
        free_bytes=sight.free_bytes - settings.store.free_floor_bytes,
        transfers=waits,
        activation=_activation(fleet.activation_windows, calendar_ms(clock, progress)),
    )


def calendar_ms(clock: Clock, progress: Progress) -> int:
    """The time that windows, months and contact plans go by: of the controller's clock, as far as that was heard."""
    return on_calendar(clock.wall_ms() + progress.clock_ahead_ms)


def _activation(texts: tuple[str, ...], wall_ms: int) -> Waits:
    """Why what came is not made live, if it waits for a window."""
    again_s = opens_in_s([window_of(each) for each in texts], wall_ms)
    if again_s == 0.0:
        return None
    return Waiting(reason=Reason.WINDOW, text="the window for activation is closed", again_s=again_s)


def machine_problems(state: Path) -> tuple[str, ...]:
    """What the image of the machine left to tell: of a start that failed, of a configuration that it refused; as far as
    that can be read."""
    found = []
    for name in (MACHINE, GIVEN):
        with suppress(OSError):
            found.append((state / name).read_text(encoding="utf-8", errors="replace")[:NOTE_MAX])
    return tuple(found)


def link_state(state: Path) -> str:
    """What the operator of the box with the state directory ``state`` said of the link; FREE where nothing."""
    try:
        said = (state / FLEET / LINK).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return FREE
    return said if said in LINK_STATES else FREE


def _subject(key: str) -> tuple[str, int]:
    name, _, number = key.rpartition("/")
    return name, int(number) if number.isdecimal() else 0
