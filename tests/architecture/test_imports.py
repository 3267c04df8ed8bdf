"""Imports point downward, edges know nothing of one another, and a vendor's library is met in one place."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.architecture.rust import product_code_of, rust_files
from tests.architecture.sources import ROOT, Import, imports_of, name_of, python_files

LEVELS: Mapping[str, int] = {
    "domain": 0, "durable": 0,
    "config": 1, "devices": 1, "process": 1,
    "core/scheduling": 2, "core/memory": 2, "core/processes": 2, "repository/onnx": 2, "runtimes": 2, "store": 2,
    "frontend/listening": 2, "fleet": 2, "outbox": 2,
    "core/rollout": 3, "workers": 3, "repository": 3,
    "workers/child": 4, "workers/daemon": 4, "sources": 4, "package": 4,
    "telemetry": 5, "transfer": 5,
    "maintenance": 6, "frontend/quotas": 6, "frontend/regions": 6, "frontend/statuses": 6, "frontend/turns": 6,
    "engine/port": 7, "engine/environment": 7, "engine/inbox": 7,
    "engine/versions": 8,
    "engine/fastpath": 9,
    "engine/requests": 10,
    "engine/control": 11,
    "engine": 12,
    "reconciler": 13, "frontend/port": 13, "frontend/documents": 13,
    "frontend/grpc": 14, "frontend/http": 14,
    "frontend/native": 15,
    "frontend": 16,
    "sync": 16, "controller": 16, "image": 16,
    "configuration": 17,
    "daemon": 18,
    "cli": 19,
    "tools": 20,
    "tools/packaging": 21, "tools/variants": 21,
    "tools/evaluation": 22, "tools/conformance": 22,
    "tools/commands": 23,
}  # fmt: skip
"""Rooms of one level do not import one another, but for the words of level 0. A folder that is not named here belongs
to the room above it."""

VENDORS: Mapping[str, tuple[str, ...]] = {
    "PIL": ("appliance/cli/picture.py",),
    "aiohttp": (
        "appliance/frontend/http/",
        "appliance/transfer/",
        "appliance/sync/",
        "appliance/controller/",
        "appliance/image/place.py",
    ),
    "alembic": ("appliance/controller/",),
    "blake3": ("appliance/domain/digest.py",),
    "cryptography": (
        "appliance/package/keys.py",
        "appliance/sync/",
        "appliance/controller/",
    ),
    "edge_appliance_native": ("appliance/frontend/native/", "appliance/workers/child/leased.py"),
    "google": (
        "appliance/frontend/grpc/",
        "appliance/cli/oip_client.py",
        "appliance/tools/packaging/weights.py",
    ),
    "grpc": (
        "appliance/frontend/grpc/server.py",
        "appliance/cli/connection.py",
        "appliance/cli/oip_client.py",
        "appliance/cli/model/load.py",
    ),
    "grpc_health": ("appliance/frontend/grpc/health.py",),
    "grpc_reflection": ("appliance/frontend/grpc/reflection.py",),
    "inotify_simple": ("appliance/sources/watcher.py",),
    "msgpack": ("appliance/workers/messages.py",),
    "msgspec": ("appliance/fleet/", "appliance/transfer/", "appliance/controller/", "appliance/sync/"),
    "numpy": (
        "appliance/runtimes/",
        "appliance/tools/",
        "appliance/cli/array.py",
        "appliance/transfer/",
    ),
    "onnx": ("appliance/tools/packaging/weights.py", "appliance/tools/variants/"),
    "onnxruntime": (
        "appliance/runtimes/onnx.py",
        "appliance/runtimes/onnx_cuda.py",
        "appliance/runtimes/onnx_sessions.py",
        "appliance/tools/variants/conversion.py",
    ),
    "pynvml": ("appliance/devices/nvml.py",),
    "prometheus_client": ("appliance/telemetry/metrics/process.py",),
    "rich": ("appliance/cli/", "appliance/tools/commands/"),
    "securesystemslib": (
        "appliance/package/keys.py",
        "appliance/package/trust.py",
        "appliance/sync/signed_metadata.py",
        "appliance/controller/bundles.py",
    ),
    "sqlalchemy": ("appliance/controller/",),
    "structlog": ("appliance/telemetry/log.py",),
    "tensorrt": ("appliance/runtimes/tensorrt/vendor.py",),
    "tuf": (
        "appliance/sync/signed_metadata.py",
        "appliance/controller/root.py",
        "appliance/controller/signing.py",
    ),
    "uvloop": ("appliance/daemon/daemon.py",),
    "zstandard": (
        "appliance/transfer/",
        "appliance/sync/",
        "appliance/controller/",
    ),
}
LINKED = ("cli", "tools", "sync", "transfer", "controller", "image")
"""What is no part of serving, and may connect to something."""
IMPURE = frozenset(
    {"asyncio", "logging", "multiprocessing", "os", "random", "select", "socket", "threading", "time"}
)

OURS = [found for path in python_files("appliance") for found in imports_of(path)]


def room_of(module: str) -> str:
    """The room of a dotted name, which is the longest of its folders that has a level; "" for the package itself."""
    parts = module.split(".")[1:]
    places = ("/".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((place for place in places if place in LEVELS), "/".join(parts[:1]))


def home_of(found: Import) -> str:
    return room_of(found.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))


def violations() -> list[str]:
    wrong = []
    for found in OURS:
        there = room_of(found.module) if found.module.split(".")[0] == "appliance" else ""
        here = home_of(found)
        if not there or here == there:
            continue
        down = LEVELS[there] < LEVELS[here] or LEVELS[there] == LEVELS[here] == 0
        if not down:
            wrong.append(f"{found.file}:{found.line} imports {found.module}")
    return wrong


def test_every_room_has_a_level() -> None:
    rooms = {
        room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in python_files("appliance")
    }
    assert rooms - {"__init__", "core", ""} == set(LEVELS)


def test_imports_point_downward() -> None:
    assert not violations()


def test_modules_do_not_import_in_circles() -> None:
    """What only type checkers see counts as well; a package stands for its ``__init__`` alone."""
    graph: dict[str, set[str]] = {}
    for found in OURS:
        if found.module.startswith("appliance"):
            name = found.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            graph.setdefault(name, set()).add(found.module)
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for below in graph.get(module, ()):
                walk(below, (*trail, module))
            done.add(module)

    for module in graph:
        walk(module, ())


def test_vendor_libraries_have_one_place_each() -> None:
    wrong = []
    for found in OURS:
        top = found.module.split(".")[0]
        if top == "appliance" or top in sys.stdlib_module_names:
            continue
        if not found.file.startswith(VENDORS.get(top, ("nowhere",))):
            wrong.append(
                f"{found.file}:{found.line} imports {top}, whose place is {VENDORS.get(top, 'not chosen')}"
            )
    assert not wrong


def test_the_table_of_vendors_has_no_dead_entry() -> None:
    met = {(found.module.split(".")[0], found.file) for found in OURS}
    dead = [
        f"{vendor} in {place}"
        for vendor, places in VENDORS.items()
        for place in places
        if not any(top == vendor and file.startswith(place) for top, file in met)
    ]
    assert not dead


def test_the_scheduler_sees_no_clock_and_no_system() -> None:
    impure = [
        found for found in OURS if home_of(found).startswith("core") and found.module.split(".")[0] in IMPURE
    ]
    assert not impure


def test_nothing_is_pickled() -> None:
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    assert not [found for found in OURS if found.module.split(".")[0] in forbidden]


def test_what_serves_connects_to_nothing() -> None:
    """But for its own Unix sockets, which are tried before they are taken, and that of systemd, which is told."""
    opening = re.compile(
        r"\.connect\(|create_connection\(|\.send(?:msg|to)\(|urlopen\(|ClientSession\(|[a-z]secure_channel\("
    )
    ours = [path for path in python_files("appliance") if path.relative_to(ROOT).parts[1] not in LINKED]
    found = {name_of(path) for path in ours if opening.search(path.read_text(encoding="utf-8"))}
    assert found == {"appliance/domain/address.py", "appliance/telemetry/notify.py"}
    native = [path for path in rust_files() if "::connect(" in product_code_of(path)]
    assert not native
    clients = {"http", "urllib", "requests", "httpx", "ftplib", "smtplib"}
    assert not [
        each
        for each in OURS
        if each.module.split(".")[0] in clients
        and not each.file.startswith(("appliance/cli/", "appliance/tools/"))
        and each.module not in ("urllib.parse", "http")
    ]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("appliance.core.scheduling.scheduler", {"asyncio", "logging", "grpc", "numpy"}),
        (
            "appliance.daemon.daemon",
            {"onnxruntime", "onnx", "numpy", "rich", "PIL", "appliance.runtimes.onnx", "appliance.tools"},
        ),
        ("appliance.configuration", {"onnxruntime", "numpy", "rich", "uvloop"}),
        (
            "appliance.workers.child.zygote",
            {"grpc", "aiohttp", "asyncio", "structlog", "prometheus_client", "rich", "appliance.tools"},
        ),
        ("appliance.repository.directory", {"asyncio", "grpc", "google", "onnx", "numpy"}),
        ("appliance.cli.main", {"grpc", "rich", "asyncio", "numpy", "appliance.tools"}),
        ("appliance.cli.serve", {"numpy", "onnx", "appliance.tools"}),
        (
            "appliance.sync.agent",
            {
                "grpc",
                "onnxruntime",
                "onnx",
                "numpy",
                "rich",
                "uvloop",
                "structlog",
                "appliance.engine.engine",
            },
        ),
        (
            "appliance.sync.trust_file",
            {"grpc", "onnxruntime", "numpy", "urllib3", "requests", "tuf.ngclient", "asyncio", "aiohttp"},
        ),
    ],
)
def test_what_importing_a_module_does_not_load(module: str, absent: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert not absent & set(done.stdout.split())


def test_the_configuration_loads_none_of_its_owners() -> None:
    """Every section and the whole tree, for a process that is no daemon."""
    modules = sorted(path.stem for path in (ROOT / "appliance" / "config").glob("*.py"))
    program = f"import sys; from appliance.config import {', '.join(m for m in modules if m != '__init__')}"
    command = [sys.executable, "-c", f"{program}; print(*sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    ours = {module for module in loaded if module.startswith("appliance.")}
    assert ours
    assert {module.split(".")[1] for module in ours} == {"config", "domain"}
    assert not loaded & {"asyncio", "grpc", "aiohttp", "structlog", "prometheus_client", "cryptography"}


def test_only_the_daemon_and_the_store_commands_look_at_the_wall_clock() -> None:
    """A clock that is stepped back an hour changes nothing but the time of day in statistics, log lines and the
    catalog's notes of when something was done."""
    looks = re.compile(r"time\.time(_ns)?\(|datetime\.(now|utcnow)|time\.(localtime|gmtime)\(")
    where = {
        name_of(path) for path in python_files("appliance") if looks.search(path.read_text(encoding="utf-8"))
    }
    assert where == {
        "appliance/daemon/parts.py",
        "appliance/cli/store_session.py",
        "appliance/maintenance/scrub_process.py",
        "appliance/cli/fleet/view.py",
        "appliance/controller/server.py",
    }


def test_no_process_of_ours_looks_for_modules_where_it_is_started() -> None:
    """``python -m`` puts the working directory, which may have come with a hostile model, in front of everything."""
    started = [
        f"{path}: {line.strip()}"
        for path in python_files("appliance")
        for line in path.read_text().splitlines()
        if '"-m"' in line and "sys.executable" in line and '"-P"' not in line
    ]
    assert not started
