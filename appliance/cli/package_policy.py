"""Whose signatures count and what may be served, from the command line and a configuration file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.arguments import configuration_at
from appliance.cli.failure import CommandFailed

if TYPE_CHECKING:
    from appliance.config.repository import SettledRepository
    from appliance.config.tree import ApplianceConfig
    from appliance.package.keys import PublicKey
    from appliance.package.verification import Policy
    from appliance.store.catalog import InstalledVersion


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--trusted-key", action="append", default=[], metavar="FILE", type=Path,
        help="public key (PEM) whose signature is wanted; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="judge by its sections [packages] and [repository]"
    )


def policy_of(arguments: argparse.Namespace) -> Policy:
    """By what packages are judged: without keys and configuration, signatures are told and not judged."""
    from appliance.cli import store_session
    from appliance.config.store import Unsigned
    from appliance.domain.errors import OperatorError
    from appliance.package.keys import read_public_key
    from appliance.package.verification import Policy

    try:
        keys = [read_public_key(path) for path in arguments.trusted_key]
    except OperatorError as error:
        raise CommandFailed(str(error)) from error
    if arguments.config is None:
        return Policy(keys=keys, unsigned=Unsigned.REFUSE if keys else None)
    config = store_session.configured(arguments)
    keys += trusted_keys(arguments.config, config)
    return Policy(keys=keys, unsigned=config.packages.unsigned, repository=config.repository)


def trusted_keys(file: Path | None, config: ApplianceConfig) -> list[PublicKey]:
    """The keys that the configuration from ``file`` trusts. Fails with all that cannot be had."""
    from appliance.domain.errors import Problem
    from appliance.package.keys import key_problems, read_public_key

    paths = config.packages.trusted_keys
    problems = [
        Problem(file=str(file), key="packages.trusted_keys", text=text) for text in key_problems(paths)
    ]
    if problems:
        raise CommandFailed("the configuration has problems:", lines=map(str, problems))
    return [read_public_key(Path(path)) for path in paths]


def trust_of(arguments: argparse.Namespace) -> Callable[[InstalledVersion], str]:
    """Who vouches for the versions of a store now, where the configuration names keys; else who did when they came."""
    from appliance.cli import store_session

    config = store_session.configured(arguments)
    if not config.packages.trusted_keys:
        return attrgetter("trust")
    from appliance.package.vouching import trust_now

    keys, state = trusted_keys(arguments.config, config), arguments.state_dir
    return lambda version: trust_now(state, version, keys)


def add_repository(parser: argparse.ArgumentParser) -> None:
    """The configuration of a command that only asks what may be served."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="its section [repository] says what may be served"
    )


def repository_of(file: Path | None) -> SettledRepository:
    """What may be served, but for what each box sets for models that say nothing. Models of KIND_AUTO run where they
    would on this machine."""
    from appliance.config.repository import RepositoryConfig
    from appliance.runtimes.auto_device import settled

    if file is None:
        return settled(RepositoryConfig())
    repository = settled(configuration_at(file).repository)
    return replace(repository, default_max_batch_size=RepositoryConfig().default_max_batch_size)
