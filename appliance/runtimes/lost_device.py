"""A CUDA device that is lost to this process: only another process can have it again."""

from __future__ import annotations

import os
import signal
import sys

from appliance.devices.cuda import Cuda


def end_if_lost(cuda: Cuda, key: str, problem: Exception) -> None:
    """End the process if its context is lost, of which ``problem`` tells; another one is started in its place."""
    if not cuda.alive():
        print(f"{key}: CUDA is lost to this process: {problem}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGABRT)
