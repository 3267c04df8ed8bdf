"""The package of the add-on for a GPU, made from a stand-in of its runtime, and what Python finds where both lie.

How the real one behaves on a Debian 13, `make units-test` shows, where dist/ has it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from packages import cuda_deb, cuda_runtime, tree
from packages.cuda_deb import NAME, ORDER_FILE, newest
from tests.architecture.sources import ROOT
from tests.installation.cuda_stand_in import made, stand_in

BASE_SITE = tree.SITE
FOUND = """
import json, sys
import onnxruntime, pynvml
from appliance.runtimes.distributions import clash, installed
print(json.dumps([onnxruntime.MADE_BY, pynvml.MADE_BY, installed("onnx"), clash("onnx"), sys.path]))
"""

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="there is no dpkg-deb here")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, as a file."""
    return made(tmp_path_factory.mktemp("package"), newest())


@pytest.fixture(scope="module")
def unpacked(package: Path) -> Path:
    """The package's files, with the folder DEBIAN."""
    root = package.parent / "unpacked"
    subprocess.run(["dpkg-deb", "-R", str(package), str(root)], check=True)
    return root


def fields(package: Path) -> dict[str, str]:
    """What dpkg is told."""
    done = subprocess.run(["dpkg-deb", "-f", str(package)], capture_output=True, text=True, check=True)
    return dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", done.stdout, re.MULTILINE))


def test_its_version_follows_its_runtime_and_not_the_product(package: Path) -> None:
    said = fields(package)
    runtime, cuda = cuda_runtime.releases()
    assert re.fullmatch(rf"{re.escape(runtime)}\+cuda{re.escape(cuda)}-[1-9][0-9]*", said["Version"])
    assert package.name == f"{NAME}_{said['Version']}_amd64.deb"
    newer = ["dpkg", "--compare-versions", said["Version"], "lt", f"{runtime}+cuda{cuda}-999"]
    assert subprocess.run(newer, check=False).returncode == 0


def test_it_takes_the_product_and_recommends_the_driver(package: Path) -> None:
    said = fields(package)
    assert "edge-appliance (>= 0.1.0)" in said["Depends"]
    assert "python3 (<< 3.14)" in said["Depends"], "its modules are of one release of Python"
    assert "zlib1g" in said["Depends"].split(", "), "cuDNN's libraries name libz.so.1"
    assert "cuda" not in said["Depends"].replace(NAME, ""), "a site may have NVIDIA's own driver"
    assert {"libcuda1", "libnvidia-ml1", "nvidia-modprobe"} <= set(
        re.findall(r"[a-z0-9-]+", said["Recommends"])
    )
    assert said["Enhances"] == "edge-appliance"
    assert said["Section"].startswith("non-free/")


def test_its_files_lie_apart_but_for_one(unpacked: Path) -> None:
    found = {path.relative_to(unpacked) for path in unpacked.rglob("*") if not path.is_dir()}
    elsewhere = {path for path in found if not path.is_relative_to(cuda_runtime.HOME)}
    assert {path for path in elsewhere if path.is_relative_to(tree.HOME)} == {ORDER_FILE}
    units = {path.name for path in elsewhere if path.is_relative_to(tree.UNITS)}
    assert units == {"10-gpu.conf", "appliance-gpu.service"}
    wanted = unpacked / tree.UNITS / "appliance.service.wants/appliance-gpu.service"
    assert wanted.resolve().is_file()
    assert not [path for path in found if path.parts[0] == "etc"], "nothing of it is for people to change"


def test_only_what_is_run_may_be(unpacked: Path) -> None:
    modes = {path: path.stat().st_mode & 0o7777 for path in unpacked.rglob("*") if path.is_file()}
    own = {path.name for path, mode in modes.items() if mode == 0o755 and path.parent.name != "DEBIAN"}
    assert own == {"devices"}
    assert set(modes.values()) == {0o644, 0o755}
    unit = (unpacked / tree.UNITS / "appliance-gpu.service").read_text()
    (command,) = re.findall(r"^ExecStart=/(\S+)$", unit, re.MULTILINE)
    assert os.access(unpacked / command, os.X_OK)


def test_its_sums_are_right(unpacked: Path) -> None:
    words = ["md5sum", "--quiet", "-c", "DEBIAN/md5sums"]
    done = subprocess.run(words, cwd=unpacked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    summed = {line.split("  ")[1] for line in (unpacked / "DEBIAN/md5sums").read_text().splitlines()}
    assert str(ORDER_FILE) in summed


def test_the_same_runtime_gives_the_same_bytes(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at another commit, whose time the product's own package has, and where the clock is behind."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1234567890")
    again = made(tmp_path, newest())
    assert digest(again) == digest(package)
    ahead = replace(newest(), when=int(time.time()) + 86_400)
    one, other = made(tmp_path / "one", ahead), made(tmp_path / "other", ahead)
    assert digest(package) != digest(one) == digest(other)
    listed = subprocess.run(["dpkg-deb", "--ctrl-tarfile", str(one)], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(listed)) as tar:
        assert {each.mtime for each in tar} == {ahead.when}


def digest(path: Path) -> str:
    """Of a small file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.skipif(shutil.which("lintian") is None, reason="there is no lintian here")
def test_lintian_has_no_word(package: Path) -> None:
    done = subprocess.run(["lintian", str(package)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout == ""


def test_a_lock_that_changed_wants_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    lock.write_text(cuda_runtime.LOCK.read_text().replace("onnxruntime-gpu==1.", "onnxruntime-gpu==91."))
    monkeypatch.setattr(cuda_runtime, "LOCK", lock)
    with pytest.raises(LookupError, match=r"a version that is higher, beginning with 91\.\S+\+cuda\S+-, and"):
        newest()


@pytest.mark.parametrize("missing", ["Made of", " -- ", NAME])
def test_a_changelog_without_what_is_needed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    (path := tmp_path / "changelog").write_text(cuda_deb.CHANGELOG.read_text().replace(missing, "?"))
    monkeypatch.setattr(cuda_deb, "CHANGELOG", path)
    with pytest.raises(LookupError, match="does not begin with"):
        newest()


class Box:
    """A root with an environment of this Python in the place of Debian's, which packages are unpacked into."""

    def __init__(self, root: Path) -> None:
        self._home = root / tree.HOME
        self._root = root
        self._own = f"python{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self._home)], check=True)

    def unpack(self, package: Path) -> None:
        """As dpkg does, which has no word in what of a folder is another package's."""
        (place := self._root / "unpacked").mkdir()
        subprocess.run(["dpkg-deb", "-x", str(package), str(place)], check=True)
        self.take(place)

    def take(self, place: Path) -> None:
        """Put the files of a tree where this Python's packages are; the tree goes."""
        for path in sorted(place.rglob("*")):
            if path.is_file() and not path.is_symlink():
                target = self._root / str(path.relative_to(place)).replace("python3.13", self._own)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
        shutil.rmtree(place)

    def base(self, version: str) -> None:
        """Install a stand-in of the product's own runtime."""
        place = self._root / "base"
        stand_in(place / BASE_SITE, "onnxruntime", version)
        for old in (self._home / f"lib/{self._own}/site-packages").glob("onnxruntime-*.dist-info"):
            shutil.rmtree(old)
        self.take(place)

    def remove(self, unpacked: Path) -> None:
        """Remove what a package has brought, and folders that are empty then."""
        for path in sorted(unpacked.rglob("*"), reverse=True):
            here = self._root / str(path.relative_to(unpacked)).replace("python3.13", self._own)
            if here.is_dir() and not here.is_symlink():
                if not any(here.iterdir()):
                    here.rmdir()
            else:
                here.unlink(missing_ok=True)

    def found(self) -> tuple[str, str, dict[str, str], str, list[str]]:
        """What a process of it imports, and what is said of that."""
        done = subprocess.run(
            [self._home / "bin/python", "-P", "-c", FOUND], env={"PYTHONPATH": str(ROOT)}, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        runtime, driver, installed, told, path = json.loads(done.stdout)
        return runtime, driver, installed, told, path


@pytest.fixture(name="box")
def _box(tmp_path: Path) -> Box:
    return Box(tmp_path / "box")


@pytest.mark.parametrize("first", ["the product", "the add-on"])
def test_the_add_on_goes_before_the_product_in_whatever_order_they_came(
    box: Box, package: Path, unpacked: Path, first: str
) -> None:
    if first == "the product":
        box.base("1.0")
    box.unpack(package)
    if first == "the add-on":
        box.base("1.0")
    release = cuda_runtime.releases()[0]
    for version in ("2.0", "3.0"):
        runtime, driver, installed, told, path = box.found()
        assert (runtime, driver) == ("onnxruntime-gpu", "onnxruntime-gpu")
        assert installed == {"onnxruntime-gpu": release}
        assert told == ""
        (own, other) = (
            next(i for i, each in enumerate(path) if end in each) for end in ("-cuda/", "appliance/lib")
        )
        assert own + 1 == other, path
        assert own > path.index(os.path.dirname(json.__file__).rpartition("/")[0]), (
            "behind Python's own modules"
        )
        box.base(version)  # as an upgrade does
    box.remove(unpacked)
    runtime, driver, installed, told, path = box.found()
    assert (runtime, installed, told) == ("onnxruntime", {"onnxruntime": "3.0"}, "")
    assert not [each for each in path if "-cuda" in each]


@pytest.mark.skipif(
    not sorted((ROOT / "dist").glob(f"{NAME}_*.deb.cdx.json")), reason="not made: make cuda-deb"
)
def test_the_bill_of_the_real_one_names_all_that_is_locked() -> None:
    path = max((ROOT / "dist").glob(f"{NAME}_*.deb.cdx.json"))
    bill = json.loads(path.read_text())
    assert bill["metadata"]["component"]["name"] == NAME
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", cuda_runtime.LOCK.read_text(), re.MULTILINE))
    assert {each["name"]: each["version"] for each in bill["components"]} == locked
    assert all(each.get("licenses") for each in bill["components"])
    licences = path.with_name(path.name.replace(".cdx.json", ".licences.txt")).read_text()
    assert "NVIDIA" in licences
