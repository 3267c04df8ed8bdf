"""Tell, of a version that is to serve, that nothing says which of its answers are right, though one before it had a
golden set: each set is of its version alone."""

from __future__ import annotations

from pathlib import Path

from appliance.cli.failure import printable
from appliance.domain.golden import holds_answers
from appliance.store.catalog import Catalog, InstalledVersion
from appliance.store.running import read_incumbents


def loss_words(key: str, before: str) -> str:
    """What it means that ``before`` has a golden set and ``key`` has none, and what to do."""
    return printable(
        f"{key} has no golden set, and {before} has one: nothing holds the answers of {key} to what is known to be right. "
        f"'appliance model golden' makes a set of the model, and 'pack' takes it along."
    )


def tell(state: Path, before: Catalog, after: Catalog, name: str, number: int) -> None:
    """Print it of a version that is wanted by now, where what served or was wanted ``before`` had a set."""
    model = after.model(name)
    version = model.version(number) if model else None
    if version is None or _is_held(version):
        return
    held = _held_before(state, before, name, number)
    if held:
        print(loss_words(f"{name}/{number}", f"{name}/{held}"), flush=True)


def _held_before(state: Path, before: Catalog, name: str, number: int) -> int:
    """The version with a golden set that served last, or else was wanted last; 0: none has one."""
    model = before.model(name)
    if model is None:
        return 0
    digests = {each.digest for each in read_incumbents(state) if each.name == name}
    served = [each.version for each in model.versions if each.digest in digests]
    for each in (*served, model.wanted, *model.wanted_before):
        found = model.version(each)
        if each != number and found is not None and _is_held(found):
            return each
    return 0


def _is_held(version: InstalledVersion) -> bool:
    return holds_answers((file.path, file.size) for file in version.files)
