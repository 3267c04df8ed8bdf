"""Holds the interpreter's lock of a daemon for as long as a test wants: no Python runs there meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

from tests.architecture.sources import ROOT

HOLDER = '''
import ctypes, os, sys, threading

def hold():
    """Whenever somebody opens HOLD_GO, run HOLD_COMMAND without letting go of the interpreter."""
    while True:
        open(os.environ["HOLD_GO"]).close()
        ctypes.PyDLL(None).system(os.environ["HOLD_COMMAND"].encode())

if "serve" in sys.orig_argv:
    threading.Thread(target=hold, daemon=True).start()
'''


class Hold:
    """For a daemon that was started with ``environment``: held within each block. Keeps its files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(HOLDER)
        self._go, self._held, self._release = (str(folder / name) for name in ("go", "held", "release"))
        for path in (self._go, self._held, self._release):
            os.mkfifo(path)
        self.environment = {
            "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "HOLD_GO": self._go,
            "HOLD_COMMAND": f"echo >'{self._held}'; read word <'{self._release}'",
        }

    def __enter__(self) -> None:
        with open(self._go, "w"):
            pass
        with open(self._held) as held:
            held.read()

    def __exit__(self, *_: object) -> None:
        with open(self._release, "w") as release:
            release.write("go on\n")
