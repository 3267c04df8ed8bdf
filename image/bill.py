"""The bill of materials of an image, as CycloneDX: Debian's packages and the Python distributions of the product."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path

from appliance.image.release import IMAGE


def bill(manifest: Path, sites: Iterable[Path], version: str) -> str:
    """The document, from the builder's ``manifest`` and the Python packages in the folders ``sites``."""
    distributions = (each for site in sites for each in _distributions(site))
    components = sorted([*_packages(manifest), *distributions], key=lambda each: str(each["purl"]))
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "operating-system", "name": IMAGE, "version": version}},
        "components": components,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _packages(manifest: Path) -> Iterator[dict[str, object]]:
    for each in json.loads(manifest.read_text())["packages"]:
        purl = f"pkg:deb/debian/{each['name']}@{each['version']}?arch={each['architecture']}&distro=trixie"
        yield {
            "type": "library",
            "name": each["name"],
            "version": each["version"],
            "purl": purl,
            "bom-ref": purl,
        }


def _distributions(site: Path) -> Iterator[dict[str, object]]:
    for papers in site.glob("*.dist-info/METADATA"):
        said = HeaderParser().parsestr(papers.read_text(encoding="utf-8", errors="replace"))
        name, version = str(said["Name"]), str(said["Version"])
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
        found: dict[str, object] = {
            "type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl,
        }  # fmt: skip
        if licence := said["License-Expression"] or said["License"]:
            found["licenses"] = [{"license": {"name": str(licence).splitlines()[0][:100]}}]
        yield found
