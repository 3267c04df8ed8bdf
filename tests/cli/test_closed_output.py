"""Whoever reads a command's output may stop: nothing is wrong then, and no file is to blame."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from appliance.cli.failure import Exit
from tests.package.onnx_models import layers

MAIN = "from appliance.cli.main import main; raise SystemExit(main())"


def test_a_reader_that_went_away_is_no_failure_of_what_was_packed(tmp_path: Path) -> None:
    source, package = tmp_path / "m.onnx", tmp_path / "m-1.model"
    source.write_bytes(layers(1, 8).SerializeToString())
    words = ["model", "pack", str(source), "--name", "m", "--version", "1", "--no-proof", "-o", str(package)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert package.exists()
