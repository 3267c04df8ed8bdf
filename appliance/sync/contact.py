"""Contacts with the controller: tell how the box stands, ask what is wanted, take what can be trusted.

Whatever comes of it, what was trusted before stands until something newer that is right is on the disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from appliance.domain.digest import digest_of
from appliance.fleet import messages
from appliance.fleet.messages import Poll, Polled, Renewal, Report
from appliance.sync import trust
from appliance.sync.backoff import ASKED_S_MOST, Backoff
from appliance.sync.box import Box
from appliance.sync.budget import CONTROL, Bound
from appliance.sync.freshness import is_worth_keeping
from appliance.sync.identity import EnrolmentInvalid, NotEnrolled, regroup, request_for_renewal
from appliance.sync.identity import renew as take_renewed
from appliance.sync.link import Link, LinkFailed, LinkTrouble
from appliance.sync.progress import after_answer
from appliance.sync.reporting import without_figures
from appliance.sync.spending import Spending
from appliance.sync.telling import Telling

EXPIRED: Final = "certificate-expired"
"""What a controller says to whoever may do nothing but have the certificate renewed."""
TELEMETRY_LATER: Final = ("too-often", "telemetry-full")
"""What a controller says that takes no telemetry now."""

POLL_S_LEAST: Final = 5
POLL_S_MOST: Final = 86_400
PAUSE_S_LEAST: Final = 0.2
PROMPT_S: Final = 5.0
"""How soon after a contact the next one is made because there is something to tell."""


class Conversation:
    """Contacts one after another, over a link that is kept as long as it goes well. ``connect`` makes one with the
    identity as it is now; telemetry goes the same way; ``say`` writes a log line. Owner: the event loop."""

    def __init__(
        self,
        box: Box,
        connect: Callable[[], Link],
        telling: Telling,
        spending: Spending,
        say: Callable[..., None],
    ) -> None:
        self.trouble: LinkFailed | None = None
        self._box = box
        self._connect = connect
        self._telling = telling
        self._spending = spending
        self._say = say
        self._contact: Contact | None = None
        self._backoff = Backoff(random.uniform)
        self._told: Report | None = None
        self._tell_s = 0.0
        self._last_s = self._due_s = box.clock.monotonic_s()

    def pause_s(self, report: Report) -> float:
        """In how many seconds the next contact is due: sooner where something else is to be told than last time."""
        now_s = self._box.clock.monotonic_s()
        blocked = self._spending.blocked(CONTROL)
        if blocked.bound is not Bound.NONE:
            return min(max(blocked.wait_s, PAUSE_S_LEAST), PROMPT_S)
        due_s = self._due_s
        if _for_prompting(report) != self._told and self.trouble is None:
            due_s = min(due_s, self._last_s + PROMPT_S)
        return due_s - now_s

    async def hold(self, report: Report) -> bool:
        """Make one contact, and say when the next one is due; whether another certificate came of it, with which it is
        due now."""
        try:
            if self._contact is None:
                self._contact = Contact(self._box, await self._connect().__aenter__())
            heard = await self._contact.make(report)
            self._told = _for_prompting(report)
            more = await self._tell(self._contact.link, renewed=heard.renewed)
        except (LinkFailed, EnrolmentInvalid, NotEnrolled, OSError) as error:
            pause_s, renewed = await self._failed(error), False
        else:
            renewed = heard.renewed
            if self.trouble is not None:
                self._say("controller heard again")
            self.trouble = None
            self._backoff.succeeded()
            pause_s = PAUSE_S_LEAST if heard.again or more else self._poll_s(heard) * random.uniform(0.8, 1.2)
            if renewed:
                self._say("certificate renewed")
                await self.close()
        self._last_s = self._box.clock.monotonic_s()
        self._due_s = self._last_s + pause_s
        return renewed

    async def _tell(self, link: Link, *, renewed: bool) -> bool:
        """Count what the contact took, and send telemetry as far as the budget goes; whether more waits. A controller
        that takes no more of it now was heard all the same. A connection shows the certificate that it began with:
        where that was ``renewed``, telemetry goes over the next one."""
        used, link.bytes_used = link.bytes_used, 0
        now_s = self._box.clock.monotonic_s()
        try:
            await self._spending.spend(CONTROL, used)
            return (
                not renewed and now_s >= self._tell_s and await self._telling.send(link, self._spending.spend)
            )
        except LinkFailed as failed:
            if failed.code not in (*Bound, *TELEMETRY_LATER):
                raise
            if failed.code in TELEMETRY_LATER:
                self._tell_s = now_s + min(failed.retry_after_s, ASKED_S_MOST)
            return False

    async def close(self) -> None:
        """Let go of the link."""
        if self._contact is not None:
            contact, self._contact = self._contact, None
            await contact.link.__aexit__(None, None, None)

    async def _failed(self, error: Exception) -> float:
        """Note a failure; the more of them, the longer the pause, of random length, so that a whole fleet that comes
        back does not come at once."""
        failed = error if isinstance(error, LinkFailed) else LinkFailed(LinkTrouble.REFUSED, str(error))
        before = self.trouble
        if before is None or (before.trouble, before.code) != (failed.trouble, failed.code):
            self._say("controller not heard", trouble=failed.trouble.value, reason=str(failed))
        self.trouble = failed
        if failed.trouble is not LinkTrouble.REFUSED:
            await self.close()
        return max(self._backoff.failed(failed.retry_after_s), PAUSE_S_LEAST)

    def _poll_s(self, heard: Heard) -> float:
        """What the box's own file says is heeded first, then what was set from afar, then what the controller says."""
        own = self._box.fleet.poll_s
        chosen = "poll_s" in self._box.settings.said or "fleet.poll_s" in self._box.progress.settings
        said = own if chosen else heard.poll_s or own
        return min(max(said, POLL_S_LEAST), POLL_S_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What came of a contact: when to come again; whether at once (``again``); whether the certificate is another one,
    which takes a new connection."""

    poll_s: int = 0
    again: bool = False
    renewed: bool = False


class Contact:
    """Contacts of ``box`` over ``link``. Owner: the event loop."""

    def __init__(self, box: Box, link: Link) -> None:
        self.link = link
        self._box = box
        self._told = ""

    async def make(self, report: Report) -> Heard:
        """Poll once, with the report if the controller lacks it. Raises LinkFailed, EnrolmentInvalid, NotEnrolled and
        OSError."""
        data = messages.encode(report)
        digest = digest_of(data)
        try:
            polled = await self.link.poll(self._poll(digest, data if digest != self._told else b""))
        except LinkFailed as failed:
            if failed.code != EXPIRED:
                raise
            await self._renew()
            return Heard(again=True, renewed=True)
        self._told = digest
        if polled.wants_report:
            polled = await self.link.poll(self._poll(digest, data))
        take_answer(self._box, polled)
        if polled.renew:
            await self._renew()
        return Heard(poll_s=polled.poll_s, again=polled.renew, renewed=polled.renew)

    def _poll(self, digest: str, report: bytes) -> Poll:
        trusted = self._box.trusted
        counters = trusted.counters
        return Poll(
            root=trusted.root_version,
            timestamp=counters.timestamp,
            snapshot=counters.snapshot,
            targets=counters.targets,
            report_digest=digest,
            report=report,
        )

    async def _renew(self) -> None:
        renewed = await self.link.renew(Renewal(request=request_for_renewal(self._box.folder)))
        take_renewed(self._box.folder, renewed)


def _for_prompting(report: Report) -> Report:
    """What of the report is told before its time: not how far a transfer is."""
    models = tuple(structs.replace(each, missing_bytes=0) for each in report.models)
    return structs.replace(without_figures(report), models=models)


def take_answer(box: Box, polled: Polled) -> None:
    """Trust what can be trusted of an answer, and note the contact. One that was carried here says no time and no
    group, and is kept: there are few of them, and the next one may be weeks away."""
    before = box.trusted.counters.timestamp
    trusted, refused = trust.examine(box.trusted, polled, box.identity.device)
    box.trust(trusted)
    if polled.now_ms and polled.group != box.identity.group:
        with suppress(OSError):  # it is only shown, and each answer has it
            box.identity = regroup(box.folder, box.identity, polled.group)
    progress, rose = box.progress, trusted.counters.timestamp > before
    ahead_ms = polled.now_ms - box.clock.wall_ms()
    if not polled.now_ms or abs(ahead_ms - progress.clock_ahead_ms) < 1000:
        ahead_ms = progress.clock_ahead_ms
    after = after_answer(progress, refused, box.clock.instant(), rose=rose)
    after = structs.replace(after, clock_ahead_ms=ahead_ms)
    kept = structs.replace(after, contact=progress.contact)
    if kept != progress or not polled.now_ms or is_worth_keeping(progress.contact, after.contact):
        box.note(after)
    else:
        box.progress = after
