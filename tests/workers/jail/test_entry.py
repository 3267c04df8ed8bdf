"""The whole jail, entered by real processes: what a worker has afterwards, and what it has not."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from appliance import configuration
from appliance.domain.model import FormRoom, ModelVersion, Warmup, WarmupInput, WeightsFile
from appliance.process.calls import prctl
from appliance.workers.confinement import confine_all
from appliance.workers.jail.access import FileAccess, FormSite, access_to, access_to_build
from appliance.workers.jail.entry import Jail, runtime_files
from appliance.workers.jail.landlock import OUT_OF_THE_WAY
from appliance.workers.jail.support import Support
from appliance.workers.jail.user import UserIds, workers_user
from tests.workers.bench import FP32_PAIR, spec, version_of
from tests.workers.jail.forked import SUPPORT, in_fork, needs_filters, needs_landlock, outcome

GET_DUMPABLE = 3
GET_PDEATHSIG = 2
NOBODY = (65534, 65534)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
DIGEST = "d" * 64


def jailed(
    access: FileAccess,
    do: Callable[[], object],
    *,
    support: Support = SUPPORT,
    site: str = "",
    user: UserIds = (),
    devices: tuple[str, ...] = (),
) -> str:
    def inside() -> object:
        confine_all()
        entered = Jail(support, runtime_files(), devices).enter(access, site, user)
        said = do()
        for descriptor in entered.kept:
            os.close(descriptor)
        return said

    return in_fork(inside)


@needs_landlock
def test_python_goes_on_importing_what_it_has() -> None:
    def tries() -> list[str]:
        importlib.invalidate_caches()
        return [importlib.import_module(name).__name__ for name in ("wave", "plistlib", "xmlrpc.client")]

    assert jailed(FileAccess(), tries) == str(["wave", "plistlib", "xmlrpc.client"])


def test_of_the_directories_named_to_the_loader_those_count_that_it_found_something_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(runtime_files())
    maps = Path("/proc/self/maps").read_text().split()
    used = next(os.path.dirname(path) for path in maps if "/libc.so" in path)
    monkeypatch.setenv("LD_LIBRARY_PATH", f":.:/:{tmp_path}:{used}")
    assert set(runtime_files()) - before <= {used}
    assert used in runtime_files()
    assert f"{sys.base_prefix}/lib" in runtime_files()


@needs_filters
def test_memory_that_is_not_counted_as_its_own_cannot_be_had() -> None:
    def tries() -> list[str]:
        shared, private = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        droppable = 0x08 | mmap.MAP_ANONYMOUS
        return [
            outcome(lambda: mmap.mmap(-1, 4096, flags=shared)),
            outcome(lambda: mmap.mmap(-1, 4096, flags=droppable)),
            outcome(lambda: os.memfd_create("more")),
            outcome(lambda: mmap.mmap(-1, 4096, flags=private)),
            outcome(lambda: os.open("/dev/zero", os.O_RDONLY)),
        ]

    refused, denied = "Operation not permitted", "Permission denied" if SUPPORT.landlock else "done"
    assert jailed(FileAccess(), tries) == str([refused, refused, refused, "done", denied])


@needs_landlock
def test_what_all_have_in_common_is_opened_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    jail, really = Jail(SUPPORT, runtime_files()), os.open

    def note(path: str, flags: int) -> int:
        opened.append(path)
        return really(path, flags)

    def enter() -> list[object]:
        confine_all()
        jail.enter(FileAccess(reads=(str(tmp_path),)))
        return opened

    monkeypatch.setattr(os, "open", note)
    assert in_fork(enter) == str(["/proc/self", str(tmp_path)])


@needs_landlock
def test_what_a_worker_opens_for_its_jail_is_out_of_the_way_of_what_it_keeps() -> None:
    """In a process of its own, which has hardly any open."""
    program = (
        "from appliance.workers.jail.landlock import Grant, open_grants\n"
        "(opened,) = open_grants([Grant('/proc/self')])\n"
        "print(opened.descriptor)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert OUT_OF_THE_WAY <= int(done.stdout) < OUT_OF_THE_WAY + 16


@needs_landlock
def test_links_lead_below_the_models_home_in_reads_and_nowhere_in_roots(tmp_path: Path) -> None:
    for name in ("one", "two", "beside"):
        (tmp_path / name).mkdir()
    (tmp_path / "beside/file").write_text("x")
    (tmp_path / "one/link").symlink_to(tmp_path / "beside/file")
    (tmp_path / "two/link").symlink_to(tmp_path / "beside")

    def tries() -> list[str]:
        return [outcome((tmp_path / "one/link").read_bytes), outcome((tmp_path / "two/link/file").read_bytes)]

    denied = "Permission denied"
    (tmp_path / "one/loot").symlink_to("/")
    read = FileAccess(reads=(str(tmp_path / "one"),), home=str(tmp_path))
    away = read._replace(home=str(tmp_path / "one"))
    rooted = FileAccess(roots=(str(tmp_path / "one"), str(tmp_path / "two")))
    assert jailed(read, lambda: outcome((tmp_path / "one/link").read_bytes)) == "done"
    assert jailed(away, lambda: outcome((tmp_path / "one/link").read_bytes)) == denied
    assert jailed(read, lambda: outcome(lambda: os.listdir(tmp_path / "one/loot"))) == denied
    assert jailed(rooted, tries) == str([denied, denied])


@needs_filters
@needs_landlock
def test_a_builder_writes_at_its_site_and_lists_what_is_counted(tmp_path: Path) -> None:
    forms, blobs = tmp_path / "forms", tmp_path / "blobs"
    for directory in (forms, forms / "site", forms / "other", blobs):
        directory.mkdir()
    (forms / "other/weights.bin").write_text("w")
    (blobs / "blob").write_text("b")
    site = FormSite(str(forms), DIGEST, "onnx", str(blobs), 1000)

    def tries() -> list[str]:
        return [
            outcome(lambda: (forms / "site/graph.onnx").write_bytes(bytes(1000))),
            outcome(lambda: (forms / "site/large").write_bytes(bytes(1001))),
            outcome(lambda: os.stat(forms / "other/weights.bin")),
            str(os.listdir(forms / "other")),
            str(os.listdir(blobs)),
            outcome((forms / "other/weights.bin").read_bytes),
            outcome((forms / "other/weights.bin").unlink),
            outcome((blobs / "blob").read_bytes),
            outcome((forms / "more").mkdir),
        ]

    denied = "Permission denied"
    assert jailed(FileAccess(site=site), tries, site=str(forms / "site")) == str(
        [
            *("done", "File too large", "done", "['weights.bin']", "['blob']", denied, denied, denied),
            "Operation not permitted",
        ]
    )


def test_it_is_bounded_and_powerless() -> None:
    def tries() -> str:
        status = Path("/proc/self/status").read_text()
        held = [int(line.split()[1], 16) & ~4 for line in status.splitlines() if line.startswith("CapEff")]
        limits = (
            resource.RLIMIT_NOFILE,
            resource.RLIMIT_NPROC,
            resource.RLIMIT_FSIZE,
            resource.RLIMIT_MSGQUEUE,
            resource.RLIMIT_NICE,
            resource.RLIMIT_RTPRIO,
        )
        hard = [resource.getrlimit(number)[1] for number in limits]
        return f"{held} {hard[0] <= 4096} {hard[1] <= 4096} {hard[2:]}"

    assert jailed(FileAccess(), tries) == "[0] True True [0, 0, 0, 0]"


@pytest.mark.parametrize(("landlock", "dumpable"), [(0, 0), (SUPPORT.landlock, int(SUPPORT.landlock > 0))])
def test_its_memory_is_closed_to_others_where_landlock_does_not_see_to_that(
    landlock: int, dumpable: int
) -> None:
    said = jailed(FileAccess(), lambda: prctl(GET_DUMPABLE), support=Support(landlock, SUPPORT.filter))
    assert said == str(dumpable)


def test_a_kernel_without_anything_is_served_all_the_same() -> None:
    assert (
        jailed(FileAccess(), lambda: outcome(Path("/etc/hostname").stat), support=Support(0, False)) == "done"
    )


@needs_filters
@needs_landlock
def test_a_worker_with_devices_keeps_its_calls_but_those_that_lead_outwards() -> None:
    def tries() -> list[str]:
        return [
            outcome(lambda: os.waitpid(os.fork() or os._exit(0), 0)),
            outcome(lambda: mmap.mmap(-1, 4096)),
            outcome(lambda: os.memfd_create("more")),
            outcome(lambda: socket.socket(socket.AF_UNIX).close()),
            outcome(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
            outcome(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
            outcome(lambda: os.execv("/bin/true", ["true"])),
            outcome(lambda: os.open("/dev/tty", os.O_RDWR)),
        ]

    refused = "Operation not permitted"
    assert jailed(FileAccess(devices=True), tries) == str(
        [*["done"] * 4, *[refused] * 3, "Permission denied"]
    )


@needs_landlock
@pytest.mark.parametrize(
    ("drives", "named", "said"),
    [
        (True, ("/dev/ful*",), "No space left on device"),
        (True, (), "Permission denied"),
        (False, ("/dev/ful*",), "Permission denied"),
    ],
)
def test_devices_that_a_runtime_names_are_for_workers_that_drive_some(
    drives: bool, named: tuple[str, ...], said: str
) -> None:
    """A device that refuses each write by itself, once it may be opened."""

    def tries() -> str:
        return outcome(lambda: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))

    support = Support(SUPPORT.landlock, False)
    assert jailed(FileAccess(devices=drives), tries, support=support, devices=named) == said


@needs_landlock
@needs_filters
@pytest.mark.parametrize(
    ("devices", "own", "others"),
    [(True, "done", "Permission denied"), (False, "Operation not permitted", "Operation not permitted")],
)
def test_who_drives_a_device_may_name_its_threads(devices: bool, own: str, others: str) -> None:
    """As cuInit does, which fails where it cannot."""

    def tries() -> list[str]:
        path = f"/proc/self/task/{os.getpid()}/comm"
        return [
            outcome(lambda: Path(path).write_text("named")),
            outcome(lambda: Path("/proc/1/comm").write_text("x")),
        ]

    assert jailed(FileAccess(devices=devices), tries) == str([own, others])


def test_what_a_version_needs_is_its_own(tmp_path: Path) -> None:
    forms = tmp_path / "forms"
    for name in (f"{DIGEST}-{'a' * 16}", f"{'e' * 64}-{'a' * 16}"):
        (forms / name).mkdir(parents=True)
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").touch()
    version: ModelVersion = version_of(
        tmp_path / "m/1/model.onnx",
        *FP32_PAIR,
        weights=WeightsFile(path=str(tmp_path / "w/weights.bin"), size=4),
        golden=str(tmp_path / "m/golden/set.json"),
        warmups=(
            Warmup(
                name="w",
                batch_size=1,
                count=1,
                inputs=(
                    WarmupInput(
                        spec=spec("x", FP32_PAIR[0][0].datatype, 4), file=str(tmp_path / "m/warmup/x")
                    ),
                ),
            ),
        ),
        digest=DIGEST,
        forms=str(forms),
    )
    access = access_to(version)
    assert access.reads == (
        str(tmp_path / "m/1"),
        str(tmp_path / "m/warmup"),
        str(tmp_path / "w"),
        str(tmp_path / "m/golden"),
        str(forms / f"{DIGEST}-{'a' * 16}"),
    )
    assert not access.devices
    site = access_to_build(replace(version, form_room=FormRoom(state="/counted"))).site
    assert site == FormSite(str(forms), DIGEST, "onnx", "/counted/blobs", 64 << 20)


def test_a_model_of_no_file_needs_none() -> None:
    assert access_to(version_of("", *FP32_PAIR, runtime="fake")) == FileAccess()


@pytest.mark.parametrize(
    ("support", "lacking", "kept_from"),
    [
        (Support(7, True), [], ("files", "network", "signals", "calls")),
        (Support(5, True), ["signals"], ("files", "network", "calls")),
        (Support(2, True), ["files", "network", "signals"], ("files", "calls")),
        (Support(0, False), ["calls", "files, network, signals"], ()),
    ],
)
def test_what_is_lacking_is_named(support: Support, lacking: list[str], kept_from: tuple[str, ...]) -> None:
    assert [text.partition(":")[0] for text in support.lacking] == lacking
    assert support.kept_from == kept_from


@pytest.mark.parametrize(
    ("asked", "support", "problems"),
    [
        ("auto", Support(0, False), 0),
        ("required", Support(7, True), 0),
        ("required", Support(5, True), 1),
        ("required", Support(0, False), 2),
    ],
)
def test_a_kernel_that_lacks_a_part_is_refused_where_all_are_required(
    monkeypatch: pytest.MonkeyPatch, asked: str, support: Support, problems: int
) -> None:
    monkeypatch.setattr(configuration, "kernel_support", lambda: support)
    assert len(list(configuration.confinement_problems(asked))) == problems


@needs_root
def test_roots_worker_becomes_a_user_of_its_own_and_goes_on_reading_roots_models(tmp_path: Path) -> None:
    own, site = tmp_path / "own", tmp_path / "site"
    for directory in (own, site):
        directory.mkdir(mode=0o700)
    os.chown(site, *NOBODY)
    (own / "model").write_text("m")
    (own / "model").chmod(0o600)

    def tries() -> list[str]:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return [
            *(" ".join(status[name].split()) for name in ("Uid", "Gid", "Groups", "CapEff")),
            outcome((own / "model").read_bytes),
            outcome(lambda: (own / "model").write_text("x")),
            outcome(lambda: (site / "form").write_text("x")),
        ]

    access = FileAccess(reads=(str(own),), site=FormSite(str(tmp_path), DIGEST, "onnx", str(tmp_path), 1000))
    said = jailed(access, tries, site=str(site), user=NOBODY)
    ids = " ".join(["65534"] * 4)
    denied = "Permission denied"
    assert said == str([ids, ids, "", "0000000000000004", "done", denied, "done"])
    assert (site / "form").stat().st_uid == NOBODY[0]


@needs_root
def test_who_became_another_user_still_ends_with_its_parent() -> None:
    def told() -> int:
        number = ctypes.c_int()
        prctl(GET_PDEATHSIG, ctypes.addressof(number))
        return number.value

    assert jailed(FileAccess(), told, support=Support(0, False), user=NOBODY) == str(int(signal.SIGKILL))


@pytest.mark.parametrize(("name", "ids"), [("nobody", 2), ("root", 0), ("no such user", 0)])
@needs_root
def test_whom_workers_become(name: str, ids: int) -> None:
    assert len(workers_user(name)) == ids


@needs_root
def test_workers_become_nobody_else_where_that_would_take_from_them_what_they_need() -> None:
    def ordinary() -> object:
        os.setuid(NOBODY[0])
        return workers_user("nobody")

    assert in_fork(ordinary) == "()"
    assert jailed(FileAccess(), lambda: workers_user("nobody")) == "()", "root's without capabilities"


@needs_root
def test_an_ordinary_user_needs_no_privilege_for_it() -> None:
    def inside() -> str:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        confine_all()
        Jail(SUPPORT, runtime_files()).enter(FileAccess())
        status = Path("/proc/self/status").read_text()
        (held,) = (line.split()[1] for line in status.splitlines() if line.startswith("CapPrm"))
        return f"{int(held, 16)} {outcome(Path('/etc/passwd').read_bytes)}"

    assert in_fork(inside) == f"0 {'Permission denied' if SUPPORT.landlock else 'done'}"
