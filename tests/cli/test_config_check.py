"""What cannot serve is told by ``config check`` and by ``serve`` alike, all of it at once, before anything starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from appliance import configuration
from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.config.tree import ApplianceConfig
from appliance.configuration import cpu_problems, usable_cpus
from appliance.domain.binding import bind
from appliance.domain.errors import ConfigInvalid

CANNOT_SERVE = {
    'grpc.addresses = ["nonsense"]': ("grpc.addresses", "'nonsense' is not host:port"),
    'http.addresses = ["127.0.0.1:1", "8000"]': ("http.addresses", "'8000' is not host:port"),
    'grpc.addresses = ["127.0.0.1:1", "unix:/a", "127.0.0.1:1"]': (
        "grpc.addresses",
        "'127.0.0.1:1' is named twice",
    ),
    'grpc.addresses = ["unix:/a"]\nhttp.addresses = ["[::1]:2", "unix:/a"]': (
        "http.addresses",
        "'unix:/a' is named twice",
    ),
    'metrics.addresses = ["127.0.0.1:1"]\nhttp.addresses = ["127.0.0.1:1"]': (
        "metrics.addresses",
        "'127.0.0.1:1' is named twice",
    ),
    'metrics.addresses = ["systemd"]': ("metrics.addresses", "'systemd' is not host:port"),
    "arena.classes = []": ("arena.classes", "at least one size class"),
    "arena.classes = [[100, 5]]": (
        "arena.classes",
        "class [100, 5] must have slots of a multiple of 4096 bytes",
    ),
    "arena.classes = [[1048576, 9], [65536, 2]]": (
        "arena.classes",
        "class [65536, 2] must have larger slots than the class before it, which has 1048576 bytes",
    ),
    "arena.classes = [[1048576, 0]]": ("arena.classes", "at least one slot"),
    "arena.classes = [[1073741824, 1000000]]": ("arena.classes", "a process can address"),
    "arena.classes = [4096, 2]": ("arena.classes", "must be a list of pairs [bytes per slot, slots]"),
    "arena.classes = [[65536, 4]]\nhttp.addresses = []": ("arena.classes", "lower grpc.max_message_bytes"),
    "arena.memory_limit_bytes = 1048576\ngrpc.addresses = []": (
        "arena.classes",
        "one request gets at most 1048576 bytes",
    ),
    "http.max_bodies_bytes = 1048576\nhttp.max_body_bytes = 1048577": (
        "http",
        "max_bodies_bytes is 1048576, less than one body of max_body_bytes, 1048577; raise the one or lower the other",
    ),
    "scheduling.max_queued_bytes = 1000\ngrpc.addresses = []": (
        "scheduling.max_queued_bytes",
        "all queues together hold 1000 bytes, but http.max_body_bytes lets 67108864 bytes in",
    ),
    "scheduling.max_queued_bytes = 1000\nhttp.addresses = []": (
        "scheduling.max_queued_bytes",
        "all queues together hold 1000 bytes, but grpc.max_message_bytes lets 67108864 bytes in",
    ),
    "workers.cpus = [[], [99999]]": (
        "workers.cpus",
        "set [99999] names 99999, which this process may not use",
    ),
    "workers.cpus = [[-1]]": ("workers.cpus", "names -1"),
    "workers.cpus = [99]": (
        "workers.cpus",
        "must be a list of lists of CPU numbers, such as [[0], [1]], got [99]",
    ),
    'log.file = "none/log"': ("log.file", "directory 'none' does not exist"),
    'log.file = "."': ("log.file", "'.' is a directory"),
    'trace.one_in = 1\ntrace.file = "none/traces"': ("trace.file", "directory 'none' does not exist"),
    'trace.one_in = 1\ntrace.file = ""': ("trace.file", "traces need a file"),
    'repository.runtimes = ["onnx", "typo"]': (
        "repository.runtimes",
        "no runtime 'typo' is installed; known here: fake, hostile, onnx",
    ),
    'models = "none"': ("models", "'none' cannot be read: No such file or directory"),
    'models = "a-file"': ("models", "'a-file' cannot be read: Not a directory"),
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an empty model directory and a file."""
    (tmp_path / "models").mkdir()
    (tmp_path / "a-file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text: str) -> Path:
    file = Path("a.toml")
    file.write_text(text)
    return file


def problems_of(text: str, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        configuration.load(written(text), overrides or {})
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("text", CANNOT_SERVE)
def test_check_and_serve_say_the_same(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    key, words = CANNOT_SERVE[text]
    (problem,) = problems_of(text)
    assert problem.startswith(f"a.toml: {key}: ")
    assert words in problem
    assert main(["config", "check", "a.toml"]) == Exit.REFUSED
    assert key in capsys.readouterr().out
    assert main(["serve", "--config", "a.toml"]) == Exit.USAGE
    assert problem in capsys.readouterr().err


def test_all_at_once_whatever_else_is_wrong() -> None:
    text = (
        'models = "none"\ngrpc.x = 1\ngrpc.addresses = ["a", "b"]\narena.classes = [[7, 0]]\n'
        'workers.cpus = [[99999], [0, 99998]]\nlog.file = "none/log"\nlog.level = "loud"\n'
    )
    keys = sorted(problem.split(": ")[1] for problem in problems_of(text))
    assert keys == [
        "arena.classes", "arena.classes", "grpc.addresses", "grpc.addresses", "grpc.x", "log.file", "log.level",
        "models", "workers.cpus", "workers.cpus",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (
            'repository.auto_device = "gpu"\nrepository.runtimes = ["cuda"]',
            ["repository.auto_device", "repository.runtimes"],
        ),
        ("trace.one_in = 1\ntrace.file = 7\n[log]\nlevel = 1", ["log.level", "trace.file"]),
        (
            'grpc.max_message_bytes = "x"\ngrpc.tls_certificate = "no.crt"\ngrpc.tls_key = "no.key"',
            ["grpc.max_message_bytes", "grpc.tls_certificate", "grpc.tls_key"],
        ),
        ('grpc.max_message_bytes = 0\ngrpc.tls_certificate = "a-file"', ["grpc", "grpc.max_message_bytes"]),
        (
            'grpc.tls_key = "a"\ngrpc.addresses = ["[::1]:2"]\nhttp.addresses = ["[::1]:2"]',
            ["grpc", "http.addresses"],
        ),
        ("grpc.addresses = 1\nhttp.tls_key = ''\nhttp.tls_client_ca = 'a'", ["grpc.addresses", "http"]),
        (
            "[http]\naddresses=['systemd']\n[grpc]\naddresses=1\nbody_stall_s=-1\nwrite_stall_s=3\n[frontend]\nkind='python'",
            ["grpc.addresses", "grpc.body_stall_s", "grpc.write_stall_s", "http.addresses"],
        ),
        ('http.addresses = 1\nhttp.tls_key = "a"', ["http", "http.addresses"]),
        (
            'http.unix_mode = true\nhttp.addresses = ["unix:/a"]\ngrpc.addresses = ["unix:/a"]',
            ["http.addresses", "http.unix_mode"],
        ),
        (
            "[quotas]\nburst = 1\nin_flight = -1\nclients.'10.0.0.1' = { burst = 1, in_flight = -1 }",
            ["quotas", "quotas.clients.10.0.0.1", "quotas.clients.10.0.0.1.in_flight", "quotas.in_flight"],
        ),
        ("repository.runtimes = [1, 'onnx', 2]", ["repository.runtimes[0]", "repository.runtimes[2]"]),
        ("repository.firewall.max_nodes = 'x'\nrepository.runtimes = ['typo']",
         ["repository.firewall.max_nodes", "repository.runtimes"]),
        ('scheduling.max_queued_bytes = "x"\narena.classes = [[65536, 4]]', ["scheduling.max_queued_bytes"]),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_read_hides_nothing_of_its_section(text: str, keys: list[str]) -> None:
    assert sorted(problem.split(": ")[1] for problem in problems_of(text)) == keys
    assert main(["config", "check", "a.toml"]) == Exit.REFUSED


def test_what_is_wrong_with_one_value_hides_nothing_that_is_wrong_with_others() -> None:
    tls = 'grpc.tls_certificate = "no.crt"\ngrpc.tls_key = "no.key"\n'
    traces = 'trace.one_in = 1\ntrace.file = ""\n'
    unfit = f'grpc.addresses = ["nonsense"]\nlog.level = "loud"\nhttp.x = 1\n{tls}{traces}'
    keys = sorted(problem.split(": ")[1] for problem in problems_of(unfit))
    assert keys == [
        "grpc.addresses",
        "grpc.tls_certificate",
        "grpc.tls_key",
        "http.x",
        "log.level",
        "trace.file",
    ]
    both = 'grpc.addresses = ["nonsense"]\ngrpc.tls_key = "no.key"\n'
    assert sorted(problem.split(": ")[1] for problem in problems_of(both)) == ["grpc", "grpc.addresses"]


def test_what_cannot_be_read_is_told_and_nothing_of_the_default_in_its_place() -> None:
    text = 'grpc.addresses = 5\nhttp.addresses = ["127.0.0.1:8001"]\ntrace.one_in = 1\ntrace.file = ""\n'
    assert "127.0.0.1:8001" in str(ApplianceConfig().grpc.addresses)
    assert sorted(problem.split(": ")[1] for problem in problems_of(text)) == ["grpc.addresses", "trace.file"]


def test_the_default_model_directory_must_be_there_too(place: Path) -> None:
    (place / "models").rmdir()
    (problem,) = problems_of("")
    assert problem.startswith("a.toml: models: 'models' cannot be read")


def test_what_is_served_may_be_named_on_the_command_line_of_both(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file without a source is for 'serve --state-dir' or 'serve --models'."""
    (place / "models").rmdir()
    (place / "box").mkdir()
    written("store.scrub_interval_h = 24.0\n")
    assert main(["config", "check", "a.toml"]) == Exit.REFUSED
    assert main(["config", "check", "a.toml", "--state-dir", "box"]) == Exit.OK
    assert main(["config", "check", "a.toml", "--models", "box"]) == Exit.OK
    capsys.readouterr()
    assert main(["config", "check", "a.toml", "--state-dir", "none"]) == Exit.REFUSED
    assert "there is no 'none'" in capsys.readouterr().out


def test_the_command_line_is_checked_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    written('models = "none"\ngrpc.addresses = ["from-file"]\nlog.level = "loud"\n')
    words = ["--models", "else", "--grpc", "x", "--http", "y"]
    assert main(["serve", "--config", "a.toml", *words]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "command line: models: 'else' cannot be read" in said
    assert "command line: grpc.addresses: 'x' is not" in said
    assert "command line: http.addresses: 'y' is not" in said
    assert "a.toml: log.level: must be one of" in said
    assert "from-file" not in said


def test_without_a_file_the_command_line_is_checked_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--grpc", "x"]) == Exit.USAGE
    assert "command line: grpc.addresses" in capsys.readouterr().err


def test_the_command_line_does_not_hide_a_section_that_is_no_table() -> None:
    said = problems_of("grpc = 3\n", {"grpc": {"addresses": ["127.0.0.1:0"]}})
    assert said == ["a.toml: grpc: must be a table, got 3"]


@pytest.mark.parametrize(
    "text",
    [
        'log.file = "/dev/full"',
        'log.file = "new"',
        'log.file = "a-file"',
        'trace.one_in = 1\ntrace.file = "a-file"',
        'trace.file = "none/traces"',
        'grpc.addresses = []\nhttp.addresses = ["[::1]:0", "unix:/x"]',
        "arena.classes = [[65536, 4]]\ngrpc.max_message_bytes = 65536\nhttp.max_body_bytes = 65536",
        f"workers.cpus = [[{min(os.sched_getaffinity(0))}], []]",
    ],
)
def test_what_can_serve_has_no_problems(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(written(text))]) == Exit.OK
    assert "no problems" in capsys.readouterr().out
    assert not Path("new").exists()


def test_show_does_not_ask_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """So that the file of another machine can be looked at."""
    written('models = "none"\nworkers.cpus = [[99999]]\n')
    assert main(["config", "show", "a.toml"]) == Exit.OK
    assert "cpus = [[99999]]" in capsys.readouterr().out


def test_the_defaults_fit_together() -> None:
    assert bind(ApplianceConfig, {}, "f") == configuration.load(None) == ApplianceConfig()


def test_asking_for_cpus_leaves_ours_alone() -> None:
    before = os.sched_getaffinity(0)
    assert usable_cpus() >= before
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="needs two CPUs")
def test_a_daemon_kept_off_the_workers_cpus_may_give_them_away() -> None:
    first, *others = sorted(usable_cpus())

    def kept_on_first() -> list[str]:
        os.sched_setaffinity(0, {first})
        return list(cpu_problems(tuple((cpu,) for cpu in others)))

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(kept_on_first).result() == []


CHECK_WITHOUT_RIGHTS = """
import os, sys
from appliance.telemetry.log_file import file_problems
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for file in sys.argv[1:]:
    print(*file_problems(file))
"""


def test_a_log_that_may_not_be_written(place: Path) -> None:
    """In a process that has no special rights, which needs none to the directories above its own."""
    for name, file_mode, folder_mode in (("closed", 0o666, 0o555), ("open", 0o444, 0o777)):
        (place / name).mkdir()
        (place / name / "log").touch()
        (place / name / "log").chmod(file_mode)
        (place / name).chmod(folder_mode)
    place.chmod(0o755)
    files = ["closed/log", "closed/new", "open/log", "open/new", "/dev/null"]
    done = subprocess.run(
        [sys.executable, "-c", CHECK_WITHOUT_RIGHTS, *files],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(configuration.__file__).parents[1])},
    )  # fmt: skip
    closed, new, readonly, *fine = done.stdout.split("\n")
    assert closed.startswith("directory 'closed' is not writable")
    assert new.startswith("directory 'closed' is not writable")
    assert readonly.startswith("'open/log' is not writable")
    assert not any(fine)


def test_nothing_was_started_when_serve_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """The first address is free and not taken; the log's file is not made."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    written(f'grpc.addresses = ["{address}"]\nlog.file = "log"\nhttp.addresses = ["x"]\n')
    assert main(["serve", "--config", "a.toml"]) == Exit.USAGE
    assert not Path("log").exists()
    assert "http.addresses" in capsys.readouterr().err
