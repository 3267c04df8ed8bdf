"""A text model as scikit-learn's vectorizers are exported: it changes the case of letters and names no locale."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from models.generators.graph import model_bytes, node, tensor_port

HERE = Path("/usr/lib/locale")
"""Where the locales of this machine lie, C.utf8 among them."""
PROGRAM = """
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
print(session.run(None, {"x": numpy.array(["Stra\\u00dfe \\u00c9T\\u00c9 \\u03a9"], object)})[0][0])
"""


def lowered(locales: Path) -> str:
    """What the model makes of a text where ``locales`` has those that there are, C.utf8 added."""
    (locales / "C.utf8").symlink_to(HERE / "C.utf8")
    model = locales / "model.onnx"
    model.write_bytes(
        model_bytes(
            "lower",
            [node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER")],
            inputs=[tensor_port("x", "BYTES", ["n"])],
            outputs=[tensor_port("y", "BYTES", ["m"])],
        )
    )
    environment = {**os.environ, "LOCPATH": str(locales), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", PROGRAM, str(model)]
    done = subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    return done.stdout.strip() or done.stderr
