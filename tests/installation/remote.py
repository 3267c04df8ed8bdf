"""Commands of one machine run in another, over a port that only the two have: ``arm.py``'s, whose other way in is a
serial line. ``remote.py serve`` in the one runs what ``remote.py PORT COMMAND...`` in the other names, and ends as that
does.

It needs no package: in the emulated machine it is a file beside Debian's Python.
"""

from __future__ import annotations

import json
import socket
import socketserver
import subprocess
import sys
import threading
from typing import IO, Final

PORT: Final = 7000
STREAMS: Final = ("stdout", "stderr")
ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin"}
CONNECT_S: Final = 30.0


class _Command(socketserver.StreamRequestHandler):
    """One command: its words come as a line, what it says goes back in lines that name the stream."""

    def handle(self) -> None:
        words = json.loads(self.rfile.readline())
        command = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        lock = threading.Lock()
        readers = [
            threading.Thread(target=self._forward, args=(name, getattr(command, name), lock))
            for name in STREAMS
        ]
        for each in readers:
            each.start()
        for each in readers:
            each.join()
        self._say({"status": command.wait()}, lock)

    def _forward(self, name: str, source: IO[bytes], lock: threading.Lock) -> None:
        while piece := source.readline(1 << 16):
            self._say({name: piece.decode(errors="replace")}, lock)

    def _say(self, said: dict[str, object], lock: threading.Lock) -> None:
        with lock:
            self.wfile.write(json.dumps(said).encode() + b"\n")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def run(port: int, words: list[str]) -> int:
    """Have a command run behind a port of this machine, what it says said here; gives how it ended."""
    with socket.create_connection(("127.0.0.1", port), CONNECT_S) as connection:
        connection.settimeout(None)
        connection.sendall(json.dumps(words).encode() + b"\n")
        for line in connection.makefile("rb"):
            said = json.loads(line)
            if "status" in said:
                return int(said["status"])
            for name in STREAMS:
                if name in said:
                    print(said[name], end="", file=getattr(sys, name), flush=True)
    print("the machine went away", file=sys.stderr)
    return 1


def main() -> int:
    """Serve, or have a command run."""
    if sys.argv[1] == "serve":
        _Server(("0.0.0.0", PORT), _Command).serve_forever()
    return run(int(sys.argv[1]), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
