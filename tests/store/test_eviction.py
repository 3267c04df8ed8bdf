"""Which versions go: enough is freed, nothing that must stay, and not more than is needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from appliance.store.catalog import Catalog, CatalogModel, Trial, TrialMode
from appliance.store.eviction import Candidate, Lacking, Tenancy, candidates, choose, plan_room
from tests.store.catalogs import stored_version

DIGESTS = "abcdefgh"


def candidate(version: int, loss: float = 1.0, **blobs: int) -> Candidate:
    return Candidate(name="m", version=version, blobs=blobs, rate_per_s=loss, fetch_s=1.0)


def freed_by(chosen: tuple[Candidate, ...], every: list[Candidate], kept: frozenset[str]) -> int:
    stay = {digest for each in every if each not in chosen for digest in each.blobs} | kept
    gone = {digest: size for each in chosen for digest, size in each.blobs.items()}
    return sum(size for digest, size in gone.items() if digest not in stay)


@st.composite
def stores(draw: st.DrawFn) -> tuple[list[Candidate], frozenset[str]]:
    sizes = {digest: draw(st.integers(0, 50)) for digest in DIGESTS}
    every = [
        Candidate(
            name="m",
            version=number,
            blobs={digest: sizes[digest] for digest in draw(st.sets(st.sampled_from(DIGESTS), max_size=4))},
            rate_per_s=draw(st.floats(0, 10)),
            fetch_s=draw(st.floats(0, 10)),
        )
        for number in range(draw(st.integers(0, 6)))
    ]
    return every, frozenset(draw(st.sets(st.sampled_from(DIGESTS), max_size=3)))


@given(stores(), st.integers(1, 200))
def test_what_is_chosen_frees_enough_and_none_of_it_too_much(
    store: tuple[list[Candidate], frozenset[str]], needed: int
) -> None:
    every, kept = store
    chosen = choose(every, kept, needed)
    possible = any(
        freed_by(some, every, kept) >= needed
        for count in range(len(every) + 1)
        for some in combinations(every, count)
    )
    assert (chosen is not None) == possible
    if chosen is not None:
        assert freed_by(chosen, every, kept) >= needed
        for each in chosen:
            without = tuple(other for other in chosen if other is not each)
            assert freed_by(without, every, kept) < needed
        assert choose(list(reversed(every)), kept, needed) == chosen


def test_the_cheapest_loss_per_byte_goes() -> None:
    every = [candidate(1, 5.0, a=10), candidate(2, 1.0, b=10), candidate(3, 1.0, c=1)]
    assert [each.version for each in choose(every, (), 5) or ()] == [2]
    assert [each.version for each in choose(every, (), 11) or ()] == [2, 3]


def test_shared_bytes_go_only_with_all_who_share_them() -> None:
    every = [candidate(1, 1.0, a=100, b=1), candidate(2, 2.0, a=100, c=1), candidate(3, 90.0, d=60)]
    assert sorted(each.version for each in choose(every, (), 100) or ()) == [1, 2]
    assert choose(every, {"a"}, 100) is None


def test_wanted_pinned_running_and_tried_versions_are_never_offered() -> None:
    versions = tuple(stored_version("m", number, f"{number}/w", size=number) for number in range(1, 7))
    model = CatalogModel(
        name="m", versions=versions, wanted=1, pins=(2,), trial=Trial(version=3, mode=TrialMode.CANARY)
    )
    catalog = Catalog(models=(model,))
    offered = candidates(catalog, {versions[3].digest}, now_ms=10)
    assert [each.version for each in offered] == [5, 6]
    tenancy = Tenancy(catalog=catalog, forms=(), running={versions[3].digest}, staying=(), kept=())
    most = sum(version.bytes for version in versions[4:])
    found = plan_room(tenancy, Lacking(most, 0), now_ms=10)
    assert found is not None
    assert sorted(each.version for each in found.versions) == [5, 6]
    assert plan_room(tenancy, Lacking(most + 1, 0), now_ms=10) is None, "blobs of the others are kept"


def test_what_was_wanted_lately_and_what_comes_slowly_is_dear() -> None:
    old, late = stored_version("m", 1, "1/w"), stored_version("m", 2, "2/w")
    model = CatalogModel(name="m", versions=(old, late))
    first, second = candidates(Catalog(models=(model,)), (), now_ms=10_000_000)
    assert first.loss == second.loss
    lately = CatalogModel(
        name="m",
        versions=(old, replace(late, last_wanted_ms=9_000_000)),
    )
    first, second = candidates(Catalog(models=(lately,)), (), now_ms=10_000_000)
    assert second.loss > first.loss
    slowly = CatalogModel(name="m", versions=(old, replace(late, fetch_ms=60_000)))
    first, second = candidates(Catalog(models=(slowly,)), (), now_ms=10_000_000)
    assert second.loss > first.loss
