"""Certificates for tests, made by the openssl command where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Pair(NamedTuple):
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


def make_authority(folder: Path, name: str) -> Pair:
    """A certificate that may sign others, signed by itself."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-keyout", str(pair.key), "-out", str(pair.certificate),
    )  # fmt: skip
    return pair


def make_signed(folder: Path, name: str, authority: Pair, host: str = "localhost") -> Pair:
    """A certificate for ``host`` and 127.0.0.1 that ``authority`` signed."""
    return make_named(folder, name, authority, f"/CN={name}", f"DNS:{host},IP:127.0.0.1")


def make_named(folder: Path, name: str, authority: Pair, subject: str, alternative: str = "") -> Pair:
    """A certificate for this subject, with these alternative names, as the openssl command writes both."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    names = f"subjectAltName={alternative}\n" if alternative else ""
    extensions.write_text(f"{names}basicConstraints=CA:FALSE\n")
    _openssl(
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-utf8", "-subj", subject,
        "-keyout", str(pair.key), "-out", str(request),
    )  # fmt: skip
    _openssl(
        "x509", "-req", "-in", str(request), "-CA", str(authority.certificate), "-CAkey", str(authority.key),
        "-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(pair.certificate),
    )  # fmt: skip
    return pair


def _openssl(*arguments: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not here to make certificates")
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
