"""Write one file with what is needed to understand this box: versions, settings, state, figures, log lines.

Whatever is there is taken, whether or not an appliance runs; what is missing is listed, with the reason, in
contents.json, the first file of the archive. Run it as root for all of it, or as the service's user. No private keys,
tokens, models or tensors are in it. The archive is readable by nobody else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from appliance import __version__
from appliance.cli import endpoint, store_session
from appliance.cli.arguments import add_output, configuration_at, free_target
from appliance.cli.diagnosis import secrets
from appliance.cli.diagnosis.archive import SUFFIX, contents_of, packed, write
from appliance.cli.diagnosis.catalogue import Box, parts
from appliance.cli.diagnosis.collection import Taken, collect
from appliance.cli.diagnosis.redaction import Redactor
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.image.configure import IN_FORCE
from appliance.cli.terminal import print_text, steps_bar
from appliance.config.tree import ApplianceConfig
from appliance.domain.moment import moment
from appliance.domain.quantity import bytes_text

STATE: Final = Path("/var/lib/appliance")
"""Where the units have it, for where no configuration says so."""
ELSEWHERE: Final = Path("/var/tmp")
DISKS: Final = ("/", "/var", "/etc", "/run", "/tmp", "/dev/shm", "/boot", "/efi")
OWN_WORDS: Final = ("url", "ca", "cert", "key", "server_name")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_output(
        parser,
        f"the archive, or the directory for it (default: here, or {ELSEWHERE} where nothing can be written here)",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help=f"the box's configuration (default: {IN_FORCE}, if it is there)",
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        help="its state directory (default: what the configuration says)",
    )
    endpoint.add_arguments(parser, config=False)
    parser.add_argument(
        "--json", action="store_true", help="print the table of contents and where the file is"
    )


def run(arguments: argparse.Namespace) -> int:
    """Take what is there and write it down."""
    at_ms, began_s = store_session.wall_ms(), time.monotonic()
    name = _name(at_ms)
    target = free_target(arguments.output or _here(), f"{name}{SUFFIX}", force=arguments.force)
    box, config = _box(arguments)
    redactor = Redactor(secrets.kept(config, box.state, box.root))
    with steps_bar("diagnose", quiet=arguments.json) as show:
        taken = tuple(collect(parts(box), redactor, show))
    head = {
        "appliance": __version__,
        "host": redactor.redact(platform.node()).text,
        "at": moment(at_ms),
        "user": os.geteuid(),
        "took_s": round(time.monotonic() - began_s, 1),
        "configuration": redactor.redact(str(box.file or "")).text,
        "state_dir": redactor.redact(str(box.state or "")).text,
    }
    contents = contents_of(head, taken)
    data = packed(name, contents, taken, at_ms // 1000)
    try:
        write(target, data)
    except OSError as error:
        raise CommandFailed(
            f"'{target}' cannot be written: {error.strerror}; give --output where there is room"
        ) from error
    if arguments.json:
        print(json.dumps({"file": str(target.absolute()), "bytes": len(data), **contents}, indent=2))
    else:
        _tell(target, len(data), taken)
    return Exit.OK


def _name(at_ms: int) -> str:
    host = re.sub(r"[^A-Za-z0-9-]+", "-", platform.node()).strip("-") or "box"
    return f"appliance-{host[:64]}-{moment(at_ms, '%Y%m%dT%H%M%SZ')}"


def _here() -> Path:
    here = Path()
    return here if os.access(here, os.W_OK | os.X_OK) else ELSEWHERE


def _box(arguments: argparse.Namespace) -> tuple[Box, ApplianceConfig]:
    """The box as it can be known without asking it, and its configuration or, where that is of no use, the defaults."""
    file: Path | None = arguments.config
    if file is None and os.path.lexists(IN_FORCE):
        file = IN_FORCE
    config, trouble = ApplianceConfig(), ""
    try:
        config = configuration_at(file)
    except CommandFailed as failure:
        trouble = str(failure)
    state: Path | None = arguments.state_dir
    if state is None:
        is_unsaid = bool(trouble) or file is None
        said = STATE if is_unsaid and STATE.is_dir() else config.state_dir
        state = Path(said) if said else None
    box = Box(
        file=file,
        trouble=trouble,
        state=state,
        endpoint=_endpoint(arguments),
        disks=tuple(dict.fromkeys([*map(Path, DISKS), Path(config.models), *([state] if state else [])])),
        log=config.log.file,
    )
    return box, config


def _endpoint(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The words by which commands find what serves, as this command was told."""
    given: dict[str, Any] = {name: getattr(arguments, name) for name in OWN_WORDS}
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value)


def _tell(target: Path, size: int, taken: Sequence[Taken]) -> None:
    missing = [each for each in taken if each.data is None]
    there = len(taken) - len(missing)
    print(
        f"{printable(str(target))}: {there} parts, {bytes_text(size)}; {len(missing)} are missing", flush=True
    )
    paths: dict[str, list[str]] = {}
    for each in missing:
        paths.setdefault(each.note, []).append(each.part.path)
    for note, lacking in paths.items():
        print_text(printable(f"  {', '.join(lacking)}: {note}"))
    if os.geteuid():
        print("As root it has more: the journal, and what belongs to the service's user.")
