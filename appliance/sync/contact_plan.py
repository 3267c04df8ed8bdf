"""When there is a link at all, for boxes behind satellites that pass: a file with a line for each contact. Pure,
but for reading it.

    2026-11-24T19:00:00Z 2026-11-24T19:08:30Z 125000 600

are begin and end, bytes per second (0: no bound but the configured one), and milliseconds to the other end and back,
which are for people: what waits for an answer waits half a minute and longer anyway.
Empty lines and what follows a # say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from appliance.domain.errors import ArtefactError
from appliance.domain.regular_file import read_file

LINES_MAX: Final = 100_000
BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A contact: from ``begin_ms`` to before ``end_ms`` by the wall clock."""

    begin_ms: int
    end_ms: int
    bytes_per_s: int = 0


class PlanInvalid(ValueError):
    """A contact plan that cannot be read; ``problems`` are all of it, by line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems[:8]))
        self.problems = tuple(problems)


def passes_of(text: str) -> tuple[Pass, ...]:
    """The contacts of a plan, in order of their begin. Raises PlanInvalid."""
    found, problems = [], []
    for number, line in enumerate(text.splitlines()[:LINES_MAX], 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            begin, end = (_ms(word) for word in words[:2])
            rate, latency = (int(word) for word in words[2:])
        except ValueError:
            problems.append(f"line {number} is not BEGIN END BYTES_PER_SECOND LATENCY_MS")
            continue
        if end <= begin or rate < 0 or latency < 0:
            problems.append(f"line {number} ends before it begins, or has a number below zero")
        else:
            found.append(Pass(begin_ms=begin, end_ms=end, bytes_per_s=rate))
    if problems:
        raise PlanInvalid(problems)
    return tuple(sorted(found, key=lambda each: each.begin_ms))


def pass_at(passes: Sequence[Pass], wall_ms: int) -> Pass | None:
    """The contact of now; the fastest where several are."""
    now = [each for each in passes if each.begin_ms <= wall_ms < each.end_ms]
    return max(now, key=lambda each: each.bytes_per_s or float("inf"), default=None)


def next_in_s(passes: Sequence[Pass], wall_ms: int) -> float | None:
    """In how many seconds the next contact begins; None: there is none in the plan."""
    return min(((each.begin_ms - wall_ms) / 1000 for each in passes if each.begin_ms > wall_ms), default=None)


def plan_problems(place: str) -> Iterator[str]:
    """What keeps the file ``place`` from being a contact plan; "" stands for none."""
    try:
        passes_in(place)
    except PlanInvalid as error:
        yield from (f"{place}: {each}" for each in error.problems)
    except (ArtefactError, ValueError) as error:
        yield f"'{place}' cannot be read: {error if isinstance(error, ArtefactError) else 'it is no text'}"


def passes_in(place: str) -> tuple[Pass, ...]:
    """The contacts of the plan in that file; "" stands for none. Raises PlanInvalid, ValueError and ArtefactError."""
    return passes_of(read_file(place, BYTES_MAX, called="it").decode()) if place else ()


def _ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return int(moment.timestamp() * 1000)
