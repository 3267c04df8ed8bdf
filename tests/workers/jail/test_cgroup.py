"""Cgroups of workers, by the kernel's own where this machine has a hierarchy of the second version to be written to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.workers.jail.access import FileAccess
from appliance.workers.jail.cgroup import LEAF, TASKS_MAX, WorkerCgroups, enter, move_to_leaf
from appliance.workers.port import WorkerExited
from tests.workers.bench import FOUR, FREE, Bench, fake
from tests.workers.jail.forked import in_fork


@pytest.fixture
def delegated() -> Iterator[Path]:
    """One that is given away, as systemd does it."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    mount = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    if mount is None or not os.access(mount, os.W_OK):
        pytest.skip("no cgroups of the second version that can be made")
    made = mount / f"appliance-test-{os.getpid()}"
    made.mkdir()
    os.setxattr(made, "user.delegate", b"1")
    yield made
    (made / "cgroup.kill").write_text("1")
    for path in (*made.glob("*/"), made):
        while path.exists():  # what was killed is still in it
            with suppress(OSError):
                path.rmdir()


def inside(cgroup: Path, do: Callable[[], object]) -> str:
    def moved() -> object:
        (cgroup / "cgroup.procs").write_text("0")
        return do()

    return in_fork(moved)


def own_cgroup(pid: int | str = "self") -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line[3:] for line in lines if line.startswith("0::"))


def test_the_daemon_moves_to_a_leaf_once(delegated: Path) -> None:
    leaf = f"/{delegated.name}/{LEAF}"
    assert inside(delegated, lambda: f"{move_to_leaf()} {own_cgroup()}") == f" {leaf}"
    assert inside(delegated / LEAF, lambda: f"{move_to_leaf()} {own_cgroup()}") == f" {leaf}"


@pytest.mark.skipif(os.geteuid() != 0, reason="what others may write to was given to them")
def test_what_root_may_write_to_is_not_taken_by_that_alone(delegated: Path) -> None:
    os.removexattr(delegated, "user.delegate")
    said = inside(delegated, lambda: f"{move_to_leaf()}; {own_cgroup()}")
    assert said.endswith(f"is not delegated: its unit has no Delegate=; /{delegated.name}")
    assert not (delegated / LEAF).exists()
    (delegated / LEAF).mkdir()
    assert inside(delegated / LEAF, lambda: WorkerCgroups().make(1, FREE, 0)) == "None"


def test_the_root_is_nobody_s_to_share_out() -> None:
    if own_cgroup() != "/":
        pytest.skip("tests run in a cgroup of their own")
    assert "no cgroup" in in_fork(move_to_leaf)
    assert in_fork(lambda: WorkerCgroups().make(1, FREE, 0)) == "None"


def runs(pid: str) -> bool:
    """Whether the process is more than what its parent has yet to be told of."""
    try:
        status = Path("/proc", pid, "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "\nState:\tZ" not in status


def test_all_that_a_worker_has_forked_ends_with_it(delegated: Path) -> None:
    """Also what is no child of anybody who knows it."""

    def daemon() -> str:
        assert move_to_leaf() == ""
        bench = Bench()
        try:
            worker = bench.start(FREE)
            pid = bench.pids[worker]
            model = bench.load(worker, fake("fork"))
            bench.run(worker, model, bench.place([FOUR], [0]))
            (path,) = delegated.glob("worker-*")
            held = (path / "cgroup.procs").read_text().split()
            there = own_cgroup(pid) == f"/{delegated.name}/{path.name}"
            bench.call(bench.pool.kill, worker, ExitCause.HUNG)
            bench.event(WorkerExited)
            while path.exists():
                bench.load(other := bench.start(FREE), fake())
                bench.call(bench.pool.stop, other)
                bench.event(WorkerExited)
            return f"{len(held)} {there} {any(map(runs, held))}"
        finally:
            bench.close()

    assert inside(delegated, daemon) == "2 True False"


def test_what_a_zygote_left_behind_ends_with_the_next_one(delegated: Path) -> None:
    left = delegated / "worker-1-1"
    left.mkdir()
    readable, writable = os.pipe()

    def daemon() -> str:
        assert move_to_leaf() == ""
        stray = os.fork()
        if stray == 0:
            enter(left)
            os.write(writable, b"x")
            signal.pause()
        os.read(readable, 1)
        cgroups = WorkerCgroups()
        _, status = os.waitpid(stray, 0)
        cgroups.sweep()
        return f"{os.WTERMSIG(status)} {left.exists()}"

    assert inside(delegated, daemon) == "9 False"


def test_what_another_zygote_or_anybody_else_has_there_is_left_alone(delegated: Path) -> None:
    """As of a second appliance in the same unit, or of one that an operator tries in the container."""

    def there() -> set[str]:
        WorkerCgroups()
        return {path.name for path in delegated.glob("worker-*")}

    def daemon() -> str:
        assert move_to_leaf() == ""
        zygote = os.fork()
        if zygote == 0:
            signal.pause()
        for name in (own := f"worker-{zygote}-1", "worker-1-1", "worker-pool", "worker-1-x"):
            (delegated / name).mkdir()
        with_it = there()
        os.kill(zygote, signal.SIGKILL)
        os.waitpid(zygote, 0)
        return f"{own in with_it} {sorted(with_it - {own})} {sorted(there())}"

    others = ["worker-1-x", "worker-pool"]
    assert inside(delegated, daemon) == f"True {others} {others}"


def test_there_are_bounds_where_there_are_controllers(delegated: Path) -> None:
    controllers = set((delegated / "cgroup.controllers").read_text().split())
    if not controllers >= {"memory", "pids"}:
        pytest.skip("this hierarchy bounds neither memory nor tasks")

    def daemon() -> str:
        assert move_to_leaf() == ""
        made = WorkerCgroups().make(
            7, FREE._replace(memory_limit_bytes=1 << 20, access=FileAccess()), 1 << 20
        )
        assert made is not None
        bounds = (made / name for name in ("pids.max", "memory.oom.group", "memory.max"))
        return " ".join(each.read_text().strip() for each in bounds)

    assert inside(delegated, daemon) == f"{TASKS_MAX} 1 {2 << 20}"
