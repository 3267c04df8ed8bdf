"""Try a runtime: all cases in processes of their own, then once in a worker."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from appliance.domain.device_wish import ON_CPU, DeviceWish
from appliance.domain.errors import OperatorError
from appliance.runtimes.runtime import known_runtimes
from appliance.tools.conformance.child import ABSENT
from appliance.tools.conformance.identity import identity_version, version_directory, write_onnx
from appliance.tools.conformance.jailed import jailed
from appliance.tools.conformance.outcome import Outcome, from_line
from appliance.workers.daemon.zygote_client import environment_of_workers


def check_runtime(name: str, model: Path | None, device: DeviceWish = ON_CPU) -> Iterator[Outcome]:
    """Give the outcomes one by one; ``model`` None: the identity model as ONNX. Raises OperatorError for a name that no
    installed package offers and for a runtime that cannot be had here, and ArtefactError for a model that is not
    there."""
    if name not in known_runtimes():
        raise OperatorError(
            f"no installed package offers a runtime '{name}'; known here: {', '.join(known_runtimes())}"
        )
    with tempfile.TemporaryDirectory(prefix="appliance-runtime-") as home:
        nothing = Path(home, "nothing")
        nothing.mkdir()
        folder = version_directory(model) if model else write_onnx(Path(home))
        told = 0
        for outcome in _in_processes(name, folder, nothing, device):
            if outcome.name == ABSENT:
                raise OperatorError(outcome.text)
            told += 1
            yield outcome
        if told > 1:  # else it cannot even be made, nor could a zygote make it
            yield jailed(identity_version(name, str(folder), device))


def _in_processes(name: str, folder: Path, nothing: Path, device: DeviceWish) -> Iterator[Outcome]:
    program = [sys.executable, "-P", "-m", "appliance.tools.conformance.child"]
    command = [*program, name, str(folder), str(nothing), str(device.first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment_of_workers()) as child:
        assert child.stdout is not None
        yield from map(from_line, child.stdout)
    if child.returncode:
        text = f"the process that forks the others ended with status {child.returncode}"
        yield Outcome("forks", "The process with the runtime forks others", holds=False, text=text)
