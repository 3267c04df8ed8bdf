"""Do jobs of evaluation in a process of its own, and tell how each ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from appliance.domain.errors import ArtefactError, ModelInvalid, Problem
from appliance.tools.evaluation.jobs import (
    Candidate,
    CompareJob,
    Comparison,
    Converted,
    ConvertJob,
    Equivalence,
    EquivalenceJob,
    GoldenJob,
    GoldenMade,
    MeasureJob,
    Measurement,
    Progress,
    Trial,
    TrialJob,
    from_plain,
    to_plain,
)

ENVIRONMENT: Final[Mapping[str, str]] = {
    "ORT_DISABLE_TELEMETRY": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 20),
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts, and workers
}

SILENCE_S: Final = 600
"""How long a process that does a job may say nothing, besides what the job gives it for measuring. Between two lines
lie at most a load, which a box gives two minutes, some runs, each of which it gives ten seconds, or the making of a
variant, which takes minutes for the largest models."""
LINES_BYTES: Final = 1 << 16

T = TypeVar("T")
Job = MeasureJob | GoldenJob | ConvertJob | CompareJob | EquivalenceJob | TrialJob


class ProcessEnded(ArtefactError):
    """The process that did a job ended without a result, as when the runtime crashes on a model."""


class ProcessSilent(ProcessEnded):
    """The process that did a job was ended since it did not go on, as when a model runs without end. ``what`` is the
    text without the model's name."""

    def __init__(self, source: str, what: str) -> None:
        super().__init__(f"'{source}' {what}")
        self.what = what


def measure(job: MeasureJob, progress: Progress) -> Measurement:
    """What a version costs. Raises ArtefactError when it cannot be loaded or run, here and below."""
    return _try("measure", job, Measurement, progress)


def make_golden(job: GoldenJob, progress: Progress) -> GoldenMade:
    """Write a golden set."""
    return _try("golden", job, GoldenMade, progress)


def convert(job: ConvertJob, progress: Progress) -> Converted:
    """Write a variant."""
    return _try("convert", job, Converted, progress)


def try_precision(job: TrialJob, progress: Progress) -> Trial:
    """What a precision costs and is worth."""
    return _try("try", job, Trial, progress)


def compare(job: CompareJob, progress: Progress) -> Comparison:
    """Hold variants against the original. Where that ends the process, each is tried alone, and the one that does it
    says so, while the others are compared."""
    try:
        return _try("compare", job, Comparison, progress)
    except ProcessEnded:
        if not job.files:
            raise
        broken = list(_that_end_it(job, progress))
        if not broken:
            raise
        files = {method: file for method, file in job.files.items() if method not in dict(broken)}
        rest = compare(replace(job, files=files), progress)
        told = tuple(Candidate(method=method, problem=problem) for method, problem in broken)
        return replace(rest, candidates=(*rest.candidates, *told))


def _that_end_it(job: CompareJob, progress: Progress) -> Iterator[tuple[str, str]]:
    """The variants that end a process that tries them alone, and how."""
    for method, file in job.files.items():
        try:
            _try("compare", replace(job, files={method: file}), Comparison, progress)
        except ProcessSilent as silent:
            yield method, f"it {silent.what}"
        except ProcessEnded as ended:
            yield method, str(ended)


def check_equivalence(job: EquivalenceJob) -> Equivalence:
    """Compare two forms of a model. Raises ModelInvalid when they differ or a box would refuse what they answer,
    ArtefactError when it runs without end; a process that ends by itself proves nothing."""
    try:
        found = _try("compare-forms", job, Equivalence, lambda _done, _total, _text: None)
    except ProcessSilent as error:
        raise ArtefactError(f"it {error.what}; --no-proof packs it without being run") from error
    except ArtefactError as error:
        return Equivalence(unproven=str(error))
    if wrong := found.differs or found.refusal:
        raise ModelInvalid([Problem(file=job.source, key="", text=wrong)])
    return found


def _try(action: str, job: Job, kind: type[T], progress: Progress) -> T:
    command = [sys.executable, "-P", "-m", "appliance.tools.evaluation.child", action]
    silence_s = SILENCE_S + getattr(job, "budget_ms", 0) / 1_000
    last, at = b"", "start"
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=_environment()
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                with suppress(BrokenPipeError), child.stdin as end:
                    end.write(json.dumps(to_plain(job)).encode())
                for line in _lines(child.stdout, silence_s):
                    last = line
                    if "progress" in (said := json.loads(line)):
                        done, total, at = said["progress"]
                        progress(done, total, at)
            except TimeoutError as error:
                child.kill()
                what = f"did not go on for {silence_s:,.0f} s (at: {at}); the process that tried it was ended"
                raise ProcessSilent(job.source, what) from error
            except BaseException:
                child.kill()
                raise
        errors.seek(0)
        return _result(last, kind, child.returncode, errors.read().decode(errors="replace"))


def _lines(out: IO[bytes], silence_s: float) -> Iterator[bytes]:
    """The lines of a pipe until it is closed. Raises TimeoutError when nothing comes for so long."""
    begun, poller = b"", select.poll()  # any descriptor, also one above those that select() takes
    poller.register(out, select.POLLIN)
    while poller.poll(silence_s * 1_000):
        data = os.read(out.fileno(), LINES_BYTES)
        if not data:
            return
        *whole, begun = (begun + data).split(b"\n")
        yield from whole
    raise TimeoutError


def _result(last: bytes, kind: type[T], status: int, errors: str) -> T:
    said: Mapping[str, Any] = json.loads(last) if last else {}
    if "result" in said:
        return from_plain(kind, said["result"])
    if "refused" in said:
        raise ArtefactError(said["refused"])
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    lines = [line for line in errors.splitlines() if line.strip()]
    raise ProcessEnded(f"the process that tried it {how}{f': {lines[-1][:300]}' if lines else ''}")


def _environment() -> dict[str, str]:
    environment = {**os.environ, **ENVIRONMENT}
    root = Path(__file__).resolve().parents[3]
    if root != Path(sysconfig.get_path("purelib")).resolve():  # run from a source tree
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{inherited}" if inherited else str(root)
    return environment
