"""The role in a chroot with a plain Debian 13, over SSH, where nothing runs: as when an image is made.

It shows what the role lays out, that it does so once, and what it refuses. What takes a systemd - that the service
starts, restarts and answers - it cannot show; ``make ansible-test`` does, and so does the scenario ``ansible-guest`` of
``make image-test``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from packages.cuda_deb import newest
from packages.cuda_runtime import HOME as RUNTIME
from packages.processor import architecture
from packages.processor import newest as newest_package
from tests.ansible.collection import INSTALLED, NOT_INSTALLED, ROOT, Ansible
from tests.ansible.provisioning import HOST, Provisioning, proxied
from tests.installation.cuda_stand_in import made
from tests.installation.machine import tree, unpack

FURTHER: Final = ("openssh-server", "python3-apt")
PACKAGE: Final = newest_package(ROOT / "dist")
ENABLED: Final = "etc/systemd/system/multi-user.target.wants/appliance.service"
SESSION: Final = """\
#!/bin/sh
# A session of SSH in the chroot, in namespaces that end with it. Its first process stays outside of the chroot, by
# which programs see that it is one.
exec unshare --mount --pid --fork --kill-child --net bash -euc '
mount --make-rprivate /
mount -t proc proc "$0/proc"
mount -t tmpfs tmpfs "$0/run" -o mode=755
mount -t tmpfs tmpfs "$0/dev" -o mode=755
for each in null zero full random urandom; do
  touch "$0/dev/$each"
  mount --bind "/dev/$each" "$0/dev/$each"
done
mkdir "$0/run/sshd" "$0/dev/shm"
ended=0
env -i PATH=/usr/sbin:/usr/bin chroot "$0" /usr/sbin/sshd -i || ended=$?
exit $ended' ROOT
"""


def lacking() -> str:
    """What is not here of what this takes."""
    there = {
        "root": os.geteuid() == 0,
        "mmdebstrap": shutil.which("mmdebstrap"),
        "an SSH client": shutil.which("ssh") and shutil.which("ssh-keygen"),
        "namespaces": shutil.which("unshare") and os.geteuid() == 0 and _makes_namespaces(),
        "the package of 'make deb' in dist/": PACKAGE,
    }
    return ", ".join(name for name, found in there.items() if not found)


def _makes_namespaces() -> bool:
    words = ("unshare", "--mount", "--pid", "--net", "--fork", "true")
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


@pytest.fixture(name="root")
def _root() -> Iterator[Path]:
    """A plain Debian 13 that lets the key of this test in."""
    try:
        packed = tree(FURTHER)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no Debian 13 is kept here, and mmdebstrap made none (status {error.returncode})")
    # Of a short name, for that of SSH's socket; and gone at the end, for it is large.
    with tempfile.TemporaryDirectory(prefix="chroot-") as place:
        root, key = Path(place) / "root", Path(place) / "ssh"
        root.mkdir()
        unpack(packed, root)
        (root / "etc/dpkg/dpkg.cfg.d/fast").write_text("force-unsafe-io\n")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(key.with_suffix(".pub"), root / "root/.ssh/authorized_keys")
        yield root


@pytest.fixture(name="site")
def _site(root: Path) -> Iterator[Provisioning]:
    folder = root.parent
    (session := folder / "session").write_text(SESSION.replace("ROOT", str(root)))
    session.chmod(0o700)
    assert PACKAGE is not None
    appliance = str(Path(sys.executable).parent / "appliance")
    subprocess.run([appliance, "model", "keygen", str(folder / "maker.key")], check=True, capture_output=True)
    (lay := folder / "collections").mkdir()
    yield Provisioning(
        ansible=Ansible.below(lay), package=PACKAGE, folder=folder, key=folder / "maker.key.pub",
        way=proxied(folder, folder / "ssh", str(session)),
    )  # fmt: skip
    for socket in (lay / ".ansible/cp").glob("*"):  # a session would stay for a minute
        subprocess.run(
            ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", HOST], check=False, capture_output=True
        )


@pytest.mark.skipif(not INSTALLED, reason=NOT_INSTALLED)
@pytest.mark.skipif(bool(lacking()), reason=f"not here: {lacking()}")
@pytest.mark.timeout(900)
def test_a_chroot_converges_once_and_is_only_laid_out(root: Path, site: Provisioning) -> None:
    play = {"hosts": "boxes", "gather_facts": False, "roles": ["edge.appliance.appliance"]}
    (book := site.folder / "box.json").write_text(json.dumps([play]))

    said = site.refused(str(book), appliance_answer_timeout_s=1)
    assert "appliance_answer_timeout_s: 1 is not from 5 to 3600" in said
    assert "appliance_started=false" in said, "where nothing runs, nothing can be started"
    assert not (root / "etc/appliance").exists()

    _, changed, _ = site.play(book=str(book), appliance_started=False, appliance_enabled=False)
    assert changed > 5
    settings = tomllib.loads((root / "etc/appliance/appliance.toml").read_text())
    assert settings["state_dir"] == "/var/lib/appliance"
    assert settings["packages"]["trusted_keys"] == ["/etc/appliance/keys/maker.key.pub"]
    key = root / "etc/appliance/keys/maker.key.pub"
    assert (key.read_bytes(), key.stat().st_mode & 0o777) == (site.key.read_bytes(), 0o644)
    assert (root / "etc/credstore").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (root / "var/cache/edge-appliance").iterdir()] == [site.package.name]
    assert f"edge-appliance_{version_in(root, 'edge-appliance')}_{architecture()}.deb" == site.package.name
    assert not (root / ENABLED).is_symlink(), "it was not to start with the machine"

    _, changed, _ = site.play(book=str(book), appliance_started=False)
    assert changed == 1
    assert (root / ENABLED).readlink() == Path("/usr/lib/systemd/system/appliance.service")
    said, changed, _ = site.play("--diff", book=str(book), appliance_started=False)
    assert changed == 0, said
    the_runtime_for_a_gpu_comes_by_itself(root, site, str(book))


def the_runtime_for_a_gpu_comes_by_itself(root: Path, site: Provisioning, book: str) -> None:
    """Of the add-on's package with a stand-in of its runtime: nothing is run of it here."""
    older, newer = (
        made(site.folder / name, replace(newest(), version=f"{newest().version}{name}"))
        for name in ("~older", "+newer")
    )
    said = site.refused(
        book, appliance_started=False, appliance_cuda_package=str(site.package), appliance_require_gpu=True
    )
    assert "is not named edge-appliance-cuda_VERSION_amd64.deb" in said
    assert "appliance_require_gpu: the NVIDIA driver is not loaded" in said

    def played(package: Path, *words: str, **more: object) -> tuple[str, int]:
        given = {"appliance_started": False, "appliance_cuda_package": str(package), **more}
        said, changed, _ = site.play(*words, book=book, **given)
        return said, changed

    assert played(older, "--check")[1] >= 1
    assert not (root / RUNTIME).exists()
    for package, more in ((newer, {}), (older, {"appliance_allow_downgrade": True})):
        assert played(package, **more)[1] >= 2, "copied, installed"
        assert version_in(root, "edge-appliance-cuda") == package.name.split("_")[1]
        assert (root / RUNTIME / "devices").is_file()
        assert [path.name for path in cache_of(root, "edge-appliance-cuda_*")] == [package.name]
        if package == newer:
            inventory = str(site.variables(appliance_started=False, appliance_cuda_package=str(older)))
            told = site.ansible.run("ansible-playbook", "-i", inventory, book, check=False).stdout
            assert "if it is meant so, appliance_allow_downgrade=true" in " ".join(told.split())
    said, changed = played(older, "--diff")
    assert changed == 0, said
    assert [path.name for path in cache_of(root, "edge-appliance_*")] == [site.package.name]


def cache_of(root: Path, pattern: str) -> list[Path]:
    """The packages that stay on the box."""
    return sorted((root / "var/cache/edge-appliance").glob(pattern))


def version_in(root: Path, package: str) -> str:
    """The version of what is installed; "" where it is not."""
    words = ("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package)
    said = subprocess.run(["chroot", str(root), *words], capture_output=True, text=True, check=False).stdout
    return said.removeprefix("installed ") if said.startswith("installed ") else ""
