"""What a model cost where it was measured, in a file: 'bench --json' writes it, 'pack --measured' reads it.

Also read is the short form that a manifest has, with the values of one batch size.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.domain.binding import bind
from appliance.domain.errors import ConfigInvalid, Problem
from appliance.domain.manifest import Measured
from appliance.domain.model import ModelVersion
from appliance.package.conformity import RUNTIME, installed_release
from appliance.process.processors import this_processor
from appliance.tools.evaluation.jobs import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Benched(Measurement):
    """A measurement, of what, and ``on`` which machine, in words."""

    model: str
    version: int
    on: str


def benched(version: ModelVersion, found: Measurement, threads: int) -> Benched:
    """``found``, which was measured here on so many threads."""
    values = {name: getattr(found, name) for name in Measurement.__slots__}
    return Benched(
        model=version.name, version=version.version, on=place_text(threads, found.accelerator), **values
    )


def place_text(threads: int, accelerator: str = "") -> str:
    """This machine in words: its processor, on so many threads, its ``accelerator`` where one is used, the runtime."""
    runtime = f"{RUNTIME} {installed_release()}".strip()
    parts = (
        this_processor() or platform.machine(),
        f"{threads} thread{'s' * (threads > 1)}",
        accelerator,
        runtime,
    )
    return ", ".join(filter(None, parts))


def to_json(found: Benched) -> str:
    """The contents of the file. Releases before this one refuse keys that they do not know: the accelerator is in
    ``on`` as well, and that rows mix is told only where they do."""
    told = asdict(found)
    del told["accelerator"]
    if not found.rows_mix:
        del told["rows_mix"]
    return json.dumps(told)


def read_cost(file: Path) -> Measured:
    """What the file says, of several batch sizes the smallest. Raises ConfigInvalid with all problems, OSError and
    ValueError when it cannot be read."""
    table = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(table, dict):
        raise ValueError("not a JSON object")
    if "variants" in table:
        raise ValueError("this is the output of bench --variants; run bench without it")
    if "speeds" not in table:
        return bind(Measured, table, str(file))
    found = bind(Benched, table, str(file))
    if not found.speeds:
        raise ConfigInvalid(
            [Problem(file=str(file), key="speeds", text="are none; measure at least one size")]
        )
    speed = min(found.speeds, key=lambda each: each.rows)
    return Measured(
        on=found.on,
        memory_bytes=found.memory_bytes,
        load_ns=found.load_ns,
        rows=speed.rows,
        p50_ns=speed.p50_ns,
        p99_ns=speed.p99_ns,
    )
