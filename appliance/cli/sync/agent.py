"""The agent itself: for as long as it is not stopped, or one pass."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.sync import session
from appliance.cli.sync.status import step_documents
from appliance.cli.terminal import print_text
from appliance.sync.agent import Agent
from appliance.sync.plan import Reason, converged
from appliance.sync.reporting import waiting_words, words

STOP_S: Final = 0.5
"""How long a step may go on after SIGTERM; one that is cut off then is begun anew at the next start."""
NICENESS: Final = 19
"""Serving goes first: a version that is applied takes processors for seconds, and requests beside it milliseconds."""
NOT_DONE: Final = frozenset({Reason.FAILED, Reason.REFUSED, Reason.NO_WAY})


def _run(arguments: argparse.Namespace) -> int:
    """Work until SIGTERM or Ctrl-C."""
    with suppress(PermissionError):  # the unit, which has it so already, allows no change
        os.nice(NICENESS)
    with session.log_of(arguments) as log, session.agent_of(arguments, log.event) as (agent, _):
        log.event("agent works", device=agent.box.identity.device, controller=agent.box.identity.url)
        gc.freeze()
        asyncio.run(_offering(agent, log.close))
    return Exit.OK


async def _offering(agent: Agent, close_log: Callable[[], None]) -> None:
    """Work, and offer to neighbours what there is, where that is wished: what listens is loaded only then."""
    if not agent.box.settings.fleet.neighbour_address:
        await _until_stopped(agent, close_log)
        return
    from appliance.sync.neighbours import offering

    async with offering(agent.box):
        await _until_stopped(agent, close_log)


async def _until_stopped(agent: Agent, close_log: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    working = asyncio.create_task(agent.run(stop))
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        await asyncio.wait({working}, timeout=STOP_S)
    if not working.done():
        working.cancel()
        close_log()
        os._exit(Exit.OK)  # a thread may wait for the disk; whatever it does survives a kill
    waiting.cancel()
    await working


def _add_once(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``once``."""
    parser.add_argument("--json", action="store_true", help="print JSON: what is still to be done")
    session.add_arguments(parser)


def _say_what_is_done(event: str, **fields: object) -> None:
    """What waits is told at the end."""
    if event != "waits":
        session.say(event, **fields)


def _once(arguments: argparse.Namespace) -> int:
    """One pass; the exit status says how the box stands after it."""
    with session.agent_of(arguments, _say_what_is_done) as (agent, talk):
        box = agent.box
        asyncio.run(agent.once())
        if arguments.json:
            print(
                json.dumps(
                    {"steps": step_documents(agent.steps), "converged": converged(agent.steps)}, indent=2
                )
            )
        for step in () if arguments.json else agent.steps:
            print_text(printable(f"{words(step)}: {waiting_words(step.waits)}"))
        if agent.disk:
            raise CommandFailed(f"box cannot be looked at: {agent.disk}")
        if talk.trouble is not None:
            raise CommandFailed(f"the controller was not heard: {talk.trouble}", Exit.UNREACHABLE)
        if box.progress.problem:
            raise CommandFailed(box.progress.problem, Exit.REFUSED)
        if converged(agent.steps):
            rest = ", but for what is held" if agent.steps else ""
            text = f"All is as wanted{rest}." if box.desired else "Nothing is wanted of this box yet."
            if not arguments.json:
                print(text)
            return Exit.OK
        return Exit.REFUSED if any(s.waits and s.waits.reason in NOT_DONE for s in agent.steps) else Exit.OK


RUN: Final = Command(
    about="""\
Have this box be what its fleet wants: hear its controller when the link allows it, transfer, install and want versions,
report. Serving goes on without it. What a person did on the box stands until 'appliance model resume'.

Further commands: 'appliance sync enrol', 'once', 'status', 'explain', 'link'.
""",
    add_arguments=session.add_arguments,
    run=_run,
)
ONCE: Final = Command(
    about="""\
Hear the controller once, do all that can be done now, and say what is still to be done and why it waits. Exit status:
0 where nothing failed, 1 where something is refused or failed here, 3 where the controller was not heard.
""",
    add_arguments=_add_once,
    run=_once,
)
