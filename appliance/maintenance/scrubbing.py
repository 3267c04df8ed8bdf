"""Have the store scrubbed while the daemon serves from it, and tell what was found. Owner: the event loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from appliance.config.store import StoreConfig
from appliance.domain.errors import OperatorError
from appliance.maintenance.space import SpaceWatch
from appliance.store.scrub import ScrubRecord, due_s, read_record

S_PER_H: Final = 3600
RETRY_S: Final = 600.0
"""Before the next try, when a pass failed."""
LONGEST_SLEEP_S: Final = 3600.0
"""The wall clock may be stepped meanwhile."""
DAMAGE_LOOK_S: Final = 10.0
"""How soon a repair is seen; looking is to read the small record."""
COMPLAINT_BYTES: Final = 2000


class Scrubbing:
    """One pass each ``store.scrub_interval_h``. ``wall_ms`` is the wall clock, ``report`` writes a log line."""

    def __init__(
        self, state: Path, config: StoreConfig, wall_ms: Callable[[], int], report: Callable[..., None]
    ) -> None:
        self._state = state.absolute()
        self._config = config
        self._wall_ms = wall_ms
        self._report = report
        self._record = ScrubRecord()
        self._told: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None
        self.disk = SpaceWatch(state, config)
        self.passes = 0
        self.failures = 0

    @property
    def record(self) -> ScrubRecord:
        """What was found, by the end of the last pass."""
        return self._record

    def start(self) -> None:
        """Begin, and look at the disk meanwhile."""
        self.disk.start()
        self._task = asyncio.create_task(self._scrub_now_and_then())

    async def stop(self) -> None:
        """End a pass under way; what it read is remembered."""
        await self.disk.stop()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _scrub_now_and_then(self) -> None:
        while True:
            try:
                pause_s = await self._scrub_if_due()
            except Exception as problem:  # noqa: BLE001  whatever it is, a store that is not read any more is worse
                self.failures += 1
                reason = str(problem) or type(problem).__name__
                self._report("the store cannot be scrubbed", reason=reason, again_in_s=RETRY_S)
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)

    async def _scrub_if_due(self) -> float:
        """One pass, if it is time for one; gives how long there is nothing to do then. Raises OperatorError, and
        OSError or RuntimeError where the system has no process or thread to give."""
        await self._read()
        due = due_s(self._record, self._config.scrub_interval_h * S_PER_H, self._wall_ms())
        if due:
            return min(due, DAMAGE_LOOK_S if self._record.damaged else LONGEST_SLEEP_S)
        await self._pass()
        await self._read()
        self.passes += 1
        self._report("the store was scrubbed", blobs=self._record.blobs, bytes=self._record.bytes)
        return 0.0

    async def _read(self) -> None:
        """Read the record and tell what is damaged since. Raises OperatorError and OSError."""
        self._record = await asyncio.get_running_loop().run_in_executor(None, read_record, self._state)
        for damage in self._record.damaged:
            if damage.digest not in self._told:
                self._report(
                    "a blob of the store is damaged; install its package again",
                    digest=damage.digest,
                    reason=damage.text,
                )
        self._told = frozenset(damage.digest for damage in self._record.damaged)

    async def _pass(self) -> None:
        """One pass. Raises OperatorError when it failed, OSError when it cannot begin."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "appliance.maintenance.scrub_process"),
            *(str(self._state), str(self._config.scrub_bytes_per_s), str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
            raise
        if process.returncode:
            words = said[-COMPLAINT_BYTES:].decode(errors="replace").strip()
            raise OperatorError(words or f"its process ended with status {process.returncode}")
