"""Whole repositories: what counts as a model, which versions are wanted, and files that are not what they should be."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ConfigInvalid
from appliance.repository.directory import RepositoryScan
from appliance.repository.model_config import VERSIONS_MAX
from appliance.repository.model_directory import read_model_directory
from appliance.sources.directory import MODELS_MAX
from models.generate import MODELS, write_model
from models.generators.package import Expectation
from tests.repository.onnx_files import external_tensor, plain_model, write_version
from tests.repository.outcomes import only_problem, served
from tests.repository.scanning import scan

CONFIG = RepositoryConfig()
SERVES_OR_FAILS_LATER = (Expectation.SERVES, Expectation.RUNTIME_REFUSES)


def _keys(found: RepositoryScan) -> list[str]:
    return [version.model.key for version in found.servable]


def _plain(root: Path, *versions: int | str, name: str = "m", config: str = "") -> Path:
    for version in versions:
        write_version(root, name, plain_model(), version)
    if config:
        (root / name / "config.pbtxt").write_text(config)
    return root / name


def test_all_sample_models_come_to_what_they_are_made_for(tmp_path: Path) -> None:
    root = tmp_path / "models"
    names = [name for name in MODELS if not name.startswith("burn_")]
    for name in names:
        write_model(name, root)
    found = scan(root, CONFIG)
    servable = {version.model.name for version in found.servable}
    broken = {version.name for version in found.broken}
    assert servable | broken == set(names)
    assert not servable & broken
    assert broken == {name for name in names if MODELS[name].expectation not in SERVES_OR_FAILS_LATER} | {
        "not_onnx",
        "truncated",
    }


def test_what_is_no_model_is_passed_over(tmp_path: Path) -> None:
    _plain(tmp_path, 1)
    _plain(tmp_path, 1, name=".hidden")
    _plain(tmp_path, 1, name="_private")
    (tmp_path / "README").write_text("text")
    (tmp_path / "link").symlink_to("README")
    (tmp_path / "pictures" / "more").mkdir(parents=True)
    (tmp_path / "pictures" / "model.txt").write_bytes(b"")
    found = scan(tmp_path, CONFIG)
    assert (_keys(found), found.broken) == (["m/1"], ())


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", ["m/10"]),
        ("version_policy { latest { num_versions: 2 } }", ["m/9", "m/10"]),
        ("version_policy { latest { num_versions: 99 } }", ["m/2", "m/9", "m/10"]),
        ("version_policy { all { } }", ["m/2", "m/9", "m/10"]),
        ("version_policy { specific { versions: [ 9, 2, 9 ] } }", ["m/2", "m/9"]),
    ],
)
def test_version_policies(tmp_path: Path, policy: str, expected: list[str]) -> None:
    _plain(tmp_path, 2, 10, 9, config=f"max_batch_size: 1 {policy}")
    assert _keys(scan(tmp_path, CONFIG)) == expected


def test_a_specific_version_that_is_missing(tmp_path: Path) -> None:
    _plain(tmp_path, 1, config="version_policy { specific { versions: [ 1, 7 ] } }")
    found = scan(tmp_path, CONFIG)
    assert _keys(found) == ["m/1"]
    (broken,) = found.broken
    assert (broken.name, broken.version, broken.reason) == ("m", "7", "is missing")


def test_a_broken_version_hides_no_other(tmp_path: Path) -> None:
    _plain(tmp_path, 1, 3, config="version_policy { all { } }")
    write_version(tmp_path, "m", b"junk", 2)
    found = scan(tmp_path, CONFIG)
    assert _keys(found) == ["m/1", "m/3"]
    assert [(broken.version, broken.problems[0].file) for broken in found.broken] == [("2", "m/2/model.onnx")]


def test_a_wrong_config_breaks_every_version_and_is_told_once(tmp_path: Path) -> None:
    _plain(tmp_path, 1, 2, config="version_policy { all { } } foo: 1")
    found = scan(tmp_path, CONFIG)
    assert [broken.version for broken in found.broken] == ["1", "2"]
    assert only_problem(found).key == "foo"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("0", "they begin at 1 and have no leading zeros"),
        ("01", "they begin at 1 and have no leading zeros"),
        ("9223372036854775808", "they end at 9223372036854775807"),
        ("9" * 30, "they end at 9223372036854775807"),
    ],
)
def test_numbers_that_are_no_versions(tmp_path: Path, number: str, text: str) -> None:
    _plain(tmp_path, 1, number)
    found = scan(tmp_path, CONFIG)
    assert _keys(found) == ["m/1"]
    (broken,) = found.broken
    assert broken.version == number
    assert text in broken.reason


def test_the_largest_version_number(tmp_path: Path) -> None:
    _plain(tmp_path, (1 << 63) - 1)
    assert _keys(scan(tmp_path, CONFIG)) == ["m/9223372036854775807"]


def test_a_config_without_a_version(tmp_path: Path) -> None:
    _plain(tmp_path, "latest", config="max_batch_size: 1")
    problem = only_problem(scan(tmp_path, CONFIG))
    assert str(problem) == "m: has no version directory; put the model into m/1/model.onnx"


def test_a_version_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "1").write_text("")
    assert only_problem(scan(tmp_path, CONFIG)).text == "is a file, not a directory"


@pytest.mark.parametrize("name", ["two words", "a" * 129, "ä", "a:b", b"raw\xff"])
def test_names_that_are_no_model_names(tmp_path: Path, name: str | bytes) -> None:
    directory = tmp_path / os.fsdecode(name)
    (directory / "1").mkdir(parents=True)
    found = scan(tmp_path, CONFIG)
    assert "is not a name for a model" in only_problem(found).text
    assert found.broken[0].name.encode()


def test_the_longest_name(tmp_path: Path) -> None:
    name = "aZ09._-" + "x" * 121
    _plain(tmp_path, 1, name=name)
    assert _keys(scan(tmp_path, CONFIG)) == [f"{name}/1"]


def _directory(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _dangling(path: Path) -> None:
    path.symlink_to("nothing")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


ODD_FILES = [
    (_directory, "is a directory, not a file"),
    (_pipe, "is a named pipe, not a file"),
    (_socket, "is a socket, not a file"),
    (_device, "is a symbolic link to /dev/zero, outside the model's directory"),
    (_dangling, "a symbolic link to nothing"),
    (_loop, "Too many levels of symbolic links"),
]


@pytest.mark.parametrize(("make", "text"), ODD_FILES)
def test_a_model_file_that_is_something_else(tmp_path: Path, make: Callable[[Path], None], text: str) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    make(tmp_path / "m" / "1" / "model.onnx")
    problem = only_problem(scan(tmp_path, CONFIG))
    assert problem.file == "m/1/model.onnx"
    assert text in problem.text


@pytest.mark.parametrize(("make", "text"), ODD_FILES)
def test_a_config_that_is_something_else(tmp_path: Path, make: Callable[[Path], None], text: str) -> None:
    make(_plain(tmp_path, 1) / "config.pbtxt")
    problem = only_problem(scan(tmp_path, CONFIG))
    assert problem.file == "m/config.pbtxt"
    assert text in problem.text


def test_a_missing_model_file(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    assert str(only_problem(scan(tmp_path, CONFIG))) == "m/1/model.onnx: is missing"


def test_another_file_name(tmp_path: Path) -> None:
    directory = _plain(tmp_path, 1, config='default_model_filename: "net.onnx"')
    (directory / "1" / "model.onnx").rename(directory / "1" / "net.onnx")
    assert served(scan(tmp_path, CONFIG)).path == str(directory.resolve() / "1" / "net.onnx")


def test_links_inside_the_model_are_followed(tmp_path: Path) -> None:
    directory = _plain(tmp_path, 1, 2, config="version_policy { all { } }")
    (directory / "2" / "model.onnx").unlink()
    (directory / "2" / "model.onnx").symlink_to("../1/model.onnx")
    (directory / "3").symlink_to("1")
    assert _keys(scan(tmp_path, CONFIG)) == ["m/1", "m/2", "m/3"]


@pytest.mark.parametrize("absolute", [True, False])
def test_links_to_another_model_are_refused(tmp_path: Path, absolute: bool) -> None:
    target = _plain(tmp_path, 1, name="other") / "1" / "model.onnx"
    directory = _plain(tmp_path, 1)
    (directory / "1" / "model.onnx").unlink()
    (directory / "1" / "model.onnx").symlink_to(target if absolute else "../../other/1/model.onnx")
    found = scan(tmp_path, CONFIG)
    assert _keys(found) == ["other/1"]
    assert "outside the model's directory; put the file itself there" in found.problems[0].text


def test_a_version_directory_linked_from_elsewhere_is_refused(tmp_path: Path) -> None:
    other = _plain(tmp_path, 1, name="other")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "1").symlink_to(other / "1")
    problem = only_problem(replace(scan(tmp_path, CONFIG), servable=()))
    assert (problem.file, "outside the model's directory" in problem.text) == ("m/1", True)


def test_a_model_directory_may_be_linked_inside_the_repository_only(tmp_path: Path) -> None:
    root = tmp_path / "models"
    outside = _plain(tmp_path / "elsewhere", 1, name="far")
    _plain(root, 1)
    (root / "alias").symlink_to("m")
    (root / "far").symlink_to(outside)
    (root / "gone").symlink_to("nothing")
    found = scan(root, CONFIG)
    assert _keys(found) == ["alias/1", "m/1"]
    assert [str(problem).split(";")[0] for problem in found.problems] == [
        f"far: is a symbolic link to {outside.resolve()}, outside the repository",
        "gone: is a symbolic link to nothing",
    ]


def test_the_repository_itself_may_be_a_link(tmp_path: Path) -> None:
    _plain(tmp_path / "real", 1)
    (tmp_path / "link").symlink_to("real")
    assert served(scan(tmp_path / "link", CONFIG)).path.startswith(str(tmp_path.resolve() / "real"))


def _external(root: Path, location: str, **pieces: int) -> Path:
    model = plain_model()
    model.graph.initializer.append(external_tensor("w", location, **pieces))
    return write_version(root, "m", model) / "1"


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    directory = _external(tmp_path, "deep/weights.bin", offset=4, length=8)
    (directory / "deep").mkdir()
    (directory / "deep" / "weights.bin").write_bytes(bytes(12))
    model = served(scan(tmp_path, CONFIG))
    assert model.file_bytes == (directory / "model.onnx").stat().st_size + 12


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("../weights.bin", "is not a path inside the model's directory"),
        ("a/../../weights.bin", "is not a path inside the model's directory"),
        ("/etc/passwd", "is not a path inside the model's directory"),
        ("none.bin", "which is missing"),
        ("model.onnx/x", "Not a directory"),
        (".", "which is a directory, not a file"),
        ("short.bin", "which has 11 bytes and not the 12 that the tensor needs"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_external_data_that_is_out_of_reach(tmp_path: Path, location: str, text: str) -> None:
    directory = _external(tmp_path, location, offset=4, length=8)
    for place in (directory, directory.parent, tmp_path):
        (place / "weights.bin").write_bytes(bytes(12))
    (directory / "short.bin").write_bytes(bytes(11))
    problem = only_problem(scan(tmp_path, CONFIG))
    assert problem.text.startswith("tensor 'w' has its data in ")
    assert text in problem.text


def test_external_data_linked_from_outside_is_refused(tmp_path: Path) -> None:
    directory = _external(tmp_path, "weights.bin")
    (tmp_path / "secret").write_bytes(bytes(4))
    (directory / "weights.bin").symlink_to("../../secret")
    assert "outside the model's directory" in only_problem(scan(tmp_path, CONFIG)).text


@pytest.mark.parametrize("behind", [False, True])
def test_external_data_that_is_a_link_inside_the_model_is_refused(tmp_path: Path, behind: bool) -> None:
    """ONNX Runtime's own rule about links is younger than some of its releases that may run here."""
    directory = _external(tmp_path, "deep/weights.bin")
    (directory / "real").mkdir()
    (directory / "real" / "weights.bin").write_bytes(bytes(4))
    if behind:
        (directory / "deep").symlink_to("real")
    else:
        (directory / "deep").mkdir()
        (directory / "deep" / "weights.bin").symlink_to("../real/weights.bin")
    assert "a symbolic link; put the file itself there" in only_problem(scan(tmp_path, CONFIG)).text


def test_a_version_that_is_a_link_may_have_external_data(tmp_path: Path) -> None:
    directory = _external(tmp_path, "weights.bin")
    (directory / "weights.bin").write_bytes(bytes(4))
    (directory.parent / "2").symlink_to("1")
    assert served(scan(tmp_path, CONFIG)).version == 2


@pytest.mark.parametrize("location", ["*/_ORT_MEM_ADDR_/*", "*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*"])
def test_addresses_in_memory_are_refused(tmp_path: Path, location: str) -> None:
    directory = _external(tmp_path, location, offset=64, length=4)
    (directory / location.replace("/*", "")).mkdir(parents=True)
    (directory / location).write_bytes(bytes(100))
    problem = only_problem(scan(tmp_path, CONFIG))
    assert problem.text.startswith("tensor 'w' has its data at an address in memory")


def test_what_is_wrong_with_one_location_is_said_once(tmp_path: Path) -> None:
    model = plain_model()
    model.graph.initializer.extend(external_tensor(name, "none.bin") for name in ("first", "second"))
    write_version(tmp_path, "m", model)
    assert "tensor 'first' has its data in 'none.bin'" in only_problem(scan(tmp_path, CONFIG)).text


def test_a_location_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    _external(tmp_path, "a\0b")
    assert "is not a path inside" in only_problem(scan(tmp_path, CONFIG)).text


def test_the_fingerprint_changes_with_the_files_of_the_worker_only(tmp_path: Path) -> None:
    directory = _external(tmp_path, "weights.bin")
    (directory / "weights.bin").write_bytes(bytes(4))
    (directory.parent / "config.pbtxt").write_text("max_batch_size: 4")
    (first,) = scan(tmp_path, CONFIG).servable
    assert scan(tmp_path, CONFIG).servable == (first,)

    os.utime(directory.parent / "config.pbtxt", ns=(1, 1))
    assert scan(tmp_path, CONFIG).servable == (first,)

    (directory / "weights.bin").write_bytes(bytes(5))
    (second,) = scan(tmp_path, CONFIG).servable
    assert second.fingerprint != first.fingerprint

    replacement = directory / "new"
    shutil.copy2(directory / "model.onnx", replacement)
    replacement.replace(directory / "model.onnx")
    (third,) = scan(tmp_path, CONFIG).servable
    assert third.fingerprint != second.fingerprint
    assert third.model == second.model

    (directory.parent / "config.pbtxt").write_text("max_batch_size: 5")
    (fourth,) = scan(tmp_path, CONFIG).servable
    assert fourth.fingerprint == third.fingerprint
    assert fourth.model != third.model


def test_limits_on_numbers_of_directories(tmp_path: Path) -> None:
    _plain(tmp_path, 1, name="n")
    for number in range(1, VERSIONS_MAX + 2):
        (tmp_path / "m" / str(number)).mkdir(parents=True)
    found = scan(tmp_path, CONFIG)
    text = f"m: has {VERSIONS_MAX + 1} version directories; the limit is {VERSIONS_MAX}"
    assert [str(problem) for problem in found.problems] == [text]
    assert _keys(found) == ["n/1"]
    for number in range(MODELS_MAX - 1):
        (tmp_path / f"x{number}").mkdir()
    with pytest.raises(ConfigInvalid, match=f"holds {MODELS_MAX + 1} directories; the limit is {MODELS_MAX}"):
        scan(tmp_path, CONFIG)


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_repository_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigInvalid, match=r"cannot be read: .*; give a directory of models") as caught:
        scan(tmp_path / name, CONFIG)
    assert caught.value.problems[0].file == str(tmp_path / name)


def test_an_empty_repository(tmp_path: Path) -> None:
    assert scan(tmp_path, CONFIG) == RepositoryScan(servable=(), broken=(), notes=())


SCAN_WITHOUT_RIGHTS = """
import os, sys
from pathlib import Path
from appliance.domain.errors import ConfigInvalid
from appliance.config.repository import RepositoryConfig
from appliance.sources.directory import DirectorySource
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    for problem in DirectorySource(Path(sys.argv[1]), RepositoryConfig()).read().problems:
        print(problem)
except ConfigInvalid as error:
    print(error)
"""


def _scan_without_rights(root: Path) -> str:
    """What a scan says in a process that has no special rights; it gives them up itself when it has them."""
    done = subprocess.run(
        [sys.executable, "-c", SCAN_WITHOUT_RIGHTS, str(root)],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    return done.stdout


def test_directories_and_files_without_permission() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        _plain(root, 1, name="closed").chmod(0o000)
        (_plain(root, 1, name="file") / "1" / "model.onnx").chmod(0o000)
        (_plain(root, 1, name="config", config="max_batch_size: 1") / "config.pbtxt").chmod(0o000)
        (_plain(root, 1, name="version") / "1").chmod(0o000)
        _plain(root, 1, name="good")
        try:
            assert _scan_without_rights(root).splitlines() == [
                "closed: cannot be read: Permission denied",
                "config/config.pbtxt: cannot be opened: Permission denied",
                "file/1/model.onnx: cannot be opened: Permission denied",
                "version/1/model.onnx: cannot be read: Permission denied",
            ]
            root.chmod(0o000)
            assert "cannot be read: Permission denied" in _scan_without_rights(root)
        finally:
            for path in (root, root / "closed", root / "version" / "1"):
                path.chmod(0o755)


def test_reading_a_repository_needs_no_runtime_and_no_numpy() -> None:
    code = (
        "import sys, appliance.repository.directory; "
        "print({'numpy', 'onnx', 'onnxruntime', 'google.protobuf', 'asyncio'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.strip() == "set()"


def test_another_configuration_leaves_the_file_its_name(tmp_path: Path) -> None:
    home = _plain(tmp_path, 1, config='default_model_filename: "graph.onnx" max_batch_size: 4')
    (home / "1" / "model.onnx").rename(home / "1" / "graph.onnx")
    for config, largest in ((b"", CONFIG.default_max_batch_size), (b"max_batch_size: 3", 3)):
        reading = read_model_directory(str(tmp_path), "m", CONFIG, config)
        assert reading is not None
        (found,) = reading.servable
        assert (found.model.model_file, found.model.max_batch_size) == ("graph.onnx", largest), config
    named = read_model_directory(str(tmp_path), "m", CONFIG, b'default_model_filename: "other.onnx"')
    assert named is not None
    assert "other.onnx" in named.broken[0].reason
    (home / "config.pbtxt").write_text("nonsense {")
    unreadable = read_model_directory(str(tmp_path), "m", CONFIG, b"max_batch_size: 3")
    assert unreadable is not None
    assert "model.onnx" in unreadable.broken[0].reason
