"""What takes how much space: from the catalog and the blobs that are there to rows for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from appliance.store.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionUsage:
    """A version, ``in_use`` while a daemon needs its files, None where that is not known: ``bytes`` of all its blobs,
    ``own_bytes`` of those that no other version has, ``form_bytes`` of packed forms of it that were built on this
    box."""

    name: str
    version: int
    digest: str
    trust: str
    wanted: bool
    pinned: bool
    in_use: bool | None
    bytes: int
    own_bytes: int
    form_bytes: int
    installed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUsage:
    """The whole. ``garbage_bytes`` belong to no installed version; packed forms are not among ``bytes``.
    ``quota_bytes`` 0: none. ``unsaid`` is why it is not known what is in use, "" where it is."""

    versions: tuple[VersionUsage, ...]
    blobs: int
    bytes: int
    garbage_bytes: int
    form_bytes: int
    free_bytes: int
    quota_bytes: int
    free_floor_bytes: int
    unsaid: str = ""


def usage_of(
    catalog: Catalog,
    blobs: Mapping[str, int],
    used: Collection[str] | None,
    forms: Mapping[str, int],
    *,
    free_bytes: int,
    quota_bytes: int,
    free_floor_bytes: int,
    unsaid: str = "",
) -> StoreUsage:
    """``blobs``: sizes of what is there by digest; ``used``: manifest digests of what a daemon needs,
    None where it does not say so and ``unsaid`` tells why; ``forms``: bytes of packed forms by manifest digest."""
    sizes = [{file.digest: file.size for file in version.files} for _, version in catalog.installed()]
    holders = Counter(digest for each in sizes for digest in each)
    rows = tuple(
        VersionUsage(
            name=model.name,
            version=version.version,
            digest=version.digest,
            trust=version.trust,
            wanted=version.version == model.wanted,
            pinned=version.version in model.pins,
            in_use=None if used is None else version.digest in used,
            bytes=sum(own.values()),
            own_bytes=sum(size for digest, size in own.items() if holders[digest] == 1),
            form_bytes=forms.get(version.digest, 0),
            installed_at_ms=version.installed_at_ms,
        )
        for (model, version), own in zip(catalog.installed(), sizes, strict=True)
    )
    return StoreUsage(
        versions=rows,
        blobs=len(blobs),
        bytes=sum(blobs.values()),
        garbage_bytes=sum(size for digest, size in blobs.items() if digest not in holders),
        form_bytes=sum(forms.values()),
        free_bytes=free_bytes,
        quota_bytes=quota_bytes,
        free_floor_bytes=free_floor_bytes,
        unsaid=unsaid,
    )
