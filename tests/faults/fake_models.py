"""Model directories for the fake runtime."""

from __future__ import annotations

from pathlib import Path


def write_fake(
    root: Path,
    name: str,
    *,
    versions: tuple[int, ...] = (1,),
    batched: bool = True,
    width: int = 4,
    extra: str = "",
    **parameters: object,
) -> None:
    """A model with input ``x`` and output ``y``, UINT8 [width], that behaves as ``parameters`` say."""
    entries = "\n".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    )
    dims = width if batched else f"1, {width}"
    folder = root / name
    for version in versions:
        (folder / str(version)).mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(
        f"""backend: "fake"
max_batch_size: {8 if batched else 0}
input {{ name: "x" data_type: TYPE_UINT8 dims: [ {dims} ] }}
output {{ name: "y" data_type: TYPE_UINT8 dims: [ {dims} ] }}
version_policy {{ all {{}} }}
{"dynamic_batching {}" if batched else ""}
{entries}
{extra}
"""
    )
