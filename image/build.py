"""Build an image: ``python -m image.build``, which is ``make image``, for a processor or with ``--variant gpu``.

What it leaves in the folder: ``edge-appliance_VERSION.disk.raw.zst``, to be written to a disk; ``release-VERSION``,
what ``appliance image update`` takes; beside them the manifest and the bill of materials. The same sources, packages
and keys give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from appliance import __version__
from appliance.image.machine import ARCHITECTURES
from appliance.image.release import MACHINES, VARIANTS, version_key
from appliance.package.keys import make_key, public_pem
from image import product
from image.bill import bill
from image.disk import compose
from image.place import HERE, ROOT, Built, Place, processor_of
from image.publish import publish

FIRMWARE_KEYS: Final = ("secure-boot", "pcr")
PACKAGES: Final = {
    ("x86-64", "cpu"): (HERE / "packages.lock",),
    ("x86-64", "gpu"): (HERE / "packages.lock", HERE / "packages-gpu.lock"),
    ("arm64", "cpu"): (HERE / "packages-arm64.lock",),
}
"""By architecture and variant, as far as they are made; the last file has those that only this one has."""
HANDLERS: Final = Path("/proc/sys/fs/binfmt_misc")
"""Where the kernel says which programs of other processors it starts, and how."""
COMPONENTS: Final = {"cpu": "main", "gpu": "main contrib non-free non-free-firmware"}
"""Of Debian's archive, by variant."""
CONFIGURATION: Final = """\
# The image's own configuration. What the site changes lies over it (/var/lib/appliance-image/etc).
state_dir = "/var/lib/appliance"

[grpc]
addresses = ["0.0.0.0:8001"]

[http]
addresses = ["0.0.0.0:8000"]
"""
FIRST_MODELS: Final = '[packages]\ntrusted_keys = ["../image-keys/release.pub"]\n'


def main() -> None:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--variant", choices=VARIANTS, default="cpu", help="gpu: with NVIDIA's driver and CUDA"
    )
    parser.add_argument("--architecture", choices=MACHINES, default=MACHINES[0], help="of the machines")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where all of it goes (default: build/image, build/image-gpu, build/image-arm64)",
    )
    parser.add_argument(
        "--keys", type=Path, help="folder with the keys (default: made in the folder, for trying out)"
    )
    parser.add_argument("--image-version", default=__version__, metavar="V", help="such as 1.4.2")
    parser.add_argument("--extra", type=Path, help="a tree that lies over everything, for tests")
    parser.add_argument(
        "--lock", action="store_true", help="take the packages that there are now as those to have"
    )
    arguments = parser.parse_args()
    try:
        version_key(arguments.image_version)
    except ValueError as error:
        raise SystemExit(f"make: {error}") from error
    variant, architecture = arguments.variant, arguments.architecture
    check_possible(architecture, variant)
    folder = arguments.folder or ROOT / "build" / folder_name(architecture, variant)
    place = Place(folder=folder.resolve(), architecture=architecture)
    prepare(place, variant, arguments.keys)
    built = build(place, arguments.image_version, variant, arguments.extra)
    check_packages(built, lock=arguments.lock)
    finish(place, built)


def folder_name(architecture: str, variant: str) -> str:
    """The folder below build/ where such images are made."""
    own = [word for word in (architecture, variant) if word not in (MACHINES[0], VARIANTS[0])]
    return "-".join(["image", *own])


def check_possible(architecture: str, variant: str, handlers: Path = HANDLERS) -> None:
    """End the build where there is no such image, or where this machine cannot run the programs that go into it."""
    if (architecture, variant) not in PACKAGES:
        raise SystemExit(
            f"make: VARIANT={variant} is not made for ARCHITECTURE={architecture}; leave out one of them"
        )
    here = platform.machine()
    if ARCHITECTURES.get(here, here) == architecture:
        return
    handler = handlers / f"qemu-{processor_of(architecture)}"
    if not handler.exists() or "F" not in handler.read_text().partition("flags: ")[2].splitlines()[0]:
        raise SystemExit(
            f"make: this machine ({here}) does not run programs of {architecture}, and packages run some when they "
            f"are installed: {handler} is not there, or has no flag F; on Debian and Ubuntu install it: "
            "apt-get install qemu-user-static"
        )


def prepare(place: Place, variant: str, keys: Path | None) -> None:
    """Tools, keys, the product, and what makes this image the one of its maker."""
    place.folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run([HERE / "tools.sh", place.folder, place.architecture], check=False).returncode:
        raise SystemExit(1)
    product.lay_out(place, variant)
    own = place.folder / "keys"
    if keys is not None:
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(keys, own)
    make_keys(own)
    shutil.rmtree(place.folder / "sandbox", ignore_errors=True)
    sources = place.folder / "sandbox" / "etc" / "apt" / "sources.list.d"
    sources.mkdir(parents=True)
    (sources / "mkosi.sources").write_text(_sources(place.folder / "tools", COMPONENTS[variant]))
    identity = place.folder / "identity"
    shutil.rmtree(identity, ignore_errors=True)
    share = identity / "usr" / "share" / "edge-appliance"
    for name in ("image", "image-keys"):
        (share / name).mkdir(parents=True)
    shutil.copy(own / "release.pub", share / "image-keys")
    shutil.copy(own / "secure-boot.crt", share / "image-keys")
    (share / "image" / "first-models.toml").write_text(FIRST_MODELS)
    _pack(own / "release", share / "image" / "digits.model")
    (identity / "etc" / "appliance").mkdir(parents=True)
    (identity / "etc" / "appliance" / "appliance.toml").write_text(CONFIGURATION)


def make_keys(folder: Path) -> None:
    """The keys that are missing: of releases, of what the firmware starts, of what a TPM is to unseal for."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (folder / "release").exists():
        private, public = make_key("ed25519")  # whose signatures are the same each time
        (folder / "release.pub").write_bytes(public_pem(public))
        descriptor = os.open(folder / "release", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(private)
    for name in FIRMWARE_KEYS:
        if not (folder / f"{name}.key").exists():
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "7300"]
            command += ["-subj", f"/CN=edge appliance {name}/"]
            command += ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")]
            subprocess.run(command, check=True, capture_output=True)


def build(place: Place, version: str, variant: str, extra: Path | None) -> Built:
    """Have mkosi make partitions and kernel of that version and variant."""
    built = place.built(version, variant)
    built.folder.mkdir(exist_ok=True)
    for path in built.folder.glob(f"{built.name}*"):
        path.unlink()
    print(f"make: building image {version} ({place.architecture}, {variant})", flush=True)
    command = ["mkosi", "--directory", "/source/image/mkosi", "--image-version", version, "--force"]
    command += ["--architecture", place.architecture]
    command += ["--sandbox-tree", "/build/sandbox", "--environment", f"VARIANT={variant}"]
    if variant != "cpu":
        (place.folder / "modules").mkdir(exist_ok=True)
        command += ["--profile", variant]
    if extra is not None:
        shutil.rmtree(place.folder / "extra", ignore_errors=True)
        shutil.copytree(extra, place.folder / "extra")
        command += ["--extra-tree", "/build/extra"]
    place.run(*command, "build", log=place.folder / "mkosi.log")
    (built.folder / f"{built.name}.raw").unlink(missing_ok=True)
    return built


def check_packages(built: Built, *, lock: bool) -> None:
    """Compare what is in the image with the packages that were tested, and tell what differs."""
    said = json.loads(built.manifest.read_text())["packages"]
    here = sorted(f"{each['name']}={each['version']}" for each in said)
    *common, own = PACKAGES[built.architecture, built.variant]
    wanted = [each for path in common for each in path.read_text().split()]
    if lock:
        own.write_text("\n".join(each for each in here if each not in wanted) + "\n")
    wanted += own.read_text().split()
    different = sorted(set(here) ^ set(wanted))
    if different:
        shown = "\n".join(f"  {'here' if each in here else 'lock'}: {each}" for each in different)
        print(
            f"make: the mirror gives other packages than image/{own.name} has (TAKE_PACKAGES=1 takes them):\n{shown}"
        )


def finish(place: Place, built: Built) -> None:
    """The disk, the release, the papers."""
    disk = place.folder / f"{built.name}.disk.raw"
    compose(place, built, disk)
    release = publish(
        built, built.variant, place.folder / "keys" / "release", place.folder / f"release-{built.version}"
    )
    (place.folder / f"{built.name}.cdx.json").write_text(
        bill(built.manifest, product.distributions(place, built.variant), built.version)
    )
    shutil.copy(built.manifest, place.folder / f"{built.name}.manifest.json")
    place.run("zstd", "-q", "-f", "-T2", "-9", place.inside(disk), log=place.folder / "disk.log")
    packed = disk.with_suffix(".raw.zst")
    for path in (built.root, built.sums, built.kernel, built.boot, disk):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        print(f"  {digest}  {path.stat().st_size:>13,}  {path.name}")
    print(f"make: {packed.name} has {packed.stat().st_size:,} bytes; an update is {release.total_bytes:,}")


def _sources(tools: Path, components: str) -> str:
    """Packages come from where those of the tools came from."""
    signed = "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg"
    entries = []
    for line in (tools / "etc/apt/sources.list").read_text().splitlines():
        if line.startswith("deb "):
            _, mirror, suite, *_ = line.split()
            entries.append(
                f"Types: deb\nURIs: {mirror}\nSuites: {suite}\nComponents: {components}\n{signed}\n"
            )
    return "\n".join(entries)


def _pack(key: Path, target: Path) -> None:
    command = [
        Path(sys.executable).parent / "appliance",
        "model",
        "pack",
        ROOT / "models" / "digits",
        "--key",
        key,
        "-o",
        target,
    ]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
