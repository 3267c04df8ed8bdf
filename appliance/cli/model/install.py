"""Put packages into the store and make them wanted: a 'serve' with the same state directory brings them live.

A package is checked while it is read, and its model is read as 'serve' will read it; nothing of it can be served before
all of it is on the disk for good. Installing a package again changes nothing, but for blobs that were damaged: they are
replaced. A version that failed on this box is tried again.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from appliance.cli import package_policy, store_session
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.model import golden_loss, interface_change, wait
from appliance.cli.terminal import bytes_bar
from appliance.config.store import Unsigned
from appliance.domain.quantity import bytes_text
from appliance.package.arrival import arrival_of
from appliance.package.reader import open_package
from appliance.package.servable import check_servable
from appliance.package.trust import vouched
from appliance.package.verification import Policy
from appliance.store.installation import Installed, InstallRequest, eviction_words
from appliance.store.layout import view_root
from appliance.store.scrub import forget_damage
from appliance.store.writer import StoreWriter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("packages", metavar="PACKAGE", type=Path, nargs="+", help="files NAME-VERSION.model")
    store_session.add_arguments(parser)
    wait.add_arguments(parser)
    parser.add_argument("--no-want", action="store_true", help="only install; what is served does not change")
    parser.add_argument(
        "--downgrade",
        action="store_true",
        help="take versions that are older than what was wanted of their models",
    )
    interface_change.add_argument(parser)
    parser.add_argument(
        "--allow-unsigned",
        action="store_true",
        help="as packages.unsigned = 'allow': take packages that no trusted key signed",
    )


def run(arguments: argparse.Namespace) -> int:
    """Install one after the other; the first that fails ends it."""
    config = store_session.configured(arguments)
    policy = Policy(
        keys=package_policy.trusted_keys(arguments.config, config),
        unsigned=Unsigned.ALLOW if arguments.allow_unsigned else config.packages.unsigned,
        repository=config.repository,
    )
    if arguments.wait and arguments.no_want:
        raise CommandFailed("--wait is for what is wanted; leave out --no-want")
    wait.check_reachable(arguments)
    installed: dict[str, int] = {}
    with store_session.writing(arguments, make=True) as store:
        for path in arguments.packages:
            before, state = store.catalog, arguments.state_dir
            told = _install(store, path, policy, arguments)
            again = not arguments.no_want and store_session.ask_again(
                store, before, state, told.name, told.version
            )
            print(_line(told, arguments, again), flush=True)
            if not arguments.no_want:
                interface_change.tell(arguments, before, store.catalog, told.name, told.version)
                golden_loss.tell(before, store.catalog, told.name, told.version)
                store_session.tell_held(state, told.name)
            installed[told.name] = told.version  # the last one is the one that is wanted
        generation = store.catalog.generation
    wait.wait_for(arguments, installed, generation)
    return Exit.OK


def _install(store: StoreWriter, path: Path, policy: Policy, arguments: argparse.Namespace) -> Installed:
    assert policy.unsigned is not None, "who installs judges"
    try:
        with store_session.told(), open_package(path) as reader:
            signed, signatures = reader.manifest_bytes, reader.signatures
            trust = vouched(signed, signatures, policy.keys, policy.unsigned, path.name)
            arrival = arrival_of(reader, trust)
            total = arrival.manifest.total_bytes
            with bytes_bar(f"install {arrival.manifest.key}", total) as progress:
                request = InstallRequest(
                    package=arrival,
                    want=not arguments.no_want,
                    downgrade=arguments.downgrade,
                    interface_change=arguments.allow_interface_change,
                    now_ms=store_session.wall_ms(),
                    progress=progress,
                    accept=lambda digest: check_servable(
                        view_root(arguments.state_dir, digest), arrival.manifest, policy.repository
                    ),
                )
                told = store.install(request)
            with suppress(OSError):  # the next scrub finds it out
                files = arrival.version(store_session.wall_ms()).files
                forget_damage(arguments.state_dir, {file.digest for file in files})
            return told
    except OSError as error:
        raise CommandFailed(f"'{path}' cannot be read: {error.strerror}") from error


def _line(told: Installed, arguments: argparse.Namespace, again: bool) -> str:
    key = printable(f"{told.name}/{told.version}")
    if not told.changed:
        what = "it failed here and is to be tried again" if again else "nothing was changed"
        return f"{key} is installed already, whole and as it should be; {what}"
    wanted = "installed" if arguments.no_want else "installed and wanted"
    evicted = "".join(f"; {words}" for words in eviction_words(told.evicted, told.evicted_forms))
    return f"{key} {wanted}: {bytes_text(told.written_bytes)} written{printable(evicted)}"
