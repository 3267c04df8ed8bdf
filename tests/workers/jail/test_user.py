"""Workers of root that are another user: they build, serve and are ended as all others are."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import LoadWish
from appliance.workers.port import FormBuilt, WorkerExited
from tests.workers.bench import PLAIN, Bench
from tests.workers.transformers import DIGEST, answer, load, stop, write_version

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_workers_of_another_user_build_serve_and_are_ended(tmp_path: Path) -> None:
    bench = Bench(runtimes=("onnx",))
    try:
        forms = tmp_path / "forms"
        version = replace(write_version(tmp_path), digest=DIGEST, forms=str(forms))
        settings = PLAIN._replace(user=(NOBODY, NOBODY))
        builder = bench.start(settings.building(version))
        bench.call(bench.pool.build_form, builder, 500, version)
        built = bench.event(FormBuilt)
        assert built.failure is None
        stop(bench, builder)
        assert {each.stat().st_uid for each in (forms / built.name, *(forms / built.name).iterdir())} == {0}
        worker = bench.start(settings)
        assert load(bench, worker, version, LoadWish()).packed
        answer(bench, worker, 100)
        assert Path(f"/proc/{bench.pids[worker]}/task").stat().st_uid == NOBODY
        assert Path(f"/proc/{bench.pids[worker]}/smaps_rollup").read_text()
        bench.call(bench.pool.kill, worker, ExitCause.HUNG)
        assert bench.event(WorkerExited).cause is ExitCause.HUNG
    finally:
        bench.close()
