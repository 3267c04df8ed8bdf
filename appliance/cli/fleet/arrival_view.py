"""What a person who waits for a wish sees of it: a picture that changes where there is a terminal, lines else."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

from appliance.cli.failure import printable
from appliance.cli.fleet.view import ago, left_s, span
from appliance.cli.terminal import print_text
from appliance.fleet.arrival import Arrival, Place, Standing, Wished

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Show = Callable[[Arrival, str], None]
"""Told where devices are, and why that could not be asked, if so."""
WORDS: Final = {
    Place.REFUSED: "refused it or went back",
    Place.HELD: "held",
    Place.COMING: "on the way",
    Place.UNHEARD: "not heard from since",
}
STYLES: Final = {Place.REFUSED: "red", Place.HELD: "red", Place.COMING: "yellow", Place.UNHEARD: "magenta"}
LISTED_MAX: Final = 20
"""Devices that are named at the end."""
TOLD_CHARACTERS: Final = 1000
"""Of what a device says, on one line: it may say a thousand times as much."""
FRAME_LINES: Final = 6
"""Lines of a screen beside the devices: the bar, the counts, trouble, the titles, how to end it, the cursor's."""
BAR_CELLS: Final = 24
REFRESH_PER_S: Final = 4
ENDS: Final = "Ctrl-C ends the waiting; the wish stays"


def counts(wished: Wished, arrival: Arrival) -> str:
    """How many devices are where."""
    total = len(arrival.standings)
    if not total:
        return "no device was looked at so far"
    others = [f"{count} {word}" for place, word in WORDS.items() if (count := arrival.count(place))]
    there = f"{wished.comes_true} on {arrival.count(Place.SERVES)} of {total} device{'s' * (total > 1)}"
    return ", ".join([there, *others])


def expected(arrival: Arrival) -> str:
    """How many of the devices that are to be heard from are expected, and within what; "" where none is."""
    due = [within_s for each in arrival.standings if (within_s := _within_s(each)) > 0]
    return f"; {len(due)} ask{'s' * (len(due) == 1)} again within {span(max(due))}" if due else ""


def _within_s(standing: Standing) -> int:
    """In how many seconds it has asked again; 0 and less: it was to by now, or that is not known. Clocks of desk and
    controller may differ: it is never longer than its longest pause."""
    longest_s = (standing.due_ms - standing.seen_ms) / 1000
    return math.ceil(min(left_s(standing.due_ms), longest_s)) if standing.due_ms else 0


def _due_text(standing: Standing) -> str:
    """When it is to ask next, where that is known, in few words: a line of the picture has room for no more."""
    within_s = _within_s(standing)
    next_ = f"next within {span(within_s)}" if within_s > 0 else "next is overdue"
    return f", {next_}" if standing.due_ms else ""


def line(standing: Standing) -> str:
    """Where one device is, what serves there and why."""
    if standing.place is Place.SERVES or not standing.serving:
        return f"{standing.device}: {_words(standing)}"
    said = "it said that it serves" if standing.place is Place.UNHEARD else "it serves"
    return f"{standing.device}: {_words(standing)}; {said} version {standing.serving}"


def outstanding_lines(arrival: Arrival) -> list[str]:
    """A line for each device that is not there, if they are not too many."""
    found = arrival.outstanding()
    left = len(found) - LISTED_MAX
    more = [f"and {left} more; 'appliance fleet devices --not-there' shows all"] if left > 0 else []
    return [*map(line, found[:LISTED_MAX]), *more]


def stay_lines(outstanding: Sequence[tuple[str, float]]) -> list[str]:
    """A line for each device that did not say long enough that it serves, if they are not too many."""
    left = len(outstanding) - LISTED_MAX
    lines = [
        f"{device}: serves it, last heard {span(int(after_s))} after it began"
        for device, after_s in outstanding[:LISTED_MAX]
    ]
    return [*lines, *([f"and {left} more"] if left > 0 else [])]


def document(wished: Wished, arrival: Arrival, outcome: str, waited_s: float) -> dict[str, Any]:
    """The same for programs."""
    return {
        "outcome": outcome,
        "model": wished.model,
        "version": wished.version,
        "waited_s": round(waited_s, 1),
        "devices": len(arrival.standings),
        "counts": {place.value: arrival.count(place) for place in reversed(Place)},
        "standings": [
            {
                "device": each.device,
                "place": each.place.value,
                "serving": each.serving,
                "phase": each.phase,
                "reason": each.reason,
                "seen_ms": each.seen_ms,
            }
            for each in arrival.standings
        ],
        "wished_otherwise": list(arrival.apart),
    }


@contextmanager
def shown(wished: Wished, *, json: bool) -> Iterator[Show]:
    """Show it while it goes on: on standard output, or on standard error where that one is for a document."""
    stream = sys.stderr if json else sys.stdout
    if stream.isatty():
        with _picture(wished, stream) as show:
            yield show
    elif json:
        yield lambda _arrival, _trouble: None
    else:
        yield _printer(wished)


def say(text: str) -> None:
    """Print a line. Where nobody reads it any more, the waiting goes on: its exit status is waited for as well."""
    try:
        print_text(text, below="  ")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printer(wished: Wished) -> Show:
    """Print what is new: the counts, at first with when devices are expected, those that are somewhere else than
    before, trouble."""
    before: dict[str, tuple[Place, str]] = {}
    said = ""

    def show(arrival: Arrival, trouble: str) -> None:
        nonlocal said
        now = {each.device: (each.place, each.phase) for each in arrival.standings}
        moved = [each for each in arrival.standings if before and before.get(each.device) != now[each.device]]
        text = trouble or counts(wished, arrival)
        wait = "" if trouble or before else expected(arrival)
        for each in (*map(line, moved), *([text + wait] if text != said else [])):
            say(printable(each))
        said = text
        before.update(now)

    return show


@contextmanager
def _picture(wished: Wished, stream: TextIO) -> Iterator[Show]:
    """A picture in the terminal that ``stream`` is; it is gone at the end."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, began_s = Console(file=stream), time.monotonic()
    last: list[tuple[Arrival, str]] = []

    def picture() -> RenderableType:
        if not last:
            return Text("asks the controller")
        return frame(wished, *last[-1], console, int(time.monotonic() - began_s))

    with Live(
        console=console, get_renderable=picture, refresh_per_second=REFRESH_PER_S, transient=True
    ) as live:

        def show(arrival: Arrival, trouble: str) -> None:
            last[:] = [(arrival, trouble)]
            live.refresh()

        yield show


def frame(wished: Wished, arrival: Arrival, trouble: str, console: Console, waited_s: int) -> RenderableType:
    """The picture: a bar, how many devices are where, and those that are not there, as many as there is room for."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    from appliance.cli.text_table import Column, TextTable

    there, total = arrival.count(Place.SERVES), len(arrival.standings)
    clock = f"{waited_s // 3600}:{waited_s // 60 % 60:02}:{waited_s % 60:02}"
    bar = ProgressBar(total=max(total, 1), completed=there, width=BAR_CELLS)
    head = Columns([Text(printable(wished.what), "bold"), bar, Text(clock)])
    rest = arrival.outstanding()
    rows = [[Text(printable(each.device)), Text(str(each.serving or "-")), _shown(each)] for each in rest]
    columns = (Column(title="device", left=True), Column(title="serves"))
    table = TextTable(
        columns=columns, rows=rows, tail="stands", lines=max(console.size.height - FRAME_LINES, 3)
    )
    return Group(
        head,
        Text(counts(wished, arrival)),
        *([Text(printable(trouble), "red")] if trouble else []),
        *([table] if rows else []),
        Text(ENDS, "dim"),
    )


def _shown(standing: Standing) -> Any:
    from rich.text import Text

    return Text(printable(_words(standing)), STYLES.get(standing.place, ""))


def _words(standing: Standing) -> str:
    """Where it is, and why as far as it said."""
    if standing.place is Place.SERVES:
        return "serves it" if standing.serving else "serves nothing of it"
    if standing.place is Place.UNHEARD:
        last = f"last {ago(standing.seen_ms)} ago" if standing.seen_ms else "never heard from at all"
        return f"not heard from since the wish; {last}{_due_text(standing)}"
    said, phase = shortened(standing.reason), shortened(standing.phase)
    if standing.place is Place.COMING:
        return f"{said}{_due_text(standing)}"
    return f"{phase if standing.place is Place.REFUSED else 'held'}: {said.removeprefix('held ')}"


def shortened(text: str) -> str:
    """Of a text that is long, how it begins."""
    return text if len(text) <= TOLD_CHARACTERS else f"{text[:TOLD_CHARACTERS]} ..."


def apart_text(names: Sequence[str]) -> str:
    """Whose own wish is another one."""
    return f"not waited for, another version is wished for it alone: {', '.join(names)}"
