"""An image for container engines, as the layout of the Open Container Initiative: a directory of blobs named by their
digests, made without an engine and without a daemon.

Its one layer is a minimal Debian 13 with the Debian package installed in it, by mmdebstrap. Source of the forms: the
image specification, release 1.1 (image-layout.md, config.md, manifest.md).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from packages.processor import architecture
from packages.tree import epoch, version

NEEDED: Final = (
    "python3,libgcc-s1,libstdc++6,init-system-helpers,systemd-standalone-sysusers,ca-certificates,tzdata"
)
LEFT_OUT: Final = (
    "/usr/share/man/*",
    "/usr/share/locale/*",
    "/usr/share/doc/*/changelog*",
    "/usr/share/info/*",
)
COMMAND: Final = (
    "serve",
    "--config",
    "/etc/appliance/appliance.toml",
    "--grpc",
    "0.0.0.0:8001",
    "--http",
    "0.0.0.0:8000",
)
CONTROL: Final = 's|^socket = "/run/appliance/control"$|socket = "/tmp/appliance-control"|'
"""The operator's socket for sed: no systemd makes /run/appliance in a container, and its user may not."""
EMULATORS: Final = Path("/proc/sys/fs/binfmt_misc")
LOCALE: Final = 'ln -s C.utf8 "$1/usr/lib/locale/en_US.utf8"'
"""For a shell: ONNX Runtime changes the case of letters by en_US.UTF-8 where a model names no locale, and C.UTF-8, the
only one of a minimal Debian, has the same letters."""
STATE: Final = "/var/lib/appliance"
_TYPE: Final = "application/vnd.oci.image"
_STATUS: Final = "./var/lib/dpkg/status"
_PASSWD: Final = "./etc/passwd"


def lacking(processor: str) -> str:
    """What is not here of what an image for a processor is made with; empty where all is."""
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap"
    runs = processor == platform.machine() or (EMULATORS / f"qemu-{processor}").exists()
    return "" if runs else f"an emulator of {processor} that the kernel knows (Debian: qemu-user-static)"


def build(package: Path, out: Path, processor: str) -> tuple[Path, str]:
    """Make the layout of a Debian ``package`` for a processor in the folder ``out``; gives its path, and what dpkg
    says of what is in it. Raises CalledProcessError where no root can be made, FileNotFoundError without mmdebstrap."""
    called = architecture(processor)
    made = out / f"edge-appliance_{version()}_{called}.oci"
    shutil.rmtree(made, ignore_errors=True)
    (made / "blobs/sha256").mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="edge-appliance-") as place:
        root = Path(place) / "root.tar"
        _make_root(package, root, called)
        with tarfile.open(root) as tar:
            status, passwd = _text(tar, _STATUS), _text(tar, _PASSWD)
        layer, plain = _layer(made, root)
    created = datetime.fromtimestamp(epoch(), UTC).isoformat()
    config = _blob(made, _config(plain, created, _ids(passwd), called), f"{_TYPE}.config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPE}.manifest.v1+json",
        "config": config,
        "layers": [layer],
        "annotations": {"org.opencontainers.image.title": "edge-appliance"},
    }
    described = _blob(made, manifest, f"{_TYPE}.manifest.v1+json")
    described["annotations"] = {"org.opencontainers.image.ref.name": version()}
    described["platform"] = {"architecture": called, "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [described]}
    (made / "index.json").write_bytes(_json(index))
    (made / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return made, status


def digest_of(layout: Path) -> str:
    """By which the image is known: that of its manifest, in hexadecimal."""
    index = json.loads((layout / "index.json").read_bytes())
    return str(index["manifests"][0]["digest"]).removeprefix("sha256:")


def _make_root(package: Path, target: Path, called: str) -> None:
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={NEEDED}",
        f"--architectures={called}",
    ]
    command += [f"--dpkgopt=path-exclude={each}" for each in LEFT_OUT]
    command += [
        f'--customize-hook=copy-in "{package.absolute()}" /root',
        f'--customize-hook=chroot "$1" dpkg -i "/root/{package.name}"',
        f'--customize-hook=rm "$1/root/{package.name}"',
        f"--customize-hook=sed -i '{CONTROL}' \"$1/etc/appliance/appliance.toml\"",
        f"--customize-hook={LOCALE}",
        # Engines give a new volume the owner that its place has in the image.
        f'--customize-hook=chroot "$1" install -d -o appliance -g appliance -m 0700 {STATE}',
        '--customize-hook=rm -f "$1"/var/log/*.log "$1"/var/log/apt/* "$1"/etc/hostname "$1"/etc/resolv.conf',
    ]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
    subprocess.run([*command, "trixie", str(target)], check=True, env=environment, stdin=subprocess.DEVNULL)


def _text(tar: tarfile.TarFile, name: str) -> str:
    found = tar.extractfile(name)
    assert found is not None, name
    return found.read().decode()


def _layer(made: Path, root: Path) -> tuple[dict[str, Any], str]:
    """The layer's descriptor, and the digest of what it is when it is unpacked."""
    plain = hashlib.sha256()
    packed = made / "blobs/sha256/layer"
    with (
        root.open("rb") as source,
        packed.open("wb") as target,
        gzip.GzipFile("", "wb", 6, target, mtime=0) as zipped,
    ):
        while piece := source.read(1 << 20):
            plain.update(piece)
            zipped.write(piece)
    with packed.open("rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
    size = packed.stat().st_size
    packed.rename(packed.with_name(digest))
    return _descriptor(f"{_TYPE}.layer.v1.tar+gzip", digest, size), plain.hexdigest()


def _config(plain: str, created: str, user: str, called: str) -> dict[str, Any]:
    return {
        "created": created,
        "architecture": called,
        "os": "linux",
        "config": {
            "User": user,
            "ExposedPorts": {"8000/tcp": {}, "8001/tcp": {}},
            "Entrypoint": ["/usr/bin/appliance"],
            "Cmd": list(COMMAND),
            "Volumes": {STATE: {}},
            "StopSignal": "SIGTERM",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{plain}"]},
        "history": [{"created": created, "created_by": "python -m packages"}],
    }


def _ids(passwd: str) -> str:
    """User and group of the daemon, as numbers: engines that check for root cannot look names up."""
    fields = next(line.split(":") for line in passwd.splitlines() if line.startswith("appliance:"))
    return f"{fields[2]}:{fields[3]}"


def _blob(made: Path, value: object, kind: str) -> dict[str, Any]:
    data = _json(value)
    digest = hashlib.sha256(data).hexdigest()
    (made / "blobs/sha256" / digest).write_bytes(data)
    return _descriptor(kind, digest, len(data))


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
