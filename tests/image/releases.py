"""Releases for tests: small ones, signed, in a directory; and a machine to take them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.image.machine import Machine, look
from appliance.image.release import IMAGE, Release
from appliance.package.keys import PublicKey, make_key, public_pem, read_public_key
from image.place import Built
from image.publish import publish

ROOT_BYTES: Final = (5 << 20) + 12_345
UUID: Final = "0123456789abcdef0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Who makes images: a key, and a folder for what is built."""

    folder: Path
    key: Path
    public: PublicKey

    def release(
        self,
        version: str,
        *,
        variant: str = "cpu",
        architecture: str = "x86-64",
        root_bytes: int = ROOT_BYTES,
    ) -> tuple[Path, Release]:
        """A signed release of that version."""
        built = Built(version=version, folder=self.folder, architecture=architecture)
        seed = version.encode()
        contents = {
            f"{built.name}.root-{architecture}-verity.{UUID}.raw": seed * 1_000,
            f"{built.name}.root-{architecture}.{UUID}.raw": (seed * root_bytes)[:root_bytes],
            f"{built.name}.efi": b"MZ" + seed * 5_000,
        }
        for name, data in contents.items():
            (self.folder / name).write_bytes(data)
        folder = self.folder / f"release-{version}"
        return folder, publish(built, variant, self.key, folder)


def maker(folder: Path) -> Maker:
    """A maker with a new key."""
    folder.mkdir()
    private, public = make_key("ecdsa")
    (folder / "key").write_bytes(private)
    (folder / "key.pub").write_bytes(public_pem(public))
    return Maker(folder=folder, key=folder / "key", public=read_public_key(folder / "key.pub"))


def machine(root: Path, *entries: str, version: str = "1.0", variant: str = "cpu") -> Machine:
    """A machine that runs ``version``; ``entries`` are the files that its boot loader has."""
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/os-release").write_text(
        f'ID=debian\nIMAGE_ID={IMAGE}\nIMAGE_VERSION="{version}"\nVARIANT_ID={variant}\n'
    )
    (root / "efi/EFI/Linux").mkdir(parents=True)
    for name in entries or (f"{IMAGE}_{version}.efi",):
        (root / "efi/EFI/Linux" / name).write_bytes(name.encode())
    return look(root)
