"""Pictures as inputs of models: decoded, fitted to the height and width that the model takes, laid out its way.

Pixels are grey or red, green, blue values from 0 to 255, not normalised: what else a model wants belongs in its graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.cli.array import Array
from appliance.cli.failure import CommandFailed
from appliance.domain.errors import system_reason

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"})
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLayout:
    """What a model wants: -1 is any size. ``channels_first``: planes one after the other; ``plain``: no channel
    dimension at all; ``batched``: a leading dimension of pictures."""

    height: int
    width: int
    channels: int
    channels_first: bool
    plain: bool
    batched: bool


def layout_of(shape: Sequence[int], name: str) -> PictureLayout:
    """Read the layout from the shape of input ``name``: [.., H, W], [.., C, H, W] or [.., H, W, C] with 1, 3 or 4
    channels, with or without a batch dimension. Raises CommandFailed when it is none of them."""
    batched = len(shape) == 4 or (len(shape) == 3 and shape[0] == -1 and shape[2] not in _MODES)
    inner = tuple(shape[1:]) if batched else tuple(shape)
    if len(inner) == 2:
        return PictureLayout(
            height=inner[0], width=inner[1], channels=1, channels_first=False, plain=True, batched=batched
        )
    if len(inner) == 3 and (inner[0] in _MODES or inner[2] in _MODES):
        first = inner[0] in _MODES and (inner[0] > 1 or inner[2] not in (3, 4))
        channels, height, width = inner if first else (inner[2], inner[0], inner[1])
        return PictureLayout(
            height=height, width=width, channels=channels, channels_first=first, plain=False, batched=batched
        )
    raise CommandFailed(
        f"input '{name}' takes shape {list(shape)}, which is not the shape of a picture; give values or a .npy file"
    )


def read_picture(path: Path, shape: Sequence[int], name: str) -> Array:
    """The picture at ``path`` in the shape of input ``name``."""
    from PIL import Image, UnidentifiedImageError

    layout = layout_of(shape, name)
    try:
        with Image.open(path) as opened:
            picture = opened.convert(_MODES[layout.channels])
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise CommandFailed(f"'{path}' cannot be read as a picture: {system_reason(error)}") from error
    width = layout.width if layout.width > 0 else picture.width
    height = layout.height if layout.height > 0 else picture.height
    note = ""
    if (width, height) != picture.size:
        note = _fitted(path, picture.size, (width, height), name)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    planes = [list(plane.tobytes()) for plane in picture.split()]
    return replace(_laid_out(planes, layout, height, width), note=note)


def _fitted(path: Path, size: tuple[int, int], wanted: tuple[int, int], name: str) -> str:
    """What is told of a picture that had another size."""
    rest = "" if size[0] * wanted[1] == size[1] * wanted[0] else "; its proportions changed"
    was, takes = (f"{width} x {height}" for width, height in (size, wanted))
    return f"'{path}' of {was} pixels was fitted to the {takes} that input '{name}' takes{rest}"


def _laid_out(planes: list[list[int]], layout: PictureLayout, height: int, width: int) -> Array:
    inner: tuple[int, ...]
    if layout.plain:
        values, inner = planes[0], (height, width)
    elif layout.channels_first:
        values, inner = [value for plane in planes for value in plane], (len(planes), height, width)
    else:
        values = [value for pixel in zip(*planes, strict=True) for value in pixel]
        inner = (height, width, len(planes))
    return Array(values=values, shape=(1, *inner) if layout.batched else inner)
