"""Changes of the catalog: each a function from a catalog to the next one, or StoreRefused with the reason. Pure.

Times are the caller's: ``now_ms`` of the wall clock, for people and estimates.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from appliance.domain.errors import StoreRefused
from appliance.domain.model_names import no_such_model
from appliance.store.catalog import WANTED_BEFORE_MAX, Catalog, CatalogModel, Hold, InstalledVersion, Trial


def check_install(catalog: Catalog, name: str, version: InstalledVersion, *, want: bool) -> None:
    """Raise StoreRefused where installing the version, wanted or not, would go back behind a newer one that was wanted
    here: that takes an order. One that is installed may be installed again, as long as that does not make it wanted."""
    model, newest = catalog.model(name), catalog.floor(name).newest
    present = model is not None and model.version(version.version) is not None
    changes = want and (model is None or model.wanted != version.version)
    if version.version < newest and (changes or not present):
        instead = "; with --no-want it is only repaired" if present else ""
        raise StoreRefused(
            f"{name}/{version.version} is older than {name}/{newest}, which was wanted here; --downgrade installs it "
            f"nevertheless{instead}"
        )


def with_version(catalog: Catalog, name: str, version: InstalledVersion, minimum: int = 0) -> Catalog:
    """The version is installed, in the place of one of the same number and manifest; none below ``minimum`` is made
    wanted any more."""
    model = catalog.model(name) or CatalogModel(name=name, versions=())
    present = model.version(version.version)
    if present is not None and present.digest != version.digest:
        raise StoreRefused(
            f"{name}/{version.version} is installed as {present.digest[:12]}, and this is {version.digest[:12]}: "
            "what a version is never changes; give the new one another number, or uninstall the old one first"
        )
    others = [each for each in model.versions if each.version != version.version]
    versions = tuple(sorted((*others, version), key=lambda each: each.version))
    return _with(catalog, replace(model, versions=versions), minimum)


def without_version(catalog: Catalog, name: str, number: int) -> Catalog:
    """The version is not installed any more. One that is pinned stays, and one that is wanted
    while there are others; a trial of it ends."""
    model = _model(catalog, name)
    _version(model, number)
    if number == model.wanted and len(model.versions) > 1:
        raise StoreRefused(
            f"{name}/{number} is wanted; want another version of {name} first, or uninstall all of {name}"
        )
    if number in model.pins:
        raise StoreRefused(f"{name}/{number} is pinned; unpin it first")
    return _with(
        catalog,
        replace(
            model,
            versions=tuple(each for each in model.versions if each.version != number),
            wanted=0 if number == model.wanted else model.wanted,
            order=model.order and number != model.wanted,
            interface_change=model.interface_change and number != model.wanted,
            wanted_before=tuple(each for each in model.wanted_before if each != number),
            trial=None if model.trial and model.trial.version == number else model.trial,
        ),
    )


def check_spared(catalog: Catalog, name: str, number: int, served: Collection[int]) -> None:
    """Raise StoreRefused where the version is the last one of those that ``served`` here, and another is wanted that
    did not: nothing of the model might be left to serve. Where nothing is wanted, nothing serves."""
    model = _model(catalog, name)
    _version(model, number)
    if model.wanted in (0, number) or number not in served:
        return
    # What was gone back from does not stand in for others.
    way = {model.wanted, *model.wanted_before} - {number}
    if not way.isdisjoint(served):
        return
    raise StoreRefused(
        f"{name}/{number} is the last version of {name} that has proved itself here, and {name}/{model.wanted}, which "
        f"is wanted, has not: nothing of {name} might be left to serve; have that prove itself first, uninstall all "
        f"of {name}, or say --force"
    )


def without_model(catalog: Catalog, name: str) -> Catalog:
    """No version of the model is installed any more."""
    model = _model(catalog, name)
    if model.pins:
        raise StoreRefused(f"{name}/{model.pins[0]} is pinned; unpin it first")
    return _with(catalog, replace(model, versions=(), wanted=0, wanted_before=()))


def wanting(
    catalog: Catalog,
    name: str,
    number: int,
    now_ms: int,
    *,
    order: bool = False,
    interface_change: bool = False,
) -> Catalog:
    """The version shall be served, by ``order`` or as a proposal, and perhaps with an ``interface_change``, which may
    be said later; what was wanted before is where a rollback goes. A trial ends with the change, or what is wanted
    would wait for it."""
    model = _model(catalog, name)
    _version(model, number)
    if number == model.wanted:
        allowed = model.interface_change or interface_change
        return _with(catalog, replace(model, interface_change=allowed))
    check_minimum(catalog, name, number)
    before = [each for each in (model.wanted, *model.wanted_before) if each not in (0, number)]
    wanted = _wanted(model, number, tuple(before[:WANTED_BEFORE_MAX]), now_ms)
    return _with(catalog, replace(wanted, order=order, interface_change=interface_change))


def asked_again(catalog: Catalog, name: str, number: int, now_ms: int, *, order: bool = False) -> Catalog:
    """The version that is wanted or on trial is asked for once more, although it failed; what is wanted perhaps by
    ``order`` now."""
    model = _model(catalog, name)
    if order and number == model.wanted:
        catalog = _with(catalog, replace(model, order=True))
    present = _version(model, number)
    asked = replace(present, last_wanted_ms=max(now_ms, present.last_wanted_ms + 1))
    return with_version(catalog, name, asked)


def rolled_back(catalog: Catalog, name: str, now_ms: int, unfit: Collection[int] = ()) -> Catalog:
    """The version that was wanted before shall be served again, by order; the present one is forgotten as a way back,
    and so are those on the way that are ``unfit``."""
    model = _model(catalog, name)
    minimum = catalog.floor(name).minimum
    way = [each for each in model.wanted_before if each not in unfit and each >= minimum]
    if not way:
        raise StoreRefused(f"{name} has nothing to go back to: {_no_way_back(model, minimum)}")
    number, *before = way
    wanted = _wanted(model, number, tuple(before), now_ms)
    return _with(catalog, replace(wanted, order=True, interface_change=True))


def _no_way_back(model: CatalogModel, minimum: int) -> str:
    if model.wanted_before:
        failed = [str(each) for each in model.wanted_before if each >= minimum]
        below = [str(each) for each in model.wanted_before if each < minimum]
        why = [f"version {', '.join(failed)} failed here"] if failed else []
        if below:
            why.append(f"{minimum} is the lowest that a signed package allows, not {', '.join(below)}")
        return "; ".join(why)
    others = ", ".join(str(each.version) for each in model.versions if each.version != model.wanted)
    choose = f"; 'appliance model want {model.name}/VERSION' asks for another that is installed: {others}"
    present = f"version {model.wanted}" if model.wanted else "now"
    return f"nothing was wanted before {present}{choose if others else ''}"


def pinned(catalog: Catalog, name: str, number: int) -> Catalog:
    """The version is never evicted."""
    model = _model(catalog, name)
    _version(model, number)
    return _with(catalog, replace(model, pins=tuple(sorted({*model.pins, number}))))


def unpinned(catalog: Catalog, name: str, number: int) -> Catalog:
    """The version may be evicted when it is not wanted."""
    model = _model(catalog, name)
    _version(model, number)
    return _with(catalog, replace(model, pins=tuple(each for each in model.pins if each != number)))


def on_trial(catalog: Catalog, name: str, trial: Trial | None) -> Catalog:
    """A version shall prove itself on real requests; None: no version shall any more, and what is wanted is ordered."""
    model = _model(catalog, name)
    if trial is not None:
        _version(model, trial.version)
        check_minimum(catalog, name, trial.version)
        if not (trial.header.isascii() and trial.header.isprintable()):
            raise StoreRefused(f"a header is sent as printable ASCII, which {trial.header!a} is not")
        if trial.version == model.wanted:
            raise StoreRefused(
                f"{name}/{trial.version} is what is served; there is nothing to compare it with"
            )
    elif model.trial is None:
        return catalog
    order = model.order or (trial is None and model.wanted != 0)
    return _with(catalog, replace(model, trial=trial, order=order))


def held(catalog: Catalog, hold: Hold) -> Catalog:
    """The model is left as the person made it; who did the same again holds it since the first time."""
    before = catalog.hold(hold.name)
    if before is not None and before == replace(hold, since_ms=before.since_ms):
        return catalog
    holds = (*(each for each in catalog.holds if each.name != hold.name), hold)
    return replace(catalog, holds=tuple(sorted(holds, key=lambda each: each.name)))


def resumed(catalog: Catalog, name: str) -> Catalog:
    """Nothing holds the model any more."""
    return replace(catalog, holds=tuple(each for each in catalog.holds if each.name != name))


def brought(catalog: Catalog, name: str) -> Catalog:
    """The fleet brought the model."""
    return _with(catalog, replace(_model(catalog, name), managed=True))


def check_minimum(catalog: Catalog, name: str, number: int) -> None:
    """Raise StoreRefused where the version is below what a signed package allows: not even an order serves it."""
    minimum = catalog.floor(name).minimum
    if number < minimum:
        raise StoreRefused(
            f"{name}/{number} is not made wanted: a signed package of {name} says that {minimum} is the lowest version "
            "to be served"
        )


def _wanted(model: CatalogModel, number: int, before: tuple[int, ...], now_ms: int) -> CatalogModel:
    touched = {number, model.wanted}
    return replace(
        model,
        wanted=number,
        wanted_before=before,
        trial=None,
        versions=tuple(
            replace(each, last_wanted_ms=max(now_ms, 0)) if each.version in touched else each
            for each in model.versions
        ),
    )


def _with(catalog: Catalog, model: CatalogModel, minimum: int = 0) -> Catalog:
    """The catalog with ``model`` in the place of the one of its name; without it when it has no versions. Its floor is
    not below what it was, nor ``minimum``, and is kept where the model does not tell it any more."""
    others = [each for each in catalog.models if each.name != model.name]
    models = [*others, model] if model.versions else others
    before = catalog.floor(model.name)
    floor = replace(before, minimum=max(before.minimum, minimum))
    floors = [each for each in catalog.floors if each.name != model.name]
    if floor.minimum or floor.newest > max(model.wanted, *model.wanted_before, 0):
        floors.append(floor)
    return replace(
        catalog,
        models=tuple(sorted(models, key=lambda each: each.name)),
        floors=tuple(sorted(floors, key=lambda each: each.name)),
    )


def _model(catalog: Catalog, name: str) -> CatalogModel:
    model = catalog.model(name)
    if model is None:
        raise StoreRefused(no_such_model(name, [each.name for each in catalog.models]))
    return model


def _version(model: CatalogModel, number: int) -> InstalledVersion:
    version = model.version(number)
    if version is None:
        there = ", ".join(str(each.version) for each in model.versions)
        raise StoreRefused(f"{model.name}/{number} is not installed; versions here: {there}")
    return version
