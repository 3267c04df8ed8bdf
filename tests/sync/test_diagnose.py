"""``appliance diagnose`` on whole boxes: one that serves and belongs to a fleet, and others."""

from __future__ import annotations

import base64
import json
import os
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.package.keys import make_key
from appliance.store.layout import FLEET, FORMS_KEY, SERVE
from appliance.sync.identity import IDENTITY, PENDING
from tests.appliance_process import ApplianceProcess
from tests.cli.conftest import FilesOf, Pack, Run
from tests.frontend.grpc.certificate_files import Pair, make_authority, make_named
from tests.sync.controller_double import ControllerDouble

CONFIGURED = "hunter2-hunter2"


@pytest.fixture
def server(tmp_path: Path) -> Pair:
    return make_named(tmp_path, "server", make_authority(tmp_path, "authority"), "/CN=box", "DNS:box.example")


@pytest.fixture
def box(
    tmp_path: Path, appliance: Run, pack: Pack, enrolled: Path, server: Pair, config: Path
) -> Iterator[ApplianceProcess]:
    """A box that serves a store over TLS and belongs to a fleet. Its log is a file."""
    assert appliance("model", "install", str(pack()))[0] == Exit.OK
    tls = {"tls_certificate": str(server.certificate), "tls_key": str(server.key)}
    sections: dict[str, dict[str, Any]] = {
        "http": tls,
        "metrics": {"addresses": [f"unix:{tmp_path}/metrics"]},
        "log": {"file": str(tmp_path / "log"), "format": "json"},
        "trace": {"file": f"{tmp_path}/traces?password={CONFIGURED}"},
        "store": {"free_floor_bytes": 0},
        "packages": {"unsigned": "allow"},
    }
    with ApplianceProcess(None, sections, arguments=("--state-dir", str(enrolled))) as process:
        yield process.wait_ready()


def diagnosed(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What the command says with --json, and the files of the archive by their paths in it."""
    capsys.readouterr()
    status = main(["diagnose", "--json", "-o", str(folder), *words])
    told = capsys.readouterr()
    assert status == Exit.OK, told.err
    said = json.loads(told.out)
    (path,) = folder.glob("appliance-*.tar.gz")
    assert str(path) == said["file"]
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.stat().st_size == said["bytes"]
    files = {}
    with tarfile.open(path) as archive:
        for member in archive:
            top, _, name = member.name.partition("/")
            assert path.name == f"{top}.tar.gz"
            file = archive.extractfile(member)
            assert file is not None
            files[name] = file.read()
    assert next(iter(files)) == "contents.json"
    return said, files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the archive goes."""
    place = tmp_path / "out"
    place.mkdir()
    return place


def test_a_box_is_in_one_file(
    box: ApplianceProcess, enrolled: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, files = diagnosed(
        folder, capsys, "--config", str(box.config_path), "--state-dir", str(enrolled), "--url", f"https://{box.http}",
        "--ca", str(box.config_path.parent / "none"),
    )  # fmt: skip
    missing = {each["path"]: each["reason"] for each in said["missing"]}
    assert "cannot be read" in missing["daemon/status.json"], (
        "what the command was told goes before what is configured"
    )
    said, files = redone(folder, capsys, box, enrolled)
    missing = {each["path"]: each["reason"] for each in said["missing"]}
    contents = json.loads(files.pop("contents.json"))
    assert contents["parts"] == said["parts"]
    assert {each["path"]: each["bytes"] for each in contents["parts"]} == {
        name: len(data) for name, data in files.items()
    }
    assert json.loads(files["daemon/status.json"])["models"][0]["name"] == "digits"
    assert b"appliance_version_state{" in files["daemon/metrics.txt"]
    assert json.loads(files["models/list.json"])["versions"][0]["state"] == "READY"
    assert json.loads(files["models/history.json"])[0]["name"] == "digits"
    assert json.loads(files["store/check.json"])["findings"] == []
    assert json.loads(files["store/usage.json"])["versions"][0]["name"] == "digits"
    assert json.loads(files["fleet/status.json"])["device"] == "box-1"
    assert json.loads(files["fleet/identity.json"])["subject"] == "CN=box-1"
    entries = {each["name"]: each for each in json.loads(files["store/state.json"])["entries"]}
    assert entries["fleet"]["mode"] == "0700"
    assert entries["blobs"]["files"] == 3
    assert b"[residency]" in files["configuration/in-force.toml"]
    assert b"appliance " in files["versions/appliance.txt"]
    assert b"MemTotal" in files["machine/memory.txt"]
    assert str(enrolled) in files["machine/room.json"].decode()
    assert b'"event"' in files["journal/log-file.log"]
    assert {"versions/runtimes.json", "configuration/problems.txt"} <= files.keys()
    assert "runs no image" in missing["versions/image.json"]
    assert all(missing.values())


def redone(
    folder: Path, capsys: pytest.CaptureFixture[str], box: ApplianceProcess, state: Path
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The archive again, by the configuration with the addresses that the box was given."""
    for path in folder.iterdir():
        path.unlink()
    text = box.config_path.read_text().replace("127.0.0.1:0", box.http, 1).replace("127.0.0.1:0", box.grpc)
    grpc, http = text.split("[http]")
    text = grpc.replace(box.http, box.grpc) + "[http]" + http.replace(box.grpc, box.http)
    config = box.config_path.with_name("given.toml")
    config.write_text(f'state_dir = "{state}"\n{text}')
    return diagnosed(folder, capsys, "--config", str(config))


def test_no_secret_of_a_box_leaves_it(
    box: ApplianceProcess,
    enrolled: Path,
    folder: Path,
    controller: ControllerDouble,
    server: Pair,
    files_of: FilesOf,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each lies where it does, and was written into the log besides, by somebody who should not have."""
    identity = (enrolled / FLEET / IDENTITY).read_text()
    pending = make_key("ed25519")[0].decode()
    forms = secrets.token_bytes(32)
    (enrolled / FLEET / PENDING).write_text(pending)
    (enrolled / SERVE / FORMS_KEY).write_bytes(forms)
    token = controller.token()
    lines = [line for pem in (identity, pending, server.key.read_text()) for line in private_lines(pem)]
    assert len(lines) > 5
    with (tmp_path / "log").open("ab") as log:
        log.write("\n".join([*lines, token, forms.hex(), base64.b64encode(forms).decode()]).encode())
        log.write(b"\n" + forms + b"\nthe end of the log\n")
    said, files = redone(folder, capsys, box, enrolled)
    assert b"the end of the log" in files["journal/log-file.log"], "it was looked at"
    assert b"traces?password=[redacted]" in files["configuration/in-force.toml"]
    counts = {each["path"]: each["redacted"] for each in said["parts"]}
    assert counts["journal/log-file.log"] >= len(lines) + 4
    everything = b"\n".join([json.dumps(said).encode(), *files.values()])
    for secret in (*lines, token, forms.hex(), base64.b64encode(forms).decode().rstrip("="), CONFIGURED):
        assert secret.encode() not in everything
    assert forms not in everything
    assert files_of(1)["1/weights.bin"][:64] not in everything, "models stay as well"
    assert b"PRIVATE KEY" not in everything


def private_lines(pem: str) -> list[str]:
    """Those of the private key alone."""
    body = pem.partition("PRIVATE KEY-----")[2].partition("-----END")[0]
    return [line for line in body.splitlines() if line]


def test_a_box_on_which_nothing_is_has_an_archive_all_the_same(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "empty.toml"
    config.write_text(f'state_dir = "{tmp_path / "nowhere"}"\n[http]\naddresses = ["unix:{tmp_path}/http"]\n')
    said, files = diagnosed(folder, capsys, "--config", str(config))
    missing = {each["path"]: each["reason"] for each in said["missing"]}
    assert "no server answers" in missing["daemon/status.json"]
    assert "no server answers" in missing["daemon/metrics.txt"]
    assert "there is no" in missing["store/check.json"]
    assert "belongs to no fleet" in missing["fleet/status.json"]
    assert b"there is no" in files["configuration/problems.txt"]
    assert b"MemTotal" in files["machine/memory.txt"]


def test_the_head_of_the_contents_has_no_secret_either(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.cli.diagnosis.collection.WHOLE_S", 0.0)
    monkeypatch.setattr("platform.node", lambda: f"password={CONFIGURED}")
    config, state = tmp_path / f"token={CONFIGURED}", tmp_path / f"secret={CONFIGURED}"
    config.write_text("")
    said, files = diagnosed(folder, capsys, "--config", str(config), "--state-dir", str(state))
    assert (said["host"], said["configuration"]) == ("password=[redacted]", f"{tmp_path}/token=[redacted]")
    assert said["state_dir"] == f"{tmp_path}/secret=[redacted]"
    assert CONFIGURED.encode() not in files["contents.json"]


def test_a_configuration_that_is_wrong_keeps_nothing_else_away(
    enrolled: Path,
    appliance: Run,
    pack: Pack,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert appliance("model", "install", str(pack()))[0] == Exit.OK
    config = tmp_path / "wrong.toml"
    config.write_text("[http]\nmax_bodies = 1\n")
    before = stamps(enrolled)
    said, files = diagnosed(folder, capsys, "--config", str(config), "--state-dir", str(enrolled))
    assert stamps(enrolled) == before, "who looks changes nothing"
    missing = {each["path"]: each["reason"] for each in said["missing"]}
    assert b"max_bodies" in files["configuration/problems.txt"]
    assert "the configuration has problems" in missing["configuration/in-force.toml"]
    assert json.loads(files["store/check.json"])["versions"] == 1
    assert json.loads(files["fleet/status.json"])["device"] == "box-1"


def stamps(state: Path) -> dict[str, int]:
    """All that there is, and when it was changed last."""
    return {str(path): path.lstat().st_mtime_ns for path in [state, *state.rglob("*")]}


def test_the_table_of_what_is_missing_is_shown_and_files_are_not_replaced_unasked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.cli.diagnosis.collection.WHOLE_S", 0.0)
    target = folder / "box.tar.gz"
    assert main(["diagnose", "-o", str(target)]) == Exit.OK
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"{target}: 0 parts, ")
    (line,) = (each for each in told if "daemon/status.json" in each)
    assert line.endswith(": left out: the time that all parts have together was over")
    before = target.read_bytes()
    assert main(["diagnose", "-o", str(target)]) == Exit.USAGE
    assert "is there already; give --force" in capsys.readouterr().err
    assert target.read_bytes() == before
    assert main(["diagnose", "-o", str(target), "--force"]) == Exit.OK
    assert main(["diagnose", "-o", str(folder / "none" / "x.tar.gz")]) == Exit.USAGE
    assert "is not a directory" in capsys.readouterr().err
    monkeypatch.setattr("appliance.cli.diagnose.write", full)
    assert main(["diagnose", "-o", str(folder)]) == Exit.USAGE
    assert (
        "cannot be written: No space left on device; give --output where there is room"
        in capsys.readouterr().err
    )


def full(_target: Path, _data: bytes) -> None:
    """A disk that has no room."""
    raise OSError(28, os.strerror(28))
