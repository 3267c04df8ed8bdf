"""Sockets of the service manager for the HTTP port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.config.listening import shared_sockets
from appliance.configuration import load
from appliance.domain.errors import ConfigInvalid
from models.generate import write_model
from tests.appliance_process import to_toml
from tests.frontend.grpc.certificate_files import make_authority, make_signed
from tests.frontend.http.raw_client import binary_request
from tests.frontend.http.tls_client import trusting
from tests.fronts import NATIVE, Sections, needs_native, with_front_end

LAUNCHER = """
import fcntl, os, sys
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES="web:local")
for place, handed in enumerate([fcntl.fcntl(int(each), fcntl.F_DUPFD, 5) for each in sys.argv[1:3]], start=3):
    os.dup2(handed, place)
os.execv(sys.executable, [sys.executable, "-c",
    "import sys; from appliance.cli.main import main; sys.exit(main())", *sys.argv[3:]])
"""
INFER = binary_request("mlp", {"x": (1, 64)})


@pytest.mark.parametrize("over_tls", [False, True], ids=["clear", "tls"])
@needs_native
def test_sockets_from_the_service_manager(tmp_path: Path, over_tls: bool) -> None:
    """Whose request has the appliance started is answered, over whatever that speaks."""
    models, config, path = tmp_path / "models", tmp_path / "config.toml", str(tmp_path / "s")
    write_model("mlp", models)
    http: dict[str, object] = {"addresses": ["systemd:web", "systemd:local"]}
    authority = make_authority(tmp_path, "authority")
    if over_tls:
        pair = make_signed(tmp_path, "server", authority)
        http |= {"tls_certificate": str(pair.certificate), "tls_key": str(pair.key)}
    sections: Sections = {
        "grpc": {"addresses": ["127.0.0.1:0"]},
        "daemon": {"drain_notice_s": 0.0},
        "http": http,
    }
    config.write_text(to_toml(with_front_end(NATIVE, sections)))
    with contextlib.ExitStack() as opened:
        tcp = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = opened.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(path)
        unix.listen()
        handed = (tcp.fileno(), unix.fileno())
        address: tuple[str, int] = tcp.getsockname()
        near = opened.enter_context(socket.create_connection(address, 60.0))
        local = opened.enter_context(socket.socket(socket.AF_UNIX))
        local.settimeout(60.0)
        local.connect(path)
        arguments = ["serve", "--models", str(models), "--config", str(config)]
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *map(str, handed), *arguments],
            pass_fds=handed,
            stdout=subprocess.PIPE,
            text=True,
        )
        tcp.close()
        unix.close()
        try:
            if over_tls:
                near = trusting(authority).wrap_socket(near, server_hostname="localhost")
                opened.enter_context(near)
            for each in (near, local):
                each.sendall(INFER)
                assert each.recv(100).startswith(b"HTTP/1.1 200 ")
                each.close()
            assert process.stdout is not None
            assert f"HTTP on {address[0]}:{address[1]} unix:{path}" in process.stdout.readline()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
    assert process.returncode == 0
    assert os.path.exists(path), "the service manager's file is the service manager's"


@pytest.mark.parametrize(
    ("grpc", "http", "shared"),
    [
        (["systemd:grpc"], ["systemd:http"], False),
        (["systemd:a"], ["127.0.0.1:0", "systemd:a"], True),
        (["systemd"], ["systemd"], True),
        (["systemd"], ["systemd:http"], True),
        (["systemd:grpc"], ["systemd"], True),
        (["systemd"], ["127.0.0.1:0", "systemd:80"], False),
        ([], ["systemd"], False),
    ],
)
def test_two_ports_do_not_take_one_socket(
    tmp_path: Path, grpc: list[str], http: list[str], shared: bool
) -> None:
    assert shared_sockets(grpc, http) is shared
    if shared:
        file = tmp_path / "c.toml"
        file.write_text(to_toml({"grpc": {"addresses": grpc}, "http": {"addresses": http}}))
        with pytest.raises(ConfigInvalid, match="'systemd:grpc' and 'systemd:http'"):
            load(file, {"models": str(tmp_path)})
