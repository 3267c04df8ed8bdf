"""Have the next start take the image before the one that runs. What the box keeps stays as it is."""

from __future__ import annotations

import argparse

from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.image.here import this_machine, told
from appliance.image.machine import set_tries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(_arguments: argparse.Namespace) -> int:
    """Take all tries from the version that runs."""
    machine = this_machine()
    running = machine.running
    if running is None:
        raise CommandFailed(f"{machine.version} runs, and the boot loader has no entry of it", Exit.REFUSED)
    others = [entry for entry in machine.entries if entry is not running and entry.left != 0]
    if not others:
        raise CommandFailed(
            f"{machine.version} runs, and there is no other version that could start", Exit.REFUSED
        )
    with told():
        set_tries(machine.folder, running, 0)
    print(f"the next start takes {others[0].version}; 'appliance image update' brings {running.version} back")
    return Exit.OK
