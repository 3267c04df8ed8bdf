"""What a box acknowledged is with the controller or accounted for, between real processes that are killed. Two hundred
runs: ``python -m tests.link.conservation``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.link.conservation import Site

SEEDS = 3


@pytest.mark.timeout(300)
async def test_conservation_between_real_ends(tmp_path: Path) -> None:
    site = Site(tmp_path)
    await site.open()
    try:
        kept = kills = 0
        for seed in range(SEEDS):
            seen = await site.play(seed)
            assert not seen.wrong, (seed, seen.wrong[:3])
            kept, kills = kept + seen.kept, kills + seen.kills
    finally:
        await site.close()
    assert min(kept, kills) > 10, "nothing happened"
