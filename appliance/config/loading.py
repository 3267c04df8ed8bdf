"""How a configuration file becomes the tree: TOML, with what the command line says in its place.

What one section says of itself is checked there, what sections say of one another here. Whether this machine can serve
so is asked by checks that the caller brings along (``appliance.configuration`` has them), since they need the
components' code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from appliance.config.former import FORMER
from appliance.config.listening import shared_sockets
from appliance.config.quotas import certified_names
from appliance.config.tree import ApplianceConfig
from appliance.config.workers import class_problems
from appliance.domain.address import named_twice
from appliance.domain.binding import Bound, Check, Unread, as_far, bind, bind_what_can_be
from appliance.domain.errors import ConfigInvalid, ConfigUnreadable, Problem, system_reason

Table = Mapping[str, object]
WholeCheck = Callable[[ApplianceConfig], Iterator[tuple[str, str]]]

COMMAND_LINE: Final = "command line"
NOTHING: Final[Table] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Whether a configuration fits a machine. ``settings``: by key, what is wrong with one value; ``whole``: keys and
    what is wrong with them, asked of whatever could be read of the tree, unfit values among it."""

    settings: Mapping[str, Check]
    whole: tuple[WholeCheck, ...]


def load(path: Path | None, overrides: Table = NOTHING, checks: Checks | None = None) -> ApplianceConfig:
    """What ``path`` says (None: nothing), with ``overrides`` in its place: a table of the same form, from the command
    line. Without ``checks``, what fits together is not asked either. Raises ConfigInvalid with everything that is
    wrong."""
    file = "configuration" if path is None else str(path)
    said = NOTHING if path is None else _beside(path.parent, _table(_text(path), file))
    try:
        return _bound(_one_source(_merged(said, overrides)), file, checks)
    except ConfigInvalid as error:
        raise ConfigInvalid(_placed(problem, overrides) for problem in error.problems) from None


def reload(path: Path | None, overrides: Table, section: str, checks: Checks) -> ApplianceConfig:
    """As ``load``, for the sake of one ``section``: what is wrong elsewhere does not stand in the way of what that one
    says. Raises ConfigInvalid with everything that is wrong if any of it concerns that section, or the file cannot be
    read."""
    try:
        return load(path, overrides, checks)
    except ConfigInvalid as error:
        if any(problem.key.partition(".")[0] in ("", section) for problem in error.problems):
            raise
        try:
            return load(path, overrides)
        except ConfigInvalid:
            raise error from None


def said_keys(path: Path | None, section: str) -> frozenset[str]:
    """The keys of ``section`` that the file itself says. Raises ConfigInvalid."""
    table = NOTHING if path is None else _table(_text(path), str(path))
    said = table.get(section)
    return frozenset(said) if isinstance(said, Mapping) else frozenset()


def _bound(table: Table, file: str, checks: Checks | None) -> ApplianceConfig:
    if checks is None:
        return bind(ApplianceConfig, table, file, checked=False, former=FORMER)
    found = bind_what_can_be(ApplianceConfig, table, file, checks=checks.settings, former=FORMER)
    told = {problem.key for problem in found.problems}
    readable = cast(ApplianceConfig, _Readable(found))
    unfit = [each for check in (*CONTRADICTIONS, *checks.whole) for each in as_far(check(readable))]
    problems = [
        *found.problems,
        *(Problem(file=file, key=key, text=text) for key, text in unfit if key not in told),
    ]
    if problems or found.value is None:
        raise ConfigInvalid(problems)
    return found.value


class _Readable:
    """A tree, but for what of it could not be read: whoever asks for that cannot be answered."""

    def __init__(self, found: Bound[ApplianceConfig]) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        if name in self._found.rest:
            return self._found.rest[name]
        if self._found.value is None or name in self._found.unread:
            raise Unread(name)
        return getattr(self._found.value, name)


def _one_source(table: Table) -> Table:
    """Naming the store means not to serve the default directory."""
    return {"models": "", **table} if table.get("state_dir") else table


def _merged(table: Table, overrides: Table) -> Table:
    merged = dict(table)
    for key, value in overrides.items():
        section = table.get(key, NOTHING)
        if not isinstance(value, Mapping):
            merged[key] = value
        elif isinstance(section, Mapping):
            merged[key] = {**section, **value}
    return merged


def _beside(folder: Path, table: Table) -> Table:
    """The table with the files of keys where the configuration means them: relative to the ``folder`` it is in."""
    packages = table.get("packages")
    keys = packages.get("trusted_keys") if isinstance(packages, Mapping) else None
    if not isinstance(packages, Mapping) or not isinstance(keys, list):
        return table
    found = [str(folder / key) if isinstance(key, str) else key for key in keys]
    return {**table, "packages": {**packages, "trusted_keys": found}}


def _placed(problem: Problem, overrides: Table) -> Problem:
    """The problem with the command line named for what was said there."""
    section, _, key = problem.key.partition(".")
    over = overrides.get(section, NOTHING)
    here = not isinstance(over, Mapping) or key.partition("[")[0] in over
    return replace(problem, file=COMMAND_LINE) if here else problem


def _table(text: str, file: str) -> Table:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers and nesting without end, too
        raise ConfigInvalid([Problem(file=file, key="", text=f"is not TOML: {error}")]) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        text = f"cannot be read: {system_reason(error)}"
        kind = ConfigUnreadable if isinstance(error, OSError) else ConfigInvalid
        raise kind([Problem(file=str(path), key="", text=text)]) from error


def _source_contradictions(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    if config.state_dir and config.models:
        yield "models", f"is '{config.models}', but state_dir is set, too; keep the one that shall be served"


def _trace_contradictions(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    if config.trace.one_in and not config.trace.file:
        yield "trace.file", "traces need a file; name one"


def _address_contradictions(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    if shared_sockets(config.grpc.addresses, config.http.addresses):
        text = "grpc.addresses names the same sockets of the service manager; name them by FileDescriptorName= and"
        yield "http.addresses", f"{text} tell them apart, as in 'systemd:grpc' and 'systemd:http'"
    places = {key: getattr(config, key).addresses for key in ("grpc", "http", "metrics")}
    for address in named_twice([each for addresses in places.values() for each in addresses]):
        key = next(key for key in reversed(places) if address in places[key])
        yield (
            f"{key}.addresses",
            f"'{address}' is named twice, and one socket listens there; name another one",
        )


def _name_contradictions(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    if not config.grpc.tls_client_ca and not config.http.tls_client_ca:
        for name in certified_names(config.quotas):
            text = "is no address, and only certificates tell names, for which tls_client_ca of [grpc] or [http] asks"
            yield f"quotas.clients.{name}", f"{text}; set one, or name an address, or unix"


def _size_contradictions(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    """Requests that a front end lets in must fit once arena and queues are empty, else they are told for ever to come
    back."""
    if any(class_problems(config.arena.classes)):
        return
    room, queue = config.arena.largest_bytes, config.scheduling.max_queued_bytes
    edges = (
        ("grpc.max_message_bytes", config.grpc.max_message_bytes, config.grpc.addresses),
        ("http.max_body_bytes", config.http.max_body_bytes, config.http.addresses),
    )
    for key, wanted, addresses in edges:
        if addresses and wanted > room:
            least = "the lesser of the largest class and arena.memory_limit_bytes"
            told = f"one request gets at most {room} bytes, {least}"
            yield "arena.classes", f"{told}, but {key} lets {wanted} bytes in; raise those or lower {key}"
        if addresses and wanted > queue:
            told = f"all queues together hold {queue} bytes, but {key} lets {wanted} bytes in"
            yield "scheduling.max_queued_bytes", f"{told}; raise the one or lower the other"


CONTRADICTIONS: Final[tuple[WholeCheck, ...]] = (
    _source_contradictions,
    _size_contradictions,
    _trace_contradictions,
    _address_contradictions,
    _name_contradictions,
)
"""Settings that cannot be had together: keys of such, and why. Each is asked where what it needs could be read."""
