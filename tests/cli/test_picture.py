"""Pictures as inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from appliance.cli.failure import CommandFailed
from appliance.cli.picture import layout_of, read_picture


@pytest.fixture
def two_pixels(tmp_path: Path) -> Path:
    """One row: red, then blue."""
    picture = Image.new("RGB", (2, 1))
    picture.putpixel((0, 0), (255, 0, 0))
    picture.putpixel((1, 0), (0, 0, 255))
    picture.save(tmp_path / "two.png")
    return tmp_path / "two.png"


def test_planes_one_after_the_other(two_pixels: Path) -> None:
    array = read_picture(two_pixels, (-1, 3, 1, 2), "x")
    assert (array.shape, list(array.values)) == ((1, 3, 1, 2), [255, 0, 0, 0, 0, 255])


def test_pixels_one_after_the_other(two_pixels: Path) -> None:
    array = read_picture(two_pixels, (1, 2, 3), "x")
    assert (array.shape, list(array.values)) == ((1, 2, 3), [255, 0, 0, 0, 0, 255])


def test_free_sizes_take_the_picture_as_it_is(two_pixels: Path) -> None:
    assert read_picture(two_pixels, (-1, -1, -1, 3), "x").shape == (1, 1, 2, 3)


def test_grey_and_resized(two_pixels: Path) -> None:
    array = read_picture(two_pixels, (-1, 4, 6), "x")
    assert array.shape == (1, 4, 6)
    assert len(array.values) == 24
    assert array.values[0] == 76
    assert array.values[5] == 29


@pytest.mark.parametrize("shape", [(), (-1,), (5, 6, 7), (1, 2, 3, 4, 5)])
def test_shapes_that_are_no_picture(shape: tuple[int, ...]) -> None:
    with pytest.raises(CommandFailed, match="not the shape of a picture"):
        layout_of(shape, "x")


def test_a_file_that_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no")
    with pytest.raises(CommandFailed, match="cannot be read as a picture"):
        read_picture(tmp_path / "a.png", (8, 8), "x")
