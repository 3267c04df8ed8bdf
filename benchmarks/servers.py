"""How each server is started, when it counts as ready, and how it is ended.

Every server is a process group of its own; leaving `running` ends the whole tree by its process ids and reaps it.
This is the only file that knows the appliance's command line, its configuration keys and its metric names.
"""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import grpc

from benchmarks.cache import ROOT
from benchmarks.payload import RequestWriter
from benchmarks.peers import mlserver, triton
from benchmarks.peers.setup import install_folder, missing
from benchmarks.process import descendants

MODEL_READY = "/inference.GRPCInferenceService/ModelReady"
READY_ANSWER = b"\x08\x01"
HTTP_READY = "/v2/health/ready"
POLL_S = 0.005
STOP_GRACE_S = 15.0
APPLIANCE = Path(sys.executable).with_name("appliance")
STALLING = ROOT / "benchmarks" / "stalling"
STALL_COUNT = "BENCH_STALL_COUNT"
ROOM_FOR_CONNECTIONS = 19000
TRITON_CONTROLLED = "triton_controlled"


class ServerFailed(RuntimeError):
    """A server ended early or never became ready; carries the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Free ports of 127.0.0.1, chosen just before a start."""

    grpc: int
    http: int
    metrics: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command line and what its process needs. `authority` signed its certificate, when it speaks TLS; `control` is
    the address where models are loaded, when that is not where requests go."""

    argv: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    authority: Path | None = None
    control: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server under test. `missing` says why it cannot run here, or None."""

    name: str
    launch: Callable[[Path, Path, Ports], Launch]
    missing: Callable[[], str | None]
    metrics_port: Callable[[Ports], int] | None = None
    queue_gauge: str | None = None


@dataclass(slots=True, kw_only=True)
class Running:
    """A started server; owned by the `running` block that made it."""

    server: Server
    launch: Launch
    process: subprocess.Popen[bytes]
    ports: Ports
    log: Path
    started_s: float

    @property
    def target(self) -> str:
        """HOST:PORT of its gRPC service."""
        return f"127.0.0.1:{self.ports.grpc}"

    def channel(self) -> grpc.Channel:
        """A channel to its gRPC service; close it."""
        if self.launch.authority is None:
            return grpc.insecure_channel(self.target)
        return grpc.secure_channel(
            self.target, grpc.ssl_channel_credentials(self.launch.authority.read_bytes())
        )

    def control(self) -> grpc.Channel:
        """A channel to where it takes orders; close it."""
        return grpc.insecure_channel(self.launch.control or self.target)

    def processes(self) -> list[int]:
        """Its living processes, the first one first."""
        return descendants(self.process.pid)

    def check_alive(self) -> None:
        """Raise ServerFailed when the process has ended."""
        if self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-3000:]
            raise ServerFailed(f"{self.server.name} ended with status {self.process.returncode}: {tail}")

    def queue_length(self) -> float | None:
        """Requests waiting now, summed over models, from its metrics; None when it does not say."""
        if self.server.queue_gauge is None or self.server.metrics_port is None:
            return None
        url = f"http://127.0.0.1:{self.server.metrics_port(self.ports)}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return gauge_sum(answer.read().decode(), self.server.queue_gauge)
        except OSError:
            return None


def gauge_sum(exposition: str, name: str) -> float | None:
    """The sum of a gauge's series in a Prometheus text; None when there is none."""
    pattern = re.compile(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)", re.MULTILINE)
    values = [float(value) for value in pattern.findall(exposition)]
    return sum(values) if values else None


@contextlib.contextmanager
def running(server: Server, models: Path, *, grpc_port: int | None = None) -> Iterator[Running]:
    """Start `server` over the model directory; it is ended and reaped at the end of the block.

    It stays in the session of the generator. Where the kernel groups tasks by session (sched_autogroup), one of another
    session would share each processor with the generator as a whole, by half: its own threads of the idle class would
    then hold up the generator, which no client on the network meets.
    """
    with tempfile.TemporaryDirectory(prefix=f"bench-{server.name}-") as scratch:
        free, http, metrics = free_ports(3)
        ports = Ports(grpc=grpc_port or free, http=http, metrics=metrics)
        launch = server.launch(models, Path(scratch), ports)
        log = Path(scratch) / "server.log"
        with log.open("wb") as output:
            started = time.monotonic()
            process = subprocess.Popen(
                launch.argv,
                env={**os.environ, **launch.environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # not a session: see `running`
            )
        try:
            yield Running(
                server=server, launch=launch, process=process, ports=ports, log=log, started_s=started
            )
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything below it, kindly first, and reap it."""
    with contextlib.ExitStack() as stack:
        tree = [stack.enter_context(_Handle(pid)) for pid in descendants(process.pid)]
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the group is ours: process_group made it
        process.wait()
        for handle in tree:  # a child that left the group would otherwise outlive the run
            handle.kill()


class _Handle:
    """A process that is known by a descriptor, so that another one that is given its number is not meant."""

    def __init__(self, pid: int) -> None:
        self._fd = -1
        with contextlib.suppress(ProcessLookupError):
            self._fd = os.pidfd_open(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def kill(self) -> None:
        """If it is there still."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now; all are held open together so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]


def wait_listening(instance: Running, timeout_s: float) -> None:
    """Until its gRPC port accepts connections."""

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", instance.ports.grpc)) == 0

    _wait(instance, listens, "listening", timeout_s)


def wait_http_ready(instance: Running, timeout_s: float) -> None:
    """Until it says over HTTP that it and its models are ready, whatever it does on its gRPC port."""

    def ready() -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{instance.ports.http}{HTTP_READY}", timeout=2
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    _wait(instance, ready, "ready", timeout_s)


def _wait(instance: Running, condition: Callable[[], bool], word: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        instance.check_alive()
        if condition():
            return
        time.sleep(POLL_S)
    tail = instance.log.read_text(errors="replace")[-3000:]
    raise ServerFailed(f"{instance.server.name} was not {word} within {timeout_s:.0f} s: {tail}")


def wait_models_ready(
    instance: Running, writer: RequestWriter, names: tuple[str, ...], timeout_s: float
) -> None:
    """Until every named model answers that it is ready."""
    wait_listening(instance, timeout_s)
    deadline = time.monotonic() + timeout_s
    with instance.channel() as channel:
        ready = channel.unary_unary(MODEL_READY, None, None)
        for name in names:
            request = writer.model_ready(name)
            left = deadline - time.monotonic()
            _wait(instance, partial(_answers_ready, ready, request), f"ready with {name}", left)


def _answers_ready(ready: Callable[..., object], request: bytes) -> bool:
    try:
        return ready(request, timeout=2.0, wait_for_ready=True) == READY_ANSWER
    except grpc.RpcError:
        return False


Prepare = Callable[[Path], Mapping[str, object]]


def _appliance(
    name: str,
    front_end: str,
    missing: Callable[[], str | None],
    *,
    grpc_settings: Prepare = lambda scratch: {},
    engine_settings: Mapping[str, object] | None = None,
    stalls: str = "",
) -> Server:
    """The appliance with one of its front ends, with more settings of gRPC or the engine, or with its interpreter
    held."""

    def launch(models: Path, scratch: Path, ports: Ports) -> Launch:
        settings = grpc_settings(scratch)
        config = scratch / "appliance.toml"
        config.write_text(
            _toml("frontend", {"kind": front_end})
            + _toml("grpc", {"addresses": [f"127.0.0.1:{ports.grpc}"], **settings})
            + _toml("http", {"addresses": [f"127.0.0.1:{ports.http}"]})
            + (_toml("engine", engine_settings) if engine_settings else "")
        )
        count = scratch / "stalls"
        path = os.pathsep.join(filter(None, [str(STALLING), os.environ.get("PYTHONPATH")]))
        stalling = {"PYTHONPATH": path, "BENCH_STALL": stalls, STALL_COUNT: str(count)}
        certificate = settings.get("tls_certificate")
        return Launch(
            argv=[str(APPLIANCE), "serve", "--models", str(models), "--config", str(config)],
            environment=stalling if stalls else {},
            authority=Path(str(certificate)) if certificate else None,
        )

    return Server(
        name=name,
        launch=launch,
        missing=missing,
        metrics_port=lambda ports: ports.http,
        queue_gauge="appliance_queue_requests",
    )


def _launch_controlled(models: Path, scratch: Path, ports: Ports) -> Launch:
    """The appliance that loads what its operator's socket says, and nothing by itself, from the directory as it is."""
    config, socket_file = scratch / "appliance.toml", scratch / "control"
    config.write_text(
        _toml("grpc", {"addresses": [f"127.0.0.1:{ports.grpc}"]})
        + _toml("http", {"addresses": [f"127.0.0.1:{ports.http}"]})
        + _toml("control", {"socket": str(socket_file)})
        + "[reload]\nwatch = false\n"
    )
    argv = [str(APPLIANCE), "serve", "--models", str(models), "--config", str(config)]
    return Launch(argv=argv, control=f"unix:{socket_file}")


def _toml(section: str, values: Mapping[str, object]) -> str:
    """One section; strings, numbers and lists are written alike in TOML and JSON."""
    return "\n".join([f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""])


def _with_tls(scratch: Path) -> Mapping[str, object]:
    """A certificate that is its own authority."""
    key, certificate = scratch / "key.pem", scratch / "certificate.pem"
    request = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    extensions = ["-addext", "basicConstraints=critical,CA:FALSE"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *request, *names, *extensions, *files], check=True, capture_output=True)
    return {"tls_certificate": str(certificate), "tls_key": str(key)}


def _with_room(scratch: Path) -> Mapping[str, object]:
    return {"max_connections": ROOM_FOR_CONNECTIONS, "max_connections_per_peer": ROOM_FOR_CONNECTIONS}


def _launch_plain(models: Path, scratch: Path, ports: Ports) -> Launch:
    arguments = ["--models", str(models), "--port", str(ports.grpc)]
    return Launch(argv=[sys.executable, "-m", "benchmarks.peers.plain_aio", *arguments])


def _launch_echo(models: Path, scratch: Path, ports: Ports) -> Launch:
    return Launch(argv=[sys.executable, "-m", "benchmarks.peers.echo", "--port", str(ports.grpc)])


def _launch_native_echo(models: Path, scratch: Path, ports: Ports) -> Launch:
    return Launch(argv=[str(install_folder("native") / "echo"), "--port", str(ports.grpc)])


def _launch_triton(models: Path, scratch: Path, ports: Ports) -> Launch:
    install, repository = install_folder("triton"), scratch / "repository"
    triton.write_repository(models, repository)
    stub = triton.triton_files(install)[2]
    link = triton.triton_files(install)[1] / "python" / stub.name
    if not link.exists():
        link.symlink_to(stub)
    environment = {
        "LD_LIBRARY_PATH": str(triton.python_library_folder()),
        "PYTHONHOME": sys.base_prefix,
        "BENCH_TRITON_PACKAGES": str(install / "python"),
    }
    argv = triton.command(install, repository, (ports.grpc, ports.http, ports.metrics))
    return Launch(argv=argv, environment=environment)


def _launch_triton_controlled(models: Path, scratch: Path, ports: Ports) -> Launch:
    """Over a directory that is a Triton repository already, in which versions come and go."""
    launch = _launch_triton(scratch / "none", scratch, ports)
    argv = [word for word in launch.argv if not word.startswith("--model-repository=")]
    explicit = [f"--model-repository={models}", "--model-control-mode=explicit", "--load-model=*"]
    return replace(launch, argv=[*argv, *explicit])


def _launch_mlserver(models: Path, scratch: Path, ports: Ports) -> Launch:
    folder = scratch / "mlserver"
    mlserver.write_settings(models, folder, (ports.grpc, ports.http, ports.metrics))
    argv = mlserver.command(install_folder("mlserver"), folder)
    return Launch(argv=argv, environment={"PYTHONPATH": str(folder)})


def _appliance_missing() -> str | None:
    return None if APPLIANCE.exists() else f"{APPLIANCE} is not there: run `make install`"


def _native_missing() -> str | None:
    if importlib.util.find_spec("edge_appliance_native") is None:
        return "the native front end is not built: run `make native`"
    return _appliance_missing()


def _tls_missing() -> str | None:
    return (
        _native_missing()
        if shutil.which("openssl")
        else "the openssl command is not here to make a certificate"
    )


def _never() -> None:
    return None


SERVERS: Mapping[str, Server] = {
    server.name: server
    for server in (
        _appliance("appliance", "auto", _appliance_missing),
        _appliance("appliance_python", "python", _appliance_missing),
        _appliance("appliance_native", "native", _native_missing),
        _appliance("appliance_ungranted", "native", _native_missing, engine_settings={"lease_limit": 0}),
        _appliance("appliance_tls", "native", _tls_missing, grpc_settings=_with_tls),
        _appliance("appliance_stalled", "native", _native_missing, stalls="20 4"),
        _appliance("appliance_roomy", "native", _native_missing, grpc_settings=_with_room),
        _appliance(
            "appliance_shared", "native", _native_missing, grpc_settings=lambda scratch: {"reuse_port": True}
        ),
        _appliance(
            "appliance_http_only",
            "python",
            _appliance_missing,
            grpc_settings=lambda scratch: {"addresses": []},
        ),
        Server(name="appliance_controlled", launch=_launch_controlled, missing=_native_missing),
        Server(name="plain_aio", launch=_launch_plain, missing=_never),
        Server(name="echo", launch=_launch_echo, missing=_never),
        Server(name="native_echo", launch=_launch_native_echo, missing=partial(missing, "native")),
        Server(
            name="triton_python",
            launch=_launch_triton,
            missing=partial(missing, "triton"),
            metrics_port=lambda ports: ports.metrics,
            queue_gauge="nv_inference_pending_request_count",
        ),
        Server(name=TRITON_CONTROLLED, launch=_launch_triton_controlled, missing=partial(missing, "triton")),
        Server(name="mlserver", launch=_launch_mlserver, missing=partial(missing, "mlserver")),
    )
}
