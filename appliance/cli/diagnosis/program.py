"""A program that is run for what it prints: bounded in time and bytes, and ended with all that it started.

One that cannot be ended, as it waits for a disk or a driver that does not answer, is left behind and not waited for.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from appliance.cli.diagnosis.part import Outcome, Program
from appliance.cli.failure import printable

OURS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "appliance": "import sys; from appliance.cli.main import main; sys.exit(main())",
        "reading": "import sys; from appliance.cli.diagnosis.readings import TABLE; "
        "sys.exit(TABLE.run(sys.argv[1:]))",
    }
)
"""Programs of this product, in processes of their own so that none of them can hold up or end the others."""
SPOKEN: Final = MappingProxyType({"LC_ALL": "C.UTF-8", "COLUMNS": "200"})
FOUND: Final = MappingProxyType({"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
"""Where the system's programs are looked for, whatever whoever runs this has in front of that."""
CHUNK_BYTES: Final = 1 << 16
STDERR_BYTES: Final = 16 << 10
NOTE_CHARACTERS: Final = 600
END_S: Final = 2.0


@dataclass(slots=True)
class _Printed:
    """What came so far; changed by ``_read`` alone. ``trouble`` is why there is no more."""

    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    trouble: str = ""


def run(program: Program, limit_bytes: int) -> Outcome:
    """Run it, and take no more than ``limit_bytes`` of what it prints."""
    try:
        process = subprocess.Popen(
            _command(program.words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(program.words),
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(data=None, note=f"'{program.words[0]}' cannot be run: {error.strerror}")
    printed = _Printed()
    try:
        _read(process, printed, time.monotonic() + program.limit_s, limit_bytes)
        if not printed.trouble:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
    finally:
        status = process.returncode
        _end(process)
    return _outcome(program, printed, status, limit_bytes)


def _command(words: Sequence[str]) -> list[str]:
    if words[0] in OURS:
        return [sys.executable, "-P", "-c", OURS[words[0]], *words[1:]]
    return list(words)


def _environment(words: Sequence[str]) -> dict[str, str]:
    return {**os.environ, **SPOKEN, **({} if words[0] in OURS else FOUND)}


def _read(process: subprocess.Popen[bytes], printed: _Printed, end_s: float, limit_bytes: int) -> None:
    """Take in what it prints until it prints no more, ``end_s`` is there, or there is enough of it."""
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, printed.out)
        selector.register(process.stderr, selectors.EVENT_READ, printed.err)
        while selector.get_map():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                printed.trouble = "it took longer than it may and was ended"
                return
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.data is printed.out or len(printed.err) < STDERR_BYTES:
                    key.data.extend(chunk)
            if len(printed.out) > limit_bytes:
                printed.trouble = f"cut after {limit_bytes} bytes"
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have it gone, and with it what it started: while it was not waited for, its group has its number."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _outcome(program: Program, printed: _Printed, status: int | None, limit_bytes: int) -> Outcome:
    data = bytes(printed.out[:limit_bytes])
    if printed.trouble:
        data = data[: data.rfind(b"\n") + 1]
    if program.noted is not None:
        data = _noted(data, program.noted)
    lines = map(str.strip, printed.err.decode(errors="replace").splitlines())
    said = printable("; ".join(filter(None, lines)))[:NOTE_CHARACTERS]
    ended = f"exit status {status}" if status else ""
    note = "; ".join(each for each in (printed.trouble, ended, said) if each)
    if data:
        return Outcome(data=data, note=note)
    return Outcome(data=None, note=said or note or "there is nothing to tell")


def _noted(data: bytes, noted: re.Pattern[str]) -> bytes:
    """The lines that are of note; a line ends where the program ended it, and not at what else Unicode has for it."""
    lines = data.decode(errors="replace").split("\n")
    return "".join(f"{line}\n" for line in lines if line and noted.search(line)).encode()
