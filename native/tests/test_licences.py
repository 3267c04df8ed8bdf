"""What the front end is made of: permissive licences only, released crates only, and a reason for each that we chose.

The licences allowed are those of ``native/deny.toml``, by which cargo-deny judges as well; advisories are its business
alone, for they need a data base.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

NATIVE = Path(__file__).parents[1]
SHIPPED = NATIVE / "Cargo.toml"
MANIFESTS = (SHIPPED, NATIVE / "fuzz" / "Cargo.toml", NATIVE / "model" / "Cargo.toml")
PATIENCE_S = 50


def read(path: Path) -> dict[str, Any]:
    """A TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


ALLOWED = frozenset(read(NATIVE / "deny.toml")["licenses"]["allow"])


# --- licences


def allows(expression: str, allowed: frozenset[str] = ALLOWED) -> bool:
    """Whether an SPDX expression can be met with allowed licences; AND binds closer than OR. A slash is an old OR."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))
    verdict, rest = _either(tokens, allowed)
    if rest:
        raise ValueError(f"{expression!r} is not an SPDX expression")
    return verdict


def _either(tokens: Sequence[str], allowed: frozenset[str]) -> tuple[bool, Sequence[str]]:
    verdict, rest = _both(tokens, allowed)
    while rest[:1] == ["OR"]:
        other, rest = _both(rest[1:], allowed)
        verdict = verdict or other
    return verdict, rest


def _both(tokens: Sequence[str], allowed: frozenset[str]) -> tuple[bool, Sequence[str]]:
    verdict, rest = _one(tokens, allowed)
    while rest[:1] == ["AND"]:
        other, rest = _one(rest[1:], allowed)
        verdict = verdict and other
    return verdict, rest


def _one(tokens: Sequence[str], allowed: frozenset[str]) -> tuple[bool, Sequence[str]]:
    if tokens[:1] == ["("]:
        verdict, rest = _either(tokens[1:], allowed)
        if rest[:1] != [")"]:
            raise ValueError("a bracket is not closed")
        return verdict, rest[1:]
    if not tokens or tokens[0] in {")", "AND", "OR", "WITH"}:
        raise ValueError("a licence is missing")
    words = 3 if tokens[1:2] == ["WITH"] else 1
    return " ".join(tokens[:words]) in allowed, tokens[words:]


def licences() -> Iterator[tuple[str, str]]:
    """Package and licence of all that is compiled into the front end, or that compiles it, on this platform."""
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("cargo is not on the PATH")
    command = [
        cargo,
        "tree",
        "--manifest-path",
        str(SHIPPED),
        "--locked",
        "--offline",
        "--edges",
        "normal,build",
    ]
    command += ["--features", "extension-module", "--prefix", "none", "--no-dedupe", "--format", "{l}\t{p}"]
    listing = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if listing.returncode and "offline" in listing.stderr:
        pytest.skip("the crates have not been downloaded: build the front end once")
    assert listing.returncode == 0, listing.stderr
    for line in sorted(set(listing.stdout.splitlines())):
        licence, _, package = line.partition("\t")
        yield package.partition(" (")[0], licence


def test_every_licence_is_allowed() -> None:
    found = dict(licences())
    assert len(found) > 20
    wrong = {package: licence for package, licence in found.items() if not (licence and allows(licence))}
    assert not wrong


def test_no_licence_is_allowed_for_nothing() -> None:
    used = " ".join(licence for _, licence in licences())
    needless = {licence for licence in ALLOWED if licence not in used}
    assert not needless


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("Apache-2.0/GPL-2.0", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND ISC", True),
        ("GPL-3.0-only OR MIT AND GPL-2.0", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH other-exception", False),
    ],
)
def test_an_expression_is_judged_by_its_terms(expression: str, verdict: bool) -> None:
    assert allows(expression) == verdict


@pytest.mark.parametrize("expression", ["", "(MIT", "MIT)", "MIT OR", "MIT Apache-2.0", "WITH MIT"])
def test_what_is_no_expression_allows_nothing(expression: str) -> None:
    with pytest.raises(ValueError, match=r"licence|bracket|SPDX"):
        allows(expression)


# --- sources


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)
def test_crates_are_released_and_pinned_by_their_contents(manifest: Path) -> None:
    packages = read(manifest.with_name("Cargo.lock"))["package"]
    ours = [package["name"] for package in packages if "source" not in package]
    assert ours == [read(manifest)["package"]["name"]]
    others = [package for package in packages if "source" in package]
    assert len({package["source"] for package in others}) == 1
    assert all(package["source"].startswith("registry+") and package.get("checksum") for package in others)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)
def test_manifests_name_released_versions_only(manifest: Path) -> None:
    for name, wanted in _chosen(read(manifest)):
        version = wanted if isinstance(wanted, str) else wanted.get("version", "")
        assert re.match(r"=?\d+\.\d+", version), f"{name}: {wanted}"
        assert isinstance(wanted, str) or not wanted.keys() & {"git", "path", "branch", "rev", "registry"}, (
            name
        )


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)
def test_every_chosen_crate_is_named_in_the_architecture(manifest: Path) -> None:
    text = (NATIVE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("\n## Dependencies")[2]
    assert text
    named = set(re.findall(r"[\w-]+", text))
    missing = {name for name, _ in _chosen(read(manifest))} - named
    assert not missing


def _chosen(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every direct dependency, for whatever purpose and platform."""
    for key, value in manifest.items():
        if key in {"dependencies", "dev-dependencies", "build-dependencies"}:
            yield from value.items()
        elif key == "target":
            for platform in value.values():
                yield from _chosen(platform)
