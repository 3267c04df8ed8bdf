"""What a controller writes to its log: a line for people where it listens, and objects as the daemon has them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from appliance.cli.failure import Exit
from appliance.cli.main import main

MAIN = "from appliance.cli.main import main; raise SystemExit(main())"


def test_its_log_has_one_object_a_line(tmp_path: Path) -> None:
    home = tmp_path / "controller"
    words = ["--url", "https://127.0.0.1:1", "--address", "127.0.0.1:0"]
    assert main(["controller", "init", str(home), *words]) == Exit.OK
    command = [sys.executable, "-c", MAIN, "controller", "serve", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (line.startswith("The controller listens at 127.0.0.1:"), out, process.returncode) == (True, "", 0)
    said = [json.loads(each) for each in err.splitlines()]
    assert [(each["event"], each["level"]) for each in said] == [
        ("controller serves", "info"),
        ("controller stopped", "info"),
    ]
    assert (said[0]["url"], said[0]["at"] in line) == ("https://127.0.0.1:1", True)
