"""Takes part after part, each within its bounds and all within theirs; nothing that is missing stops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.cli.diagnosis import program, texts
from appliance.cli.diagnosis.part import MIB, Files, Outcome, Part, Program
from appliance.cli.diagnosis.redaction import Redactor

WHOLE_S: Final = 300.0
WHOLE_BYTES: Final = 48 * MIB
LATE: Final = Outcome(data=None, note="left out: the time that all parts have together was over")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A part that was taken, or is missing (``data`` None), and how many secrets were taken out of it; ``said``: where
    it is from."""

    part: Part
    said: str
    data: bytes | None
    note: str
    redacted: int = 0


def collect(
    parts: Sequence[Part],
    redactor: Redactor,
    show: Callable[[int, int, str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Taken]:
    """Each part in its order; ``show`` is told what is taken next."""
    end_s, left = clock() + WHOLE_S, WHOLE_BYTES
    for number, part in enumerate(parts):
        show(number, len(parts), part.about)
        outcome = _take(part, left) if clock() < end_s else LATE
        said, note = (redactor.redact(each).text for each in (part.source.said, outcome.note))
        if outcome.data is None:
            yield Taken(part=part, said=said, data=None, note=note)
            continue
        text, found = redactor.redact(outcome.data.decode(errors="replace"))
        data = text.encode()
        left = max(0, left - len(data))
        yield Taken(part=part, said=said, data=data, note=note, redacted=found)


def _take(part: Part, left: int) -> Outcome:
    source = part.source
    if isinstance(source, Program | Files) and not left:
        return Outcome(
            data=None, note=f"left out: the archive has the {WHOLE_BYTES >> 20} MiB that it may have"
        )
    if isinstance(source, Program):
        return program.run(source, min(source.limit_bytes, left))
    if isinstance(source, Files):
        return texts.read(source, left)
    return Outcome(data=None, note=source.reason)
