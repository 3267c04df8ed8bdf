"""The process in which a runtime is tried: ``python -m appliance.tools.conformance.child NAME FOLDER EMPTY DEVICE``.

It is what the zygote is: it makes the runtime and forks a process for each case, in which the model is loaded. On
standard output go lines of JSON, one for each outcome. A case that ends its process, or never ends, is told as that. Of
a runtime that cannot be had here nothing is tried, and the only line says why.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from appliance.domain.device import DeviceKind, parse_device
from appliance.domain.device_wish import DeviceWish
from appliance.domain.errors import ConfigInvalid
from appliance.process.life import die_with_parent
from appliance.runtimes.runtime import Runtime, lacking, open_runtimes
from appliance.tools.conformance.cases import CASES, DEVICE, Case, NotConforming, Rig
from appliance.tools.conformance.identity import identity_version
from appliance.tools.conformance.outcome import Outcome

CASE_S: Final = 120
"""As long as a box gives a load."""
TEXT_MAX: Final = 4096
"""Characters of what is wrong: all of it goes into the pipe before anybody reads."""
ABSENT: Final = "absent"
"""In the place of a case: the runtime cannot be had here, or not for a device."""
MADE: Final = "made"
NO_THREADS: Final = "It can be made, which leaves no thread behind"


def main(arguments: list[str]) -> int:
    """Try everything; 0 also when something fails, since that was said."""
    die_with_parent(os.getppid())
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer

    def say(outcome: Outcome) -> None:
        os.write(answers, outcome.to_line())

    name, folder, nothing, device = arguments
    try:
        runtime = open_runtimes([name])[name]
    except ConfigInvalid as problem:
        say(Outcome(ABSENT, "", holds=False, text=problem.problems[0].text))
        return 0
    except Exception as problem:  # noqa: BLE001 - whatever a vendor's library does is what is asked here
        say(Outcome(MADE, NO_THREADS, holds=False, text=_words(problem)))
        return 0
    kind = parse_device(device).kind
    if kind is not DeviceKind.CPU and (why := lacking(runtime)):
        say(Outcome(ABSENT, "", holds=False, text=f"runtime '{name}' runs nothing on a device here: {why}"))
        return 0
    threads = _threads()
    version = identity_version(name, folder, DeviceWish(kind))
    rig = Rig(runtime, version, replace(version, path=nothing))
    if kind is not DeviceKind.CPU and not (found := apart(DEVICE, rig)).holds:
        say(Outcome(ABSENT, "", holds=False, text=found.text))
        return 0
    say(made(runtime, name, threads))
    gc.collect()
    gc.freeze()  # as the zygote does: no case finds what another process left to be swept
    for case in CASES:
        say(apart(case, rig))
    return 0


def made(runtime: Runtime, name: str, threads: Sequence[str]) -> Outcome:
    """A fork keeps the calling thread alone: locks that another one holds stay locked for ever."""
    text = ""
    if len(threads) > 1:
        text = f"the process has {len(threads)} threads ({', '.join(threads)}); start threads in load, not before"
    elif runtime.name != name:
        text = f"its name is '{runtime.name}', its entry point is called '{name}'"
    return Outcome(MADE, NO_THREADS, holds=not text, text=text)


def _threads() -> list[str]:
    """The names of this process's threads."""
    return [(each / "comm").read_text().strip() for each in sorted(Path("/proc/self/task").iterdir())]


def apart(case: Case, rig: Rig, patience_s: float = CASE_S) -> Outcome:
    """Run a case in a process of its own, which is ended where it says nothing for so long."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _run(case, rig, lambda said: os.write(writing, json.dumps(said).encode() + b"\n"))
    os.close(writing)
    with open(reading, "rb") as end:
        poller = select.poll()
        poller.register(end, select.POLLIN)
        in_time = bool(poller.poll(patience_s * 1_000))
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        said = end.readline() if in_time else b""  # one that it leaves behind may keep the pipe open
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if said:
        holds, text = json.loads(said)
        return Outcome(case.name, case.demands, holds=holds, text=text)
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    text = f"its process ended {how}" if in_time else f"did not end within {patience_s:.0f} s"
    return Outcome(case.name, case.demands, holds=False, text=text)


def _run(case: Case, rig: Rig, say: Callable[[tuple[bool, str]], int]) -> None:
    """In the forked process. Never returns."""
    try:
        say((True, case.run(rig)))
    except NotConforming as problem:
        say((False, str(problem)[:TEXT_MAX]))
    except BaseException as problem:  # noqa: BLE001 - as above
        say((False, _words(problem)))
    finally:
        os._exit(0)  # a worker ends so, too


def _words(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"[:TEXT_MAX]


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
