"""What is known of the agent's box without being the agent: read from its files, under no lock."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from appliance.durable import RealFolder, is_held
from appliance.fleet.documents import DesiredState
from appliance.fleet.settings import effective
from appliance.store.layout import FLEET
from appliance.sync import progress as notes
from appliance.sync import situation, trust_file
from appliance.sync.box import Clock, Settings, calendar_ms, link_state, observed_of
from appliance.sync.budget import MODELS, Budget, LinkTerms
from appliance.sync.carried import spool_of
from appliance.sync.freshness import Contact
from appliance.sync.identity import LOCK, NotEnrolled, read_identity
from appliance.sync.observed import Observer
from appliance.sync.outboxes import waiting_bytes
from appliance.sync.plan import Observed
from appliance.sync.progress import Progress
from appliance.sync.spending import passes_in, spent_in, waits_of
from appliance.transfer.spool import bytes_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the box stands; ``agent_pid``: of the agent that runs, 0 where none does; ``left_bytes``: of the billing
    month's, -1 where it has no bound; ``outbox_bytes`` wait to be sent. ``contact``: the last one;
    ``trouble``: why the controller was not heard since."""

    device: str
    url: str
    desired: DesiredState | None
    trusted_generation: int
    observed: Observed
    progress: Progress
    contact: Contact
    trouble: str
    damage: str
    link: str
    agent_pid: int
    left_bytes: int
    outbox_bytes: int


def read_box(settings: Settings, clock: Clock) -> Reading:
    """The box as it is now. Raises NotEnrolled, NoRoot, StoreUnavailable, CatalogInvalid, CatalogLost and OSError."""
    identity = read_identity(settings.state)
    if identity is None:
        raise NotEnrolled(f"'{settings.state}' belongs to no fleet; 'appliance sync enrol TOKEN' enrols it")
    with closing(RealFolder(settings.state / FLEET)) as folder:
        loaded = trust_file.load(folder)
        progress = notes.read(folder)
        budget = Budget(spent_in(folder))
    fleet = effective(settings.fleet, settings.said, progress.settings)
    left = situation.read(settings.state)
    desired = loaded.trusted.desired
    sight = Observer(settings.state).look()
    wall_ms = calendar_ms(clock, progress)
    link = LinkTerms(state=link_state(settings.state), passes=passes_in(fleet.contact_plan))
    waits = waits_of(budget.blocked(MODELS, fleet, link, wall_ms))
    spooled = bytes_in(spool_of(settings.state))
    observed = observed_of(settings, clock, progress, desired, sight, spooled, waits)
    return Reading(
        device=identity.device,
        url=identity.url,
        desired=desired,
        trusted_generation=loaded.trusted.counters.targets,
        observed=replace(observed, stuck=left.waiting()),
        progress=progress,
        contact=_later(progress.contact, left.contact),
        trouble=left.trouble,
        damage=loaded.damage,
        link=link.state,
        agent_pid=_holder(settings),
        left_bytes=budget.left_bytes(fleet, wall_ms),
        outbox_bytes=waiting_bytes(settings.state),
    )


def _later(kept: Contact, told: Contact) -> Contact:
    """What the agent told last, unless that is of another boot or another fleet than what it kept."""
    return told if told.boot == kept.boot and told.at_ms > kept.at_ms else kept


def _holder(settings: Settings) -> int:
    place = settings.state / FLEET / LOCK
    if not is_held(place):
        return 0
    try:
        return int(place.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
