"""What a package is made of: its bill of materials as CycloneDX, and the licences, each in a file beside it.

Taken from what is really installed in the tree, and held against the lock file: another version than the locked one, or
one that is not locked, is an error. The native front end's wheel brings a bill of its crates, which is taken over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageMetadata, distributions
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from packages.tree import RELEASE, ROOT, epoch, version

OURS: Final = ("edge-appliance", "edge-appliance-native")
_LICENCE_FILE: Final = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What is delivered: the lock file that says what is in it, and ``when`` it is of, in seconds since 1970."""

    name: str
    version: str
    lock: Path
    when: int


def write(
    package: Path, site: Path, sha256: str, status: str = "", *, product: Product | None = None
) -> tuple[Path, Path]:
    """Write both files beside ``package``, whose digest is ``sha256`` and whose Python packages are in ``site``.
    ``status`` is what dpkg says of Debian's packages in it; without a ``product`` it is the appliance itself. Raises
    LookupError where the lock file says otherwise."""
    found = sorted(distributions(path=[str(site)]), key=lambda each: _plain(each.name))
    product = product or _appliance()
    _check(found, product.lock)
    components = [*map(_component, found), *_debian(status)]
    bill = package.with_name(package.name + ".cdx.json")
    bill.write_text(_bill(product, package.name, sha256, components) + "\n")
    licences = package.with_name(package.name + ".licences.txt")
    licences.write_text("".join(_texts(found)))
    return bill, licences


def _appliance() -> Product:
    return Product(name=OURS[0], version=version(), lock=ROOT / "requirements.lock", when=epoch())


def _check(found: Iterable[Distribution], lock: Path) -> None:
    locked: dict[str, set[str]] = {}
    for name, release in _LOCKED.findall(lock.read_text()):
        locked.setdefault(_plain(name), set()).add(release)
    wrong = [
        f"{each.name} {each.version}"
        for each in found
        if _plain(each.name) not in OURS and each.version not in locked.get(_plain(each.name), ())
    ]
    if wrong:
        raise LookupError(f"{lock.name} does not have what is installed: {', '.join(wrong)}")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(found: Distribution) -> Component:
    name = _plain(found.name)
    said = found.metadata
    licence = (
        _said(said, "License-Expression")
        or _said(said, "License")
        or _classified(said.get_all("Classifier", []))
    )
    short = licence.strip().splitlines()[0] if licence.strip() else ""
    return Component(
        name=name,
        version=found.version,
        type=ComponentType.APPLICATION if name in OURS else ComponentType.LIBRARY,
        bom_ref=f"python:{name}",
        purl=None if name in OURS else PackageURL("pypi", name=name, version=found.version),
        description=_said(said, "Summary") or None,
        licenses=[LicenseFactory().make_from_string(short)] if short else (),
        components=list(_crates(found)),
    )


def _said(metadata: PackageMetadata, key: str) -> str:
    return str(metadata[key] or "")  # None where it is absent


def _classified(classifiers: Iterable[str]) -> str:
    named = [each.rsplit(" :: ", 1)[-1] for each in classifiers if each.startswith("License :: ")]
    return named[0] if named else ""


def _crates(found: Distribution) -> Iterator[Component]:
    for file in found.files or ():
        if "/sboms/" in str(file) and file.name.endswith(".json"):
            bom = Bom.from_json(json.loads(file.locate().read_text()))  # type: ignore[attr-defined]
            yield from bom.components


def _debian(status: str) -> Iterator[Component]:
    for entry in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", entry, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and fields["Package"] != "edge-appliance":
            name, release = fields["Package"], fields["Version"]
            qualifiers = {"arch": fields["Architecture"], "distro": "trixie"}
            purl = PackageURL("deb", "debian", name, release, qualifiers)
            yield Component(name=name, version=release, bom_ref=f"debian:{name}", purl=purl)


def _bill(of: Product, name: str, sha256: str, components: list[Component]) -> str:
    """The same for the same package: its number comes from its digest, its time from the sources."""
    product = Component(
        name=of.name,
        version=of.version,
        type=ComponentType.APPLICATION,
        bom_ref=name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
        licenses=[LicenseFactory().make_with_id("Apache-2.0")],
    )
    made = datetime.fromtimestamp(of.when, UTC)
    bom = Bom(
        components=components,
        serial_number=uuid5(NAMESPACE_URL, f"sha256:{sha256}"),
        metadata=BomMetaData(component=product, timestamp=made),
    )
    bom.register_dependency(product, components)
    return str(JsonV1Dot6(bom).output_as_string(indent=1))


def _texts(found: Iterable[Distribution]) -> Iterator[str]:
    """Of all Python packages, each with its heading."""
    for each in found:
        yield f"{'=' * 78}\n{each.name} {each.version} (Python {RELEASE})\n{'=' * 78}\n"
        texts = [
            file.locate().read_text(errors="replace").rstrip()  # type: ignore[attr-defined]
            for file in each.files or ()
            if ".dist-info/" in str(file) and _LICENCE_FILE.search(file.name) and file.locate().is_file()  # type: ignore[attr-defined]
        ]
        yield (
            "\n\n".join(texts or [_said(each.metadata, "License") or "(it brings no text of a licence)"])
            + "\n\n"
        )
