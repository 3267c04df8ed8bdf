"""What a box says that it is made of: at its start, and again when that has changed."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace

import pytest

from appliance import __version__
from appliance.domain.device import Device, DeviceKind
from appliance.fleet.records import Inventory
from appliance.telemetry.figures import Figures
from appliance.telemetry.inventory import devices_made_of, inventory
from appliance.telemetry.snapshot import Snapshot
from tests.frontend.http.engine_figures import made_up_instances, made_up_snapshot

BOARD = Device(
    kind=DeviceKind.CUDA,
    index=1,
    uuid="GPU-1",
    name="made up",
    driver="595.1",
    memory_bytes=24 << 30,
    capability=(8, 9),
)


def _told(figures: Figures, now: Snapshot) -> Mapping[str, str] | None:
    found = [each.facts for each in figures.take(now) if isinstance(each, Inventory)]
    return found[0] if found else None


def test_the_box_says_again_what_it_is_when_a_device_came_or_went() -> None:
    figures, bare = Figures(), replace(made_up_snapshot(), devices=())
    own = _told(figures, bare)
    assert own == inventory()
    assert own["appliance"] == __version__
    assert _told(figures, bare) == own, "it is not told before it is settled"
    figures.settled(bare)
    assert _told(figures, bare) is None
    more = replace(bare, devices=made_up_instances())
    with_devices = _told(figures, more)
    assert with_devices is not None
    assert set(with_devices) - set(own) == {"driver", *(str(each.device.called) for each in more.devices)}
    figures.settled(more)
    assert _told(figures, more) is None
    assert _told(figures, bare) == own


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"PRETTY_NAME": "a system", "IMAGE_VERSION": "1.2"}, {"system": "a system", "image": "1.2"}),
        ({"NAME": "another"}, {}),
        (None, {}),
    ],
)
def test_the_release_of_the_image_is_told_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str] | None, told: dict[str, str]
) -> None:
    def read() -> dict[str, str]:
        if said is None:
            raise OSError("no such file")
        return said

    monkeypatch.setattr(platform, "freedesktop_os_release", read)
    assert {name: fact for name, fact in inventory().items() if name in ("system", "image")} == told


def test_boards_of_one_kind_are_told_in_the_same_words_and_what_is_not_known_is_left_out() -> None:
    words = "made up, 24.0 GiB, compute capability 8.9"
    same = replace(BOARD, index=0, uuid="GPU-0")
    unknown = replace(BOARD, index=2, memory_bytes=None, capability=None)
    assert devices_made_of([same, BOARD, unknown]) == {
        "driver": "595.1",
        "cuda:0": words,
        "cuda:1": words,
        "cuda:2": "made up",
    }
    assert devices_made_of([replace(BOARD, driver="")]) == {"cuda:1": words}
    assert devices_made_of([]) == {}
