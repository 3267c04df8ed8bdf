"""What `make packages` left in dist/: each blob is what its name says, each bill names what is inside.

Skipped where nothing was made; that the package serves under systemd, `make units-test` shows.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from appliance.config.loading import load
from packages import deb, oci
from packages.processor import ARCHITECTURES, architecture, newest
from tests.architecture.sources import ROOT
from tests.runtimes.text_case import lowered

DIST = ROOT / "dist"
UNITS = "usr/lib/systemd/system"


MACHINES = {"x86_64": 62, "aarch64": 183}
"""How a program's own header calls its processor: e_machine, from Linux's elf-em.h."""


def made(pattern: str) -> Path:
    """What matches in dist/; skips where there is none."""
    found = sorted(DIST.glob(pattern))
    if not found:
        pytest.skip("nothing was made: make packages")
    return found[-1]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def processor(request: pytest.FixtureRequest) -> str:
    """Each that packages are made for."""
    return str(request.param)


@pytest.fixture(scope="module")
def package(processor: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package, unpacked."""
    root = tmp_path_factory.mktemp("package") / "root"
    found = made(f"edge-appliance_*_{architecture(processor)}.deb")
    subprocess.run(["dpkg-deb", "-R", found, root], check=True)
    return root


def test_all_that_a_package_runs_is_for_its_processor(package: Path, processor: str) -> None:
    assert f"Architecture: {architecture(processor)}\n" in (package / "DEBIAN/control").read_text()
    headers = {
        path.relative_to(package): path.read_bytes()[:20]
        for path in package.rglob("*.so*")
        if path.is_file() and not path.is_symlink()
    }
    programs = {path: said for path, said in headers.items() if said.startswith(b"\x7fELF")}
    assert any(path.name.startswith("_native") for path in programs), sorted(programs)
    of = {path: int.from_bytes(said[18:20], "little") for path, said in programs.items()}
    assert {path: number for path, number in of.items() if number != MACHINES[processor]} == {}


def test_the_package_that_is_looked_for_is_that_of_this_machine(tmp_path: Path) -> None:
    for name in ("edge-appliance_1_amd64.deb", "edge-appliance_2_arm64.deb", "edge-appliance_3_riscv64.deb"):
        (tmp_path / name).touch()
    (tmp_path / "edge-appliance-cuda_9_arm64.deb").touch()
    of = {"x86_64": "edge-appliance_1_amd64.deb", "aarch64": "edge-appliance_2_arm64.deb"}
    for each, name in of.items():
        assert newest(tmp_path, processor=each) == tmp_path / name
    assert newest(tmp_path) == tmp_path / of[platform.machine()]
    assert newest(tmp_path, "edge-appliance-cuda", "aarch64") == tmp_path / "edge-appliance-cuda_9_arm64.deb"
    assert newest(tmp_path, "edge-appliance-cuda", "x86_64") is None
    assert newest(tmp_path, processor="riscv64") is None
    with pytest.raises(LookupError, match="no package is made for the processor 'riscv64'"):
        architecture("riscv64")


def test_an_image_is_made_where_its_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tools := tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(oci, "EMULATORS", tmp_path)
    (other,) = set(ARCHITECTURES) - {platform.machine()}
    assert oci.lacking(platform.machine()) == "mmdebstrap"
    (tools / "mmdebstrap").touch(0o755)
    assert oci.lacking(platform.machine()) == ""
    assert oci.lacking(other) == f"an emulator of {other} that the kernel knows (Debian: qemu-user-static)"
    (tmp_path / f"qemu-{other}").touch()
    assert oci.lacking(other) == ""


def test_the_package_has_what_was_agreed_on(package: Path) -> None:
    for name in (
        "appliance.service",
        "appliance-sync.service",
        "appliance-controller.service",
        "appliance.slice",
    ):
        assert (package / UNITS / name).is_file()
    assert (package / "usr/bin/appliance").readlink() == Path("../lib/edge-appliance/bin/appliance")
    assert (package / "DEBIAN/conffiles").read_text() == "/etc/appliance/appliance.toml\n"
    assert (package / "usr/share/edge-appliance/models/digits/2/model.onnx").is_file()
    assert not [path for path in package.rglob("*") if path.is_file() and path.stat().st_mode & 0o7022]


def test_the_pages_lead_nowhere_where_nothing_is(package: Path) -> None:
    doc = package / "usr/share/doc/edge-appliance"
    pages = sorted(doc.glob("*.md"))
    assert {"GPU.md", "OPERATIONS.md", "TROUBLESHOOTING.md"} <= {page.name for page in pages}
    targets = [
        (page.name, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in target
    ]
    assert ("OPERATIONS.md", "examples/appliance-gpu.conf") in targets
    assert not [each for each in targets if not (doc / each[1]).exists()]


def test_a_link_to_what_is_not_there_is_its_words() -> None:
    text = (
        "see [store](STORE.md#pins), [design](design/LINK.md), [here](#top) and [site](https://x.example/y)"
    )
    assert deb.without_dead_links(text, {"STORE.md"}) == (
        "see [store](STORE.md#pins), design, [here](#top) and [site](https://x.example/y)"
    )


def test_the_sums_are_right(package: Path) -> None:
    done = subprocess.run(
        ["md5sum", "--quiet", "-c", "DEBIAN/md5sums"],
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_its_configuration_has_no_problem(package: Path) -> None:

    settings = load(package / "etc/appliance/appliance.toml")
    assert settings.models == "/usr/share/edge-appliance/models"


def test_the_operators_socket_of_a_container_is_where_its_user_may_make_one(tmp_path: Path) -> None:
    path = Path(shutil.copy(ROOT / "packages/debian/appliance.toml", tmp_path))
    subprocess.run(["sed", "-i", oci.CONTROL, str(path)], check=True)
    assert load(path).control.socket == "/tmp/appliance-control"


def test_text_models_in_a_container_that_name_no_locale_find_one(tmp_path: Path) -> None:
    locales = tmp_path / "usr/lib/locale"
    locales.mkdir(parents=True)
    subprocess.run(["sh", "-c", oci.LOCALE, "sh", tmp_path], check=True)
    assert lowered(locales) == "straße été ω"


def test_every_blob_of_the_image_is_what_its_name_says(processor: str) -> None:
    layout = made(f"*_{architecture(processor)}.oci")
    blobs = {path.name: path for path in (layout / "blobs/sha256").iterdir()}
    for name, path in blobs.items():
        with path.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == name

    def blob(described: dict[str, Any]) -> Path:
        path = blobs.pop(described["digest"].removeprefix("sha256:"))
        assert path.stat().st_size == described["size"]
        return path

    index = json.loads((layout / "index.json").read_bytes())
    manifest = json.loads(blob(index["manifests"][0]).read_bytes())
    config = json.loads(blob(manifest["config"]).read_bytes())
    with tarfile.open(blob(manifest["layers"][0])) as tar:
        names = set(tar.getnames())
    assert "./usr/bin/appliance" in names
    assert config["architecture"] == architecture(processor)
    assert index["manifests"][0]["platform"]["architecture"] == architecture(processor)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["config"]["User"])
    assert not blobs, "nothing lies there that nothing names"


@pytest.mark.parametrize(
    "kind", ["_amd64.deb", "_arm64.deb", "_amd64.oci", "_arm64.oci", ".whl"]
)  # the add-on's is test_cuda_package.py's
def test_a_bill_names_all_python_packages_and_crates(kind: str) -> None:
    bill = json.loads(made(f"edge[-_]appliance[-_][0-9]*{kind}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    named = {each["name"]: each for each in bill["components"]}
    locked = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert set(locked) - set(named) <= {"hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers"}
    assert "pyo3" in {each["name"] for each in named["edge-appliance-native"]["components"]}
    assert all(
        each.get("licenses") for each in bill["components"] if each.get("purl", "").startswith("pkg:pypi")
    )
    assert ("libc6" in named) == kind.endswith("oci")
    licences = made(f"edge[-_]appliance[-_][0-9]*{kind}.licences.txt").read_text()
    assert "Apache License" in licences
