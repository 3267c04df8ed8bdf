"""The agent's loop: look, plan one step, do it, report; derived anew each time, so that a kill leaves nothing to mend.

Steps that change the store run one at a time off the event loop; a transfer runs beside them and is left off as soon as
it is not the next step any more. What the controller says decides nothing but what is wanted: where it cannot be
reached, the box goes on towards the newest document that it trusts. Owner: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import random
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Final

from msgspec import structs

from appliance.domain.errors import ApplianceError
from appliance.fleet.messages import Report
from appliance.fleet.settings import shown
from appliance.sync import by_hand
from appliance.sync.box import Box, machine_problems
from appliance.sync.contact import Conversation
from appliance.sync.freshness import freshness
from appliance.sync.link import LinkFailed
from appliance.sync.plan import (
    ApplySettings,
    Fetch,
    Observed,
    Reason,
    StartTrial,
    Step,
    Waiting,
    Waits,
    Want,
    next_step,
    offers,
    plan,
    streams_to_keep,
    subject,
)
from appliance.sync.reporting import Standing, report_of, waiting_words, without_figures, words
from appliance.sync.situation import Situation, stuck_of
from appliance.sync.situation import write as write_situation
from appliance.sync.step_order import HELD, Outcome, StepOrder, StoreStep, encode, outcome_of
from appliance.sync.transfers import CameFurther, Transfers

LOOK_S: Final = 5.0
"""How often the box is looked at while nothing happens."""
STEPS: Final = "appliance.sync.store_steps"
UNAVAILABLE_S: Final = 60.0
DIED_S: Final = 4.0
"""How soon a step is begun anew whose process died, for twice as long with each further time, up to UNAVAILABLE_S."""
DOUBLED_MAX: Final = 8
"""Times that it is at most: a process may die for weeks."""
REPEATS_MAX: Final = 2
"""How often a step is done that has no effect, before it waits."""
TRANSFER_AGAIN_S: Final = 30.0
GOING_ON_S: Final = 2.0
"""The same for a transfer that came further before it broke off: a link that flaps is used while it is there."""
REPORT_ANEW_S: Final = 3600.0
"""How old what changes always, such as free bytes, may be in a report."""

Say = Callable[..., None]


class Agent:
    """See the module. ``say`` writes a log line; ``figures`` are what changes all the time in a report. ``disk``: why
    the box could not be looked at, "" where it could."""

    def __init__(
        self,
        box: Box,
        transfers: Transfers,
        conversation: Conversation,
        say: Say,
        figures: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.box = box
        self.steps: tuple[Step, ...] = ()
        self._transfers = transfers
        self._conversation = conversation
        self._say = say
        self._figures = figures
        self._stuck: dict[tuple[str, int], tuple[Waiting, float]] = {}
        self._last: tuple[Step | None, int, int] = (None, 0, 0)
        """The step that was tried last, how often in a row it was done, and how often its process died."""
        self._transfer: tuple[str, asyncio.Task[None]] | None = None
        self._observed = Observed()
        self.disk = ""
        self._report: tuple[Report, float] | None = None
        self._reasons = (box.trusted.root_version, offers(box.desired))
        self._planned: int | None = None
        self._situation: Situation | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop``."""
        talk = self._conversation
        try:
            while not stop.is_set():
                await self.reconcile()
                report = self.report()
                pause_s = talk.pause_s(report)
                if pause_s <= 0:
                    await talk.hold(report)
                    self._leave_word()
                else:
                    await self._wait(stop, min(LOOK_S, pause_s))
        finally:
            await self._leave_off()
            await talk.close()

    async def once(self) -> None:
        """One pass: hear what is wanted, and do all that can be done now, transfers included. Where nothing is heard,
        which ``trouble`` tells then, what was wanted before is done all the same."""
        talk = self._conversation
        try:
            if await talk.hold(self.report()):
                await talk.hold(self.report())
            await self.reconcile()
            while self._transfer is not None:
                await asyncio.wait([self._transfer[1]])
                await self.reconcile()
            if talk.trouble is None:
                await talk.hold(self.report())
            self._leave_word()
        finally:
            await self._leave_off()
            await talk.close()

    async def reconcile(self) -> None:
        """Do every step that can be done now; a transfer is begun, or left off where it is not the next step."""
        while True:
            try:
                await self._take_by_hand()
                steps = await asyncio.to_thread(self._look)
            except (ApplianceError, OSError) as error:
                self._trouble_with_disk(error)
                return
            self.disk = ""
            self._tell(steps)
            self._leave_word()
            step = next_step(steps)
            await self._see_to_transfer(step)
            if step is None or isinstance(step, Fetch):
                await asyncio.to_thread(self._forget)
                return
            try:
                await self._do(step)
            except OSError as error:
                self._trouble_with_disk(error)
                return

    def report(self) -> Report:
        """How the box stands, for its controller. What changes all the time is told anew with what else changes, or
        after a while, so that an idle poll carries no report."""
        box, now_s = self.box, self.box.clock.monotonic_s()
        fresh = freshness(box.progress.contact, box.clock.instant())
        problems = (box.progress.problem, box.damage, self.disk, *machine_problems(box.settings.state))
        planned = box.desired is None or self._planned == box.desired.generation
        steps = self.steps if planned else ()  # what failed of another wish is not told of this one
        standing = Standing(
            box.identity.device,
            box.trusted.counters.targets,
            fresh.word,
            (*problems, *_setting_problems(steps)),
            shown(box.settings.fleet, box.settings.said, box.progress.settings),
        )
        stable = report_of(standing, box.desired, self._observed, steps)
        if self.disk or not planned:  # nothing was done of it so far, or nobody knows
            stable = structs.replace(stable, converged=False)
        if self._report is not None:
            before, at_s = self._report
            if without_figures(before) == stable and now_s - at_s < REPORT_ANEW_S:
                return before
        report = structs.replace(stable, wall_ms=max(box.clock.wall_ms(), 0), **self._figures())
        self._report = (report, now_s)
        return report

    async def _wait(self, stop: asyncio.Event, pause_s: float) -> None:
        """Until it is time to look again: ``stop``, the end of a transfer, or so many seconds."""
        waiting = asyncio.ensure_future(stop.wait())
        ends = {waiting, self._transfer[1]} if self._transfer else {waiting}
        try:
            await asyncio.wait(ends, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    # --- steps

    def _look(self) -> tuple[Step, ...]:
        now_s = self.box.clock.monotonic_s()
        desired, before = self.box.desired, self._reasons
        self._reasons = root, offered = self.box.trusted.root_version, offers(desired)
        if root != before[0]:  # who may sign packages may be another now
            self._stuck.clear()
        self._stuck = {
            key: each
            for key, each in self._stuck.items()
            if each[1] > now_s and before[1].get(key) == offered.get(key)
        }
        stuck = {key: waits for key, (waits, _) in self._stuck.items()}
        self._observed = self.box.observed(self._transfers, stuck)
        found = plan(desired, self._observed)
        self._planned = desired.generation if desired else None
        return found

    def _tell(self, steps: tuple[Step, ...]) -> None:
        """Say what is new of what waits."""
        before = {(words(step), _reason(step.waits)) for step in self.steps}
        for step in steps:
            if step.waits and (words(step), _reason(step.waits)) not in before:
                self._say("waits", step=words(step), why=waiting_words(step.waits))
        if steps != self.steps and not steps and self.box.desired is not None:
            self._say("all as wanted", generation=self.box.desired.generation)
        self.steps = steps

    async def _do(self, step: Step) -> None:
        """Do it; what keeps it from being done is kept as what it waits for."""
        if isinstance(step, ApplySettings):
            self.box.note(structs.replace(self.box.progress, settings=dict(step.settings)))
            return
        assert not isinstance(step, Fetch)
        done, died = self._last[1:] if step == self._last[0] else (0, 0)
        if done >= REPEATS_MAX:
            self._last = (None, 0, 0)
            self._note_stuck(step, Reason.REFUSED, "it was done, and had no effect", UNAVAILABLE_S)
            return
        assert isinstance(step, StoreStep)
        outcome = await _apart(self.box.order(step))
        is_done = outcome.reason in ("", HELD)  # a person's hold is seen with the next look
        self._last = (step, done + is_done, died + outcome.died)
        if not outcome.reason:
            self._say("done", step=words(step))
            self._note_asked(step)
        elif not is_done:
            pause_s = min(DIED_S * 2.0 ** min(died, DOUBLED_MAX), UNAVAILABLE_S)
            again_s = pause_s if outcome.died else outcome.again_s
            self._note_stuck(step, Reason(outcome.reason), outcome.text, again_s)

    def _note_asked(self, step: Step) -> None:
        """Keep with which wish a version was asked for."""
        if isinstance(step, Want | StartTrial):
            name, number = subject(step)
            named = {wish.name for wish in self.box.desired.models} if self.box.desired else set()
            kept = {
                key: wish for key, wish in self.box.progress.asked.items() if key.rpartition("/")[0] in named
            }
            asked = {**kept, f"{name}/{number}": step.wish}
            self.box.note(structs.replace(self.box.progress, asked=asked))

    def _note_stuck(self, step: Step, reason: Reason, text: str, again_s: float | None) -> None:
        waits = Waiting(reason=reason, text=" ".join(text.split()), again_s=again_s)
        until_s = inf if again_s is None else self.box.clock.monotonic_s() + again_s
        self._stuck[subject(step)] = (waits, until_s)

    def _trouble_with_disk(self, error: Exception) -> None:
        text = " ".join(str(error).split()) or type(error).__name__
        if text != self.disk:
            self._say("box cannot be looked at", reason=text)
        self.disk = text

    def _leave_word(self) -> None:
        """Have ``appliance sync status`` know what no other file tells."""
        trouble = self._conversation.trouble
        said = Situation(
            contact=self.box.progress.contact,
            trouble=str(trouble) if trouble else "",
            stuck=stuck_of(self._observed.stuck),
        )
        if said != self._situation:
            write_situation(self.box.settings.state, said)
            self._situation = said

    def _forget(self) -> None:
        """Remove the streams that nothing wants any more; while one is being fetched they stay."""
        others = bool(self.box.settings.fleet.neighbour_address)
        keep = streams_to_keep(self.box.desired, self._observed, for_others=others)
        if self._transfer is None and set(self._observed.spooled) - keep:
            with suppress(OSError):  # the next time it goes
                self._transfers.forget(keep)

    # --- what a person brought

    async def _take_by_hand(self) -> None:
        """Take in what a command left for the agent; a transfer is left off for that, and goes on where it was."""
        if not await asyncio.to_thread(by_hand.is_waiting, self.box):
            return
        await self._leave_off()
        if count := await asyncio.to_thread(by_hand.take, self.box):
            self._say("bundle taken in", answers=count, trusted=self.box.trusted.counters.targets)

    # --- the transfer

    async def _see_to_transfer(self, step: Step | None) -> None:
        """Have the one transfer run that comes next, and no other."""
        wished = step.way.stream if isinstance(step, Fetch) and step.way else None
        if self._transfer is not None:
            stream, task = self._transfer
            if stream == wished and not task.done():
                return
            if step is not None and not isinstance(step, Fetch) and not task.done():
                return  # what is quick is done beside it
            await self._leave_off()
        if isinstance(step, Fetch) and step.way is not None and next_step((step,)) is not None:
            if subject(step) in self._stuck:
                return
            self._say("transfer", step=words(step))
            self._transfer = (step.way.stream, asyncio.create_task(self._fetch(step)))

    async def _fetch(self, step: Fetch) -> None:
        assert step.way is not None
        try:
            await self._transfers.fetch(step.way)
        except LinkFailed as failed:
            further = isinstance(failed, CameFurther)
            pause_s = random.uniform(0.5, GOING_ON_S if further else TRANSFER_AGAIN_S)
            self._note_stuck(step, Reason.LINK, str(failed), max(pause_s, failed.retry_after_s))
        except OSError as error:
            self._note_stuck(step, Reason.DISK, str(error), UNAVAILABLE_S)

    async def _leave_off(self) -> None:
        if self._transfer is not None:
            _, task = self._transfer
            self._transfer = None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _apart(order: StepOrder) -> Outcome:
    """Do the step in a process of its own, which ends with this one."""
    command = (sys.executable, "-P", "-m", STEPS)
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    except OSError as error:
        return Outcome(reason=Reason.DISK, text=f"no process begins: {error.strerror}", again_s=UNAVAILABLE_S)
    try:
        said, _ = await process.communicate(encode(order))
    except asyncio.CancelledError:
        process.kill()
        raise
    return outcome_of(said, process.returncode or 0)


def _setting_problems(steps: tuple[Step, ...]) -> tuple[str, ...]:
    return tuple(
        f"settings-refused: {step.waits.text}"
        for step in steps
        if isinstance(step, ApplySettings) and step.waits
    )


def _reason(waits: Waits) -> str:
    return waits.reason.value if waits else ""
