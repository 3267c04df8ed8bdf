"""Tell, of a version that is to serve, that nothing says which of its answers are right, though one before it had a
golden set: each set is of its version alone."""

from __future__ import annotations

from appliance.cli.failure import printable
from appliance.domain.golden import holds_answers
from appliance.store.catalog import Catalog, InstalledVersion


def loss_words(key: str, before: str) -> str:
    """What it means that ``before`` has a golden set and ``key`` has none, and what to do."""
    return printable(
        f"{key} has no golden set, and {before} has one: nothing holds the answers of {key} to what is known to be "
        f"right. 'appliance model golden' makes a set of the model, and 'pack' takes it along."
    )


def tell(before: Catalog, after: Catalog, name: str, number: int) -> None:
    """Print it of a version that is wanted by now, where one that was wanted ``before`` has a set; of the latest."""
    model, changed = before.model(name), after.model(name)
    version = changed.version(number) if changed else None
    if model is None or version is None or _is_held(version):
        return
    way = (model.version(each) for each in (model.wanted, *model.wanted_before) if each != number)
    held = next((each.version for each in way if each is not None and _is_held(each)), 0)
    if held:
        print(loss_words(f"{name}/{number}", f"{name}/{held}"), flush=True)


def _is_held(version: InstalledVersion) -> bool:
    return holds_answers((file.path, file.size) for file in version.files)
