"""The parts of ``appliance diagnose``, each alone: programs and files within bounds, secrets, what is listed."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import pynvml
import pytest

from appliance.cli.diagnosis import archive, program, texts
from appliance.cli.diagnosis.catalogue import OF_NOTE, Box, parts
from appliance.cli.diagnosis.collection import WHOLE_BYTES, WHOLE_S, Taken, collect
from appliance.cli.diagnosis.part import Files, Nowhere, Part, Program
from appliance.cli.diagnosis.readings import TABLE
from appliance.cli.diagnosis.redaction import REDACTED, Redactor
from appliance.cli.diagnosis.secrets import kept
from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.config.http import HttpConfig
from appliance.config.tree import ApplianceConfig
from appliance.package.keys import make_key
from tests.devices.simulated_nvml import Board, SimulatedNvml

LIMIT = 1 << 20


def python(text: str, **bounds: object) -> Program:
    return Program(words=(sys.executable, "-c", text), **bounds)  # type: ignore[arg-type]


def nothing(_done: int, _total: int, _text: str) -> None:
    """Nobody watches."""


def test_what_a_program_prints_is_taken_and_how_it_ended_is_told() -> None:
    text = "import sys; print('found'); print('odd', file=sys.stderr); sys.exit(1)"
    outcome = program.run(python(text), LIMIT)
    assert outcome.data == b"found\n"
    assert outcome.note == "exit status 1; odd"


def test_a_program_that_prints_nothing_is_missing_for_what_it_said() -> None:
    outcome = program.run(python("import sys; sys.exit('no store;\\n  make one')"), LIMIT)
    assert outcome.data is None
    assert outcome.note == "no store;; make one"


def test_a_program_that_is_not_there_is_missing() -> None:
    outcome = program.run(Program(words=("no-such-program",)), LIMIT)
    assert outcome.data is None
    assert outcome.note == "'no-such-program' cannot be run: No such file or directory"


def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    """What it printed until then is kept; its child would hold the pipe open for ever."""
    pids = tmp_path / "pids"
    text = (
        "import os, time; child = os.fork(); "
        f"child and open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child}}'); "
        "child and print('half', flush=True); time.sleep(600)"
    )
    outcome = program.run(python(text, limit_s=5.0), LIMIT)
    assert outcome.data == b"half\n"
    assert outcome.note == "it took longer than it may and was ended"
    for pid in pids.read_text().split():
        end = time.monotonic() + 30
        while is_alive(int(pid)) and time.monotonic() < end:
            time.sleep(0.01)
        assert not is_alive(int(pid))


def is_alive(pid: int) -> bool:
    """Whether it runs: who was ended and is waited for by nobody does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_prints_without_end_is_cut_at_a_line() -> None:
    outcome = program.run(python("while True: print('0123456789')"), 100)
    assert outcome.data == b"0123456789\n" * 9
    assert outcome.note == "cut after 100 bytes"


def test_of_the_kernel_what_is_of_note_alone_is_taken() -> None:
    lines = (
        "usb 1-1: new device",
        "NVRM: Xid (PCI:0000:01:00): 79",
        "Out of memory: Killed process 7 (python)",
        "I/O error, dev sda, sector 5",
        "nvme nvme0: I/O 7 QID 1 timeout",
        "Command line: BOOT_IMAGE=/vmlinuz root=/dev/nvme0n1p2 ro fleet.pw=hunter2",
        "box kernel: Kernel command line: root=/dev/mmcblk0p2 rd.luks.pass=hunter2",
        'Unknown kernel command line parameters "root=/dev/nvme0n1p2 fleet.pw=hunter2"',
    )
    outcome = program.run(python(f"print({chr(10).join(lines)!r})", noted=OF_NOTE), LIMIT)
    assert outcome.data is not None
    assert outcome.data.decode().splitlines() == list(lines[1:5])


def test_the_end_of_a_file_is_taken_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(100)))
    (tmp_path / "link").symlink_to("log")
    outcome = texts.read(Files(paths=(tmp_path / "log",), limit_bytes=20), LIMIT)
    assert outcome.data == b"line 98\nline 99\n"
    outcome = texts.read(Files(paths=(tmp_path / "link",)), LIMIT)
    assert outcome.data is None
    assert "cannot be opened" in outcome.note


def test_of_several_files_those_that_are_there_are_taken(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1\n")
    outcome = texts.read(Files(paths=(tmp_path / "one", tmp_path / "two")), LIMIT)
    assert outcome.data == f"==> {tmp_path / 'one'} <==\n1\n".encode()
    assert outcome.note == f"'{tmp_path / 'two'}' cannot be opened: No such file or directory"


TOKEN = "ea1.lNkkaHR0cHM6Ly8xMjcuMC4wLjE6ODQ0M6J0MdkgZ"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"COMMAND=appliance sync enrol {TOKEN} -x", f"COMMAND=appliance sync enrol {REDACTED} -x"),
        ('neighbours = ["http://me:hunter2@10.0.0.1:80"]', f'neighbours = ["http://{REDACTED}@10.0.0.1:80"]'),
        ('password = "hunter2 and \\n more"', f'password = "{REDACTED}"'),
        ('password = "it\'s \\"hunter2\\" here"', f'password = "{REDACTED}"'),
        ("secret='hunter2 \" x' y", f"secret='{REDACTED}' y"),
        ("login --token hunter2 --yes", f"login {REDACTED} --yes"),
        ('{"smtp_password": "hunter2", "n": 1}', f'{{"smtp_password": "{REDACTED}", "n": 1}}'),
        ('{"said": "{\\"token\\": \\"hunter2\\"}"}', f'{{"said": "{{\\"token\\": \\"{REDACTED}\\"}}"}}'),
        ("GET /a?api_key=hunter2&b=1", f"GET /a?api_key={REDACTED}&b=1"),
        ("authorization: Bearer hunter2hunter2", f"authorization: {REDACTED}"),
        ("https://hooks.example.org/services/T0/hunter2 said", f"https://{REDACTED} said"),
        ("https://example.org/webhook/hunter2", f"https://example.org/webhook/{REDACTED}"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\nx", f"{REDACTED}\nx"),
        ("-----BEGIN EC PRIVATE KEY-----\nhunter2\ncut", REDACTED),
        ('"-----BEGIN RSA PRIVATE KEY-----\\nProc-Type: 4,ENCRYPTED\\n\\nhunter2=\\n" x', f'"{REDACTED}" x'),
        ("https://u:p@ss@host/x", f"https://{REDACTED}@host/x"),
        (f"https://u:{'j' * 3000}@host/x", f"https://{REDACTED}@host/x"),
        ("Authorization:Basic aHVudGVyMg==", f"Authorization:{REDACTED}"),
        ("authorization=Basic aHVudGVyMg==", f"authorization={REDACTED}"),
        ("-H 'Authorization: ApiKey hunter2' http://box", f"-H 'Authorization: {REDACTED}' http://box"),
        ("Proxy-Authorization: Token hunter2 and more\nnext", f"Proxy-Authorization: {REDACTED}\nnext"),
        ('Authorization: Digest realm="a", response="hunter2"\nx', f"Authorization: {REDACTED}\nx"),
        ('"said": "Authorization: Token hunter2", "n": 1', f'"said": "Authorization: {REDACTED}", "n": 1'),
        ('api_keys = ["hunter2", "zzzz"]\nn = 1', f"api_keys = {REDACTED}\nn = 1"),
        ('api_keys = [\n  "hunter2",\n]\nn = 1', f"api_keys = {REDACTED}\nn = 1"),
        ('{"secret": {"a": {"b": "x"}, "c": "hunter2"}, "n": 1}', f'{{"secret": {REDACTED}, "n": 1}}'),
        ('password = """hunter2\nlong"""\nn = 1', f"password = {REDACTED}\nn = 1"),
        ('password = """hunter2 cut\nn = 1', f"password = {REDACTED}\nn = 1"),
        ("PWD=hunter2 smtp_pass: hunter2", f"PWD={REDACTED} smtp_pass: {REDACTED}"),
        ("fleet.pw=hunter2 rd.luks.pass=hunter2", f"fleet.pw={REDACTED} rd.luks.pass={REDACTED}"),
        ("GET /a?sig=hunter2&se=2", f"GET /a?sig={REDACTED}&se=2"),
        ("/a?n=1&X-Amz-Signature=hunter2 x", f"/a?n=1&X-Amz-Signature={REDACTED} x"),
        ("AccountKey=hunter2==;Suffix=x", f"AccountKey={REDACTED};Suffix=x"),
        ("access_key: hunter2", f"access_key: {REDACTED}"),
        ("said eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.hunter2 twice", f"said {REDACTED} twice"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_taken_out(text: str, left: str) -> None:
    redacted, found = Redactor().redact(text)
    assert redacted == left
    assert found >= 1


@pytest.mark.parametrize(
    "text",
    [
        'tls_key = "/run/credentials/appliance.service/appliance.tls.key"',
        'trusted_keys = ["/etc/appliance/maker.pub"]',
        '{"tokens": 12, "secret": null, "max_tokens": 4.5}',
        'appliance_requests_total{model="digits",outcome="success"} 7',
        "http://127.0.0.1:8000/v2 answered; write to somebody@example.org",
        "basic configuration, bearer of a certificate",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "passed: 3, bypass=1, compass=north, the design=new, cpwd_x=1",
        '{"tokens": [], "credentials": {}}',
        "sig=11 SIGKILL; eyJhbGciOi.eyJ",
    ],
)
def test_what_does_not_is_left(text: str) -> None:
    assert Redactor().redact(text) == (text, 0)


def test_secrets_of_the_box_are_found_in_any_clothes() -> None:
    key = secrets.token_bytes(32)
    pem = make_key("ed25519")[0].decode()
    line = pem.splitlines()[1]
    assert "PRIVATE" in pem
    redactor = Redactor([key, pem.encode(), b"short"])
    encoded = base64.b64encode(key).decode()
    said = f"a {key.hex()} b {encoded} c {line} d {base64.urlsafe_b64encode(key).decode()} short"
    assert (
        redactor.redact(said).text.replace("=", "")
        == f"a {REDACTED} b {REDACTED} c {REDACTED} d {REDACTED} short"
    )
    raw = b"x" + key + b"y"
    assert redactor.redact(raw.decode(errors="replace")).text == f"x{REDACTED}y"


@pytest.mark.parametrize(
    "begun", ["-----BEGIN PRIVATE KEY-----", "password=[", "token={", "authorization=", 'secret="""']
)
def test_a_name_that_a_client_chose_takes_no_other_line_of_a_log_with_it(begun: str) -> None:
    """In quotes or not, the lines that follow it stay."""
    older = "".join(f"2026-11-28T11:00:{n:02} box appliance[1]: rolled back model/{n}\n" for n in range(9))
    for line in (f'request_id="{begun}" rows=1\n', f"request_id={begun} rows=1\n", f'{{"id": "{begun}"}}\n'):
        text = Redactor().redact(line + older).text
        assert text.endswith(older.partition("-")[2])


def test_what_is_taken_out_is_counted_once() -> None:
    redactor = Redactor([b"\xff" * 32])
    for text in (
        "Authorization: Basic aHVudGVyMg==",
        f"token={'ff' * 32}",
        "https://a:b@c",
        'secret = ["a"]',
    ):
        assert redactor.redact(text).found == 1, text


def test_no_more_than_a_key_is_taken_behind_its_first_line() -> None:
    text = Redactor().redact("-----BEGIN PRIVATE KEY-----\n" + "a" * 20_000).text
    assert text == REDACTED + "a" * (20_000 - (16 << 10) + 1)


@pytest.mark.parametrize(
    "piece",
    [
        "-----BEGIN PRIVATE KEY-----", "eyJ", "eyJ-eyJ.", "://a", "://a@", "token=[\n", 'token={"', 'token="""',
        "password", "authorization=", "?sig", "pw.", "[{", 'Authorization: a="',
    ],
)  # fmt: skip
def test_time_grows_as_the_text_does(piece: str) -> None:
    """A client can have any of it in the journal, of which there are 16 MiB."""
    redactor = Redactor()

    def took_s(size: int) -> float:
        began = time.process_time()
        redactor.redact(piece * (size // len(piece)))
        return time.process_time() - began

    assert min(took_s(200_000), took_s(200_000)) < 16 * min(took_s(50_000) for _ in range(3)) + 0.1


def test_what_a_service_leaves_in_its_directory_chooses_neither_what_is_read_nor_what_is_taken_out(
    tmp_path: Path,
) -> None:
    other, state = tmp_path / "other.pem", tmp_path / "state"
    key, forms = make_key("ed25519")[0], b"\xff" * 32
    other.write_bytes(key)
    for folder in ("fleet", "serve", "kept"):
        (state / folder).mkdir(parents=True)
    identity, pending = state / "fleet/identity.pem", state / "fleet/enrolling.pem"
    identity.symlink_to(other)
    os.mkfifo(pending)
    (state / "serve/forms.key").symlink_to(other)
    assert kept(ApplianceConfig(), state, tmp_path) == ()
    for path in (identity, pending, state / "serve/forms.key"):
        path.unlink()
    identity.write_text("a rollout that failed at noon\n")
    (state / "serve/forms.key").write_text("a rollout that failed at noon...")
    assert kept(ApplianceConfig(), state, tmp_path) == ()
    identity.write_bytes(key)
    (state / "serve/forms.key").write_bytes(forms)
    assert kept(ApplianceConfig(), state, tmp_path) == (key, forms)
    for tls_key, found in ((state / "fleet/../../other.pem", key), (state / "serve/../kept/tls", forms)):
        (state / "kept/tls").write_bytes(forms)
        config = ApplianceConfig(http=HttpConfig(tls_certificate="a.crt", tls_key=str(tls_key)))
        assert kept(config, state, tmp_path) == (found, key, forms), tls_key
    (state / "kept/tls").unlink()
    (state / "kept/tls").symlink_to(other)
    assert kept(config, state, tmp_path) == (key, forms), "it is the service's as well"
    (state / "fleet").rename(state / "moved")
    (state / "fleet").symlink_to("moved")
    assert kept(ApplianceConfig(), state, tmp_path) == (forms,)


def test_of_a_file_of_keys_a_few_lines_that_may_be_a_key_are_looked_for() -> None:
    lines = [f"{number:016}" for number in range(100)]
    body = "\n".join(["a rollout that failed", *lines])
    redactor = Redactor([f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n".encode()])
    assert redactor.redact("a rollout that failed").found == 0
    assert redactor.redact(" ".join(lines)).found == 64


def test_programs_of_the_system_are_found_where_the_system_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("journalctl", "made-up"):
        (tmp_path / name).write_text("#!/bin/sh\necho planted\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.run(Program(words=("made-up",)), LIMIT).data is None
    outcome = program.run(Program(words=("sh", "-c", "echo $PATH")), LIMIT)
    assert outcome.data == b"/usr/sbin:/usr/bin:/sbin:/bin\n"


def part(path: str, size: int = 1) -> Part:
    return Part(path=path, about="bytes", source=python(f"print('x' * {size - 1})", limit_bytes=1 << 30))


def collected(given: Sequence[Part], times: list[float]) -> list[Taken]:
    return list(collect(given, Redactor(), nothing, lambda: times.pop(0)))


def test_what_is_over_all_bounds_is_left_out_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.cli.diagnosis.collection.WHOLE_BYTES", 100)
    full, cut, out = collected([part("a", 90), part("b", 90), part("c")], [0.0] * 4)
    assert (len(full.data or b""), full.note) == (90, "")
    assert (cut.data, cut.note) == (None, "cut after 10 bytes"), "there is no whole line"
    assert out.data == b"\n"
    late = collected([part("a"), part("b")], [0.0, 0.0, WHOLE_S])[1]
    assert late.data is None
    assert late.note == "left out: the time that all parts have together was over"


def test_where_a_part_is_from_and_what_is_odd_about_it_have_no_secret_either() -> None:
    words = (sys.executable, "-c", "raise SystemExit('password=hunter2')", "http://me:hunter2@box")
    (taken,) = collected([Part(path="a", about="a", source=Program(words=words))], [0.0] * 2)
    assert "hunter2" not in taken.said.rpartition(" ")[2] + taken.note
    assert taken.note == f"password={REDACTED}"


def test_parts_have_plain_paths_of_their_own_and_bounds_below_those_of_all(tmp_path: Path) -> None:
    box = Box(
        file=tmp_path / "a.toml",
        trouble="",
        state=tmp_path,
        endpoint=("--url=127.0.0.1:1",),
        disks=(tmp_path,),
        log=str(tmp_path / "log"),
    )
    found = parts(box)
    names = [each.path for each in found]
    assert len(set(names)) == len(names) > 25
    assert all(re.fullmatch(r"[a-z]+/[a-z-]+\.(json|txt|log|toml)", name) for name in names)
    assert all(
        each.source.limit_bytes < WHOLE_BYTES for each in found if isinstance(each.source, Program | Files)
    )
    assert not any("cmdline" in each.source.said for each in found), "it may carry credentials"
    bare = parts(Box(file=None, trouble="", state=None, endpoint=(), disks=()))
    assert {each.path for each in bare} == set(names) - {"journal/log-file.log"}
    assert sum(isinstance(each.source, Nowhere) for each in bare) == 8


def test_a_configuration_that_cannot_be_read_is_not_asked_for_the_rest(tmp_path: Path) -> None:
    box = Box(file=tmp_path / "a.toml", trouble="wrong", state=tmp_path, endpoint=(), disks=())
    using = [each.path for each in parts(box) if "--config" in each.source.said]
    assert using == []
    assert [each.path for each in parts(box) if "a.toml" in each.source.said] == [
        "configuration/in-force.toml",
        "configuration/problems.txt",
    ]


def test_cgroups_are_those_of_the_units_or_of_all_that_runs_here(tmp_path: Path) -> None:
    top = tmp_path / "sys/fs/cgroup"
    unit = top / "appliance.slice/appliance.service"
    top.mkdir(parents=True)
    (top / "memory.max").write_text("max\n")

    def said() -> str:
        box = Box(file=None, trouble="", state=None, endpoint=(), disks=(), root=tmp_path)
        return next(each.source.said for each in parts(box) if each.path == "machine/cgroup.txt")

    assert said() == str(top / "memory.max")
    unit.mkdir(parents=True)
    (unit / "memory.events").write_text("oom_kill 3\n")
    assert said() == str(unit / "memory.events")


def test_an_archive_is_whole_and_private_and_replaces_nothing_by_half(tmp_path: Path) -> None:
    taken = [
        Taken(part=part("a/b.txt"), said="made", data=b"text", note="odd", redacted=2),
        Taken(part=part("a/c.txt"), said="made", data=None, note="it is not there"),
    ]
    contents = archive.contents_of({"host": "box"}, taken)
    target = tmp_path / "made.tar.gz"
    archive.write(target, archive.packed("top", contents, taken, 0))
    assert os.stat(target).st_mode & 0o7777 == 0o600
    assert os.listdir(tmp_path) == ["made.tar.gz"]
    with tarfile.open(target) as opened:
        assert opened.getnames() == ["top/contents.json", "top/a/b.txt"]
        file = opened.extractfile("top/contents.json")
        assert file is not None
        said = json.load(file)
    assert said == contents
    assert said["parts"][0] == {
        "path": "a/b.txt", "about": "bytes", "from": "made", "bytes": 4, "redacted": 2, "note": "odd"
    }  # fmt: skip
    assert [each["reason"] for each in said["missing"]] == ["it is not there"]
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        archive.write(tmp_path / "directory", b"")
    assert sorted(os.listdir(tmp_path)) == ["directory", "made.tar.gz"]


def test_an_archive_is_written_where_its_directory_was_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may rename above it gets neither a file of root's into another directory nor one given away."""
    out, victim, owners = tmp_path / "out", tmp_path / "victim", []
    out.mkdir()
    victim.mkdir()

    def swapped(_descriptor: int, owner: os.stat_result) -> None:
        owners.append(owner.st_ino)
        out.rename(tmp_path / "moved")
        out.symlink_to(victim)

    inode = out.stat().st_ino
    monkeypatch.setattr(archive, "give_to_owner", swapped)
    archive.write(out / "made.tar.gz", b"data")
    assert owners == [inode]
    assert os.listdir(tmp_path / "moved") == ["made.tar.gz"]
    assert os.listdir(victim) == []


def test_gpus_are_told_of_as_the_driver_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A simulated driver's."""
    board = Board()
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(board, Board(uuid="GPU-other", xids=[79])))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    assert TABLE.run(["gpus"]) == Exit.OK
    one, other = json.loads(capsys.readouterr().out)
    assert (one["uuid"], one["kind"], one["now"]["processes"]) == (
        "GPU-simulated",
        "cuda",
        {"4711": 512 << 20},
    )
    assert (other["uuid"], other["now"]["xids"]) == ("GPU-other", [79])
    board.errors["nvmlDeviceGetCount_v2"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert TABLE.run(["gpus"]) == Exit.USAGE
    assert "no GPU can be looked at: NVML: Driver Not Loaded" in capsys.readouterr().err


def test_what_is_missing_for_the_same_reason_is_told_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "it.tar.gz"
    assert main(["diagnose", "--state-dir", str(tmp_path / "none"), "-o", str(target)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    told = [line.strip().partition(": ") for line in lines if line.startswith("  ")]
    paths = [path for names, _, _ in told for path in names.split(", ")]
    assert head.endswith(f"; {len(paths)} are missing")
    assert len({why for _, _, why in told}) == len(told) < len(paths)
    with tarfile.open(target) as written:
        assert not {path for name in written.getnames() for path in paths if name.endswith(path)}
