"""What people and their programs send the controller and get from it: one Struct for each, which validates requests and
from which the OpenAPI document is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from appliance.fleet.documents import Count, Number, Setting
from appliance.fleet.rollout import STAY_S

Name = Annotated[
    str, Meta(pattern=r"^[a-z0-9_-][a-z0-9._-]{0,63}$(?!\n)", description="a-z 0-9 . _ -, at most 64")
]
"""``$`` alone has a line break after it pass; what is said instead, readers of the OpenAPI document understand, too."""
NameOrNone = Annotated[str, Meta(pattern=r"^([a-z0-9_-][a-z0-9._-]{0,63})?$(?!\n)")]
Role = Literal["viewer", "operator", "admin"]
Hours = Annotated[int, Meta(ge=1, le=24 * 366)]


class Trial(Struct, frozen=True, forbid_unknown_fields=True):
    """A version to try on real requests beside the one that serves."""

    version: Number
    mode: Literal["canary", "shadow"] = "canary"
    percent: Annotated[int, Meta(ge=0, le=100)] = 0
    header: Annotated[str, Meta(max_length=1024)] = ""


class Wish(Struct, frozen=True, forbid_unknown_fields=True):
    """What shall be of a model: 0 for ``version`` uninstalls it."""

    version: Count
    order: bool = False
    trial: Trial | None = None
    prefetch: Annotated[tuple[Number, ...], Meta(max_length=8)] = ()
    interface_change: bool = False
    downgrade: bool = False


class WantRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A wish for all devices of a group, or for one, which goes before its group's. Without a ``wish`` the one that
    there is, is taken back."""

    model: Name
    group: NameOrNone = ""
    device: NameOrNone = ""
    wish: Wish | None = None


class RolloutRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A version that goes out in waves of groups. ``stay_s`` is for how long devices are to say that they serve it,
    ``share`` how many of a wave in percent, ``allow`` how many devices may refuse it; ``back``: what was wished before
    is wished again if more do; ``interface_change``: it goes live although clients cannot talk to it as before;
    ``downgrade``: devices take it although a newer one was wanted there."""

    model: Name
    version: Number
    waves: tuple[tuple[Name, ...], ...]
    stay_s: Count = STAY_S
    share: Count = 100
    allow: Count = 0
    back: bool = False
    interface_change: bool = False
    downgrade: bool = False


class ResumeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a rollout goes by from now on, where that is said."""

    stay_s: Count | None = None
    share: Count | None = None
    allow: Count | None = None


class SettingRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A setting from afar for a group or a device; without a value it is taken back."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    group: NameOrNone = ""
    device: NameOrNone = ""
    value: Setting | None = None


class EnrolmentTokenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A token with which one box enrols, once: into ``group``, or in the place of the ``device`` that it replaces."""

    group: NameOrNone = ""
    device: NameOrNone = ""
    hours: Hours = 24


class PersonTokenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A token for a person or a program, called ``name``."""

    name: Name
    role: Role
    hours: Hours = 24 * 90


class TokenMade(Struct, frozen=True):
    """The token: it is shown once."""

    name: str
    token: str
    expires_ms: Count


class TokenInfo(Struct, frozen=True):
    """What is known of a token; never the token."""

    name: str
    kind: str
    role: str
    device: str
    group: str
    made_by: str
    expires_ms: int
    used_by: str
    revoked: bool


class GroupRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The group that a device belongs to from now on."""

    group: NameOrNone


class ModelStanding(Struct, frozen=True):
    """A model on a device, as it reported last."""

    name: str
    wanted: int
    serving: int
    phase: str
    reason: str
    missing_bytes: int
    managed: bool


class DriftEntry(Struct, frozen=True):
    """What the operator of a box decided there."""

    device: str
    model: str
    what: str
    version: int
    who: str
    since_ms: int


class Device(Struct, frozen=True):
    """A device: ``state`` is active, conflict (it has seen newer documents than there are here: a person has to resume
    it) or revoked. ``generation`` is of what is wanted now, ``told_generation`` what the device knew when it was heard
    last; ``converged``: it has done the newest, but for what a person holds there. ``poll_s`` is how often it asks, by
    its last report; each pause is drawn from 0.8 to 1.2 of it (0: it has not said). ``wishes`` and ``settings`` are
    for it alone, and go before those of its group. ``facts`` are what it is made of, where it alone is asked for."""

    name: str
    group: str
    state: str
    seen_ms: int
    generation: int
    told_generation: int
    freshness: str
    converged: bool
    serving: bool
    agent: str
    models: tuple[ModelStanding, ...]
    drift: tuple[DriftEntry, ...]
    problems: tuple[str, ...]
    outbox_bytes: int
    certificate_expires_ms: int
    poll_s: int
    wishes: dict[str, Wish]
    settings: dict[str, Setting]
    facts: dict[str, str] = {}


class FactValue(Struct, frozen=True):
    """A value of a fact, how many devices have it, and which, where one fact was asked for."""

    value: str
    count: int
    devices: tuple[str, ...] = ()


class Fact(Struct, frozen=True):
    """Something that boxes are made of: how many ``devices`` tell it, in how many ``different`` ways, and the values
    that most have."""

    name: str
    devices: int
    different: int
    values: tuple[FactValue, ...]


class Group(Struct, frozen=True):
    """A group: what is wanted in it, and its devices; how many are ``there``, where they were wished, how many say that
    a version ``failed`` or was refused, and how many are ``silent``: not heard from for a day, or never. Those that
    were revoked are counted with ``devices`` alone."""

    name: str
    devices: int
    there: int
    failed: int
    silent: int
    wishes: dict[str, Wish]
    settings: dict[str, Setting]


class Release(Struct, frozen=True):
    """A version that was uploaded; ``full_bytes`` is what it takes over the link from scratch, ``deltas`` what it takes
    from versions (by the digests of their manifests). ``trust`` is who signed it, by the fleet's root: ``key KEYID``;
    else ``untrusted KEYID``, ``wrong KEYID`` or ``unsigned``, which boxes refuse."""

    model: str
    version: int
    manifest: str
    total_bytes: int
    full_bytes: int
    deltas: dict[str, int]
    trust: str
    by: str
    at_ms: int


class Released(Release, frozen=True):
    """What became of an upload; ``golden_before`` is the newest version below it that has a golden set, where it has
    none; 0: it has one, or none of those has."""

    golden_before: int = 0


class Withdrawn(Struct, frozen=True):
    """A release that was taken back; ``bytes`` are those that nothing else at the controller needs."""

    model: str
    version: int
    bytes: int


class LogEntry(Struct, frozen=True):
    """A record of a device: of which outbox and number, when it came, and what it says."""

    device: str
    stream: str
    epoch: str
    number: int
    at_ms: int
    record: Any


class AuditEntry(Struct, frozen=True):
    """A line of the audit log."""

    number: int
    at_ms: int
    who: str
    what: str
    detail: str
    digest: str


class AuditCheck(Struct, frozen=True):
    """Whether the chain holds: the number of the first line that does not follow (0: all do), and the newest digest."""

    lines: int
    first_wrong: int
    newest: str


class Changed(Struct, frozen=True):
    """For how many devices something changed."""

    devices: int


class Replaced(Changed, frozen=True):
    """The same of a wish or a setting; ``before``: there was one of it, which gave way or was taken back."""

    before: bool


class WishMade(Replaced, frozen=True):
    """The same of a wish, and the rollouts that halt for it."""

    halts: list[str]


class TokenWithdrawn(Changed, frozen=True):
    """A token that was withdrawn; ``last_admin``: it was an admin's, and no other one of an admin is good."""

    last_admin: bool


class Failure(Struct, frozen=True):
    """Why a request was refused: a ``code`` for programs, and a text."""

    code: str
    error: str
