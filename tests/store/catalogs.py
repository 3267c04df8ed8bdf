"""Catalogs to test with: a plain one, and a hypothesis strategy for any that keeps the rules."""

from __future__ import annotations

from hypothesis import strategies as st

from appliance.domain.digest import digest_of
from appliance.domain.manifest import INT64_MAX
from appliance.store.catalog import (
    Catalog,
    CatalogModel,
    HandAct,
    Hold,
    InstalledVersion,
    StoredFile,
    Trial,
    TrialMode,
)
from appliance.store.layout import MANIFEST

NAMES = st.from_regex(r"[a-z0-9_-][a-z0-9._-]{0,20}", fullmatch=True)
STEPS = st.from_regex(r"[a-z0-9_-][a-z0-9._-]{0,9}", fullmatch=True)
TIMES = st.integers(0, 1 << 50)


def stored_version(
    name: str, number: int, *inner: str, size: int = 7, trust: str = "unsigned"
) -> InstalledVersion:
    """A version with the files ``inner`` in its home."""
    digest = digest_of(f"{name}/{number}".encode())
    manifest = StoredFile(path=MANIFEST, size=100, digest=digest)
    files = [
        StoredFile(path=f"{name}/{path}", size=size, digest=digest_of(f"{name}/{number}/{path}".encode()))
        for path in inner
    ]
    return InstalledVersion(
        version=number,
        digest=digest,
        trust=trust,
        files=tuple(sorted((manifest, *files), key=lambda file: file.path)),
        installed_at_ms=5,
    )


def plain_catalog() -> Catalog:
    """Two versions of one model."""
    versions = (stored_version("digits", 1, "config.pbtxt", "1/a"), stored_version("digits", 2, "2/a"))
    model = CatalogModel(name="digits", versions=versions, wanted=2, wanted_before=(1,), pins=(1,))
    return Catalog(generation=3, models=(model,))


@st.composite
def stored_versions(draw: st.DrawFn, name: str, number: int) -> InstalledVersion:
    """A version of model ``name``; no path is another's directory, because all have one step."""
    inner = draw(st.lists(STEPS, unique=True, max_size=4))
    version = stored_version(name, number, *inner, size=draw(st.integers(0, INT64_MAX)))
    return InstalledVersion(
        version=version.version,
        digest=version.digest,
        trust=draw(st.sampled_from(["unsigned", "key 00ff", "key a.b-c:9"])),
        files=version.files,
        installed_at_ms=draw(TIMES),
        last_wanted_ms=draw(TIMES),
        fetch_ms=draw(TIMES),
    )


@st.composite
def models(draw: st.DrawFn, name: str) -> CatalogModel:
    """A model with one to three versions."""
    numbers = sorted(draw(st.sets(st.integers(1, INT64_MAX), min_size=1, max_size=3)))
    some = st.lists(st.sampled_from(numbers), unique=True).map(tuple)
    trial = st.builds(
        Trial,
        version=st.sampled_from(numbers),
        mode=st.sampled_from(TrialMode),
        percent=st.integers(0, 100),
        header=st.sampled_from(["", "x-canary: yes"]),
    )
    wanted = draw(st.sampled_from([0, *numbers]))
    return CatalogModel(
        name=name,
        versions=tuple(draw(stored_versions(name, number)) for number in numbers),
        wanted=wanted,
        order=wanted != 0 and draw(st.booleans()),
        interface_change=wanted != 0 and draw(st.booleans()),
        managed=draw(st.booleans()),
        wanted_before=draw(some),
        pins=draw(some),
        trial=draw(st.none() | trial),
    )


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    """Any catalog that keeps the rules."""
    names = sorted(draw(st.sets(NAMES, max_size=3)))
    return Catalog(
        generation=draw(st.integers(0, INT64_MAX)),
        models=tuple(draw(models(name)) for name in names),
        holds=tuple(draw(holds(name)) for name in sorted(draw(st.sets(NAMES, max_size=3)))),
    )


def holds(name: str) -> st.SearchStrategy[Hold]:
    """What a person did to a model, which need not be installed."""
    return st.builds(
        Hold,
        name=st.just(name),
        what=st.sampled_from(HandAct),
        version=st.integers(0, INT64_MAX),
        who=st.sampled_from(["", "anna (uid 1000)", "Jürgen (uid 1)"]),
        since_ms=TIMES,
    )
