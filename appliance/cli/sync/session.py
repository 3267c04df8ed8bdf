"""What the commands of the agent have in common: where the box is, what its configuration says, what it counts time by.

Their errors are told as sentences; log lines go to standard error, one each: as the daemon's, where the agent works on,
and for people, where they wait for it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.cli import store_session
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.package_policy import trusted_keys
from appliance.cli.store_session import told, wall_ms
from appliance.config import loading
from appliance.domain.errors import StoreBusy
from appliance.fleet.settings import local_problems
from appliance.sync.agent import Agent, Say
from appliance.sync.box import Box, Clock, Settings
from appliance.sync.contact import Conversation
from appliance.sync.contact_plan import plan_problems
from appliance.sync.freshness import Instant
from appliance.sync.identity import EnrolmentInvalid, NotEnrolled, fleet_folder
from appliance.sync.link import Link, LinkFailed, LinkTrouble
from appliance.sync.spending import Spending
from appliance.sync.streams import Streams
from appliance.sync.telling import Telling
from appliance.sync.trust import NoRoot

if TYPE_CHECKING:
    from appliance.telemetry.log import LogControl

BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the box's state is."""
    store_session.add_place(
        parser,
        "TOML file; its state_dir and its sections [fleet], [store], [packages] and [repository] count here",
    )


def settings_of(arguments: argparse.Namespace) -> Settings:
    """What the box's own configuration says."""
    config = store_session.configured(arguments)
    if wrong := (*local_problems(config.fleet), *plan_problems(config.fleet.contact_plan)):
        raise CommandFailed(f"'{arguments.config}' has {len(wrong)} problems in [fleet]:", lines=wrong)
    with told():
        said = loading.said_keys(arguments.config, "fleet")
    return Settings(
        state=arguments.state_dir,
        fleet=config.fleet,
        said=said,
        store=config.store,
        repository=config.repository,
        keys=trusted_keys(arguments.config, config),
        unsigned=config.packages.unsigned,
    )


def instant() -> Instant:
    """What the box counted since it booted, sleep included."""
    try:
        boot = BOOT.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return Instant(boot=boot, ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


CLOCK: Final = Clock(wall_ms=wall_ms, instant=instant, monotonic_s=time.monotonic)


@contextmanager
def box_of(arguments: argparse.Namespace) -> Iterator[Box]:
    """The box, held by this process for as long as the context lasts."""
    settings = settings_of(arguments)
    with failures():
        box = Box(settings, CLOCK)
    with failures(), box:
        yield box


@contextmanager
def failures() -> Iterator[None]:
    """Errors of the agent end the command with their text."""
    with told():
        try:
            yield
        except (NotEnrolled, EnrolmentInvalid, NoRoot) as error:
            raise CommandFailed(str(error)) from error
        except StoreBusy as error:
            raise CommandFailed(str(error), Exit.REFUSED) from error
        except LinkFailed as error:
            status = Exit.REFUSED if error.trouble is LinkTrouble.REFUSED else Exit.UNREACHABLE
            raise CommandFailed(str(error), status) from error
        except BrokenPipeError:  # of standard output; that of a link is a LinkFailed
            raise
        except OSError as error:
            raise CommandFailed(f"{error.filename or 'the disk'}: {error.strerror or error}") from error


@contextmanager
def log_of(arguments: argparse.Namespace) -> Iterator[LogControl]:
    """The log of an agent that works on, in the format and from the level that the configuration says, to standard
    error in any case: a file of the log is the daemon's, which moves it away when it is full."""
    from appliance.telemetry.log import configure

    log = configure(replace(store_session.configured(arguments).log, file=""))
    try:
        yield log
    finally:
        log.close()


@contextmanager
def agent_of(arguments: argparse.Namespace, say: Say) -> Iterator[tuple[Agent, Conversation]]:
    """The box's agent, which tells what it does by ``say``, and its conversation with the controller that the box
    belongs to."""
    with box_of(arguments) as box:
        telling = Telling(box.settings.state, box.fleet.outbox_bytes)

        def tell(event: str, **fields: object) -> None:
            say(event, **fields)
            telling.note(event, box.clock.wall_ms(), fields)

        def connect() -> Link:
            return Link(box.identity.url, box.identity.tls())

        def figures() -> dict[str, int]:
            return {"outbox_bytes": telling.waiting_bytes(), "budget_left_bytes": spending.left_bytes()}

        spending = Spending(box)
        talk = Conversation(box, connect, telling, spending, tell)
        streams = Streams(box, spending.spend_on_models, spending.waits)
        with closing(telling), closing(spending):
            yield Agent(box, streams, talk, tell, figures), talk


def say(event: str, **fields: object) -> None:
    """Write a line for the person at the terminal."""
    said = "".join(f" {key}={printable(str(value))!r}" for key, value in fields.items())
    print(f"{event}:{said}" if said else event, file=sys.stderr, flush=True)


def write_link_state(state: Path, word: str) -> None:
    """Have the agent go by this from its next look on. Raises OSError."""
    from appliance.durable import replace_file
    from appliance.sync.box import LINK

    with closing(fleet_folder(state)) as folder:
        replace_file(folder, LINK, f"{LINK}.new", f"{word}\n".encode())
