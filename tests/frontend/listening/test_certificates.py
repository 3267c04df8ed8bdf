"""When certificates end, whether or not a client would still take them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from appliance.config.grpc import GrpcConfig
from appliance.config.http import HttpConfig
from appliance.frontend.listening.certificates import CertificateEnds, bearer_of, certificate_problems
from tests.frontend.grpc.certificate_files import Pair, make_authority

LONG_AGO = 1_600_000_000


def made_until(folder: Path, name: str, end: str) -> Pair:
    """A certificate that ends then, as the openssl command writes times."""
    authority = make_authority(folder, name)
    signing = folder / f"{name}.cnf"
    signing.write_text(
        f"[ca]\ndefault_ca=own\n[own]\ndatabase={folder}/{name}.index\nnew_certs_dir={folder}\npolicy=any\n"
        f"serial={folder}/{name}.serial\ndefault_md=sha256\n[any]\ncommonName=optional\n"
    )
    (folder / f"{name}.index").touch()
    (folder / f"{name}.serial").write_text("01")
    request = folder / f"{name}.csr"
    own = Pair(folder / f"{name}-own.pem", authority.key)
    for words in (
        ("req", "-new", "-key", authority.key, "-subj", "/CN=box", "-out", request),
        (
            *("ca", "-batch", "-selfsign", "-config", signing, "-keyfile", authority.key, "-in", request),
            *("-startdate", "20200101000000Z", "-enddate", end, "-out", own.certificate, "-notext"),
        ),
    ):
        done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return own


async def test_ends_are_told_by_port_even_of_what_has_ended(tmp_path: Path) -> None:
    ended = made_until(tmp_path, "ended", "20200913122640Z")
    holds = made_until(tmp_path, "holds", "20400101000000Z")
    grpc = GrpcConfig(tls_certificate=str(ended.certificate), tls_key=str(ended.key))
    http = HttpConfig(tls_certificate=str(holds.certificate), tls_key=str(holds.key))
    assert bearer_of(grpc) is None, "no client takes it"
    ends = CertificateEnds({"grpc": grpc, "http": http, "control": HttpConfig()})
    assert ends.ends() == {}
    for port in ("grpc", "http", "control", "metrics"):
        await ends.read(port)
    assert ends.ends() == {"grpc": LONG_AGO, "http": 2_208_988_800}
    ended.certificate.write_text("junk")
    await ends.read("grpc")
    assert ends.ends()["grpc"] == LONG_AGO, "it is still shown"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    problems = dict(certificate_problems(HttpConfig(tls_certificate=str(pipe), tls_key="/dev/zero")))
    assert problems.keys() == {"tls_certificate", "tls_key"}
    assert all("it is not a file" in text for text in problems.values())
