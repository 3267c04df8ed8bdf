"""The packages' section of the configuration: whose signatures count, and what becomes of packages without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

TRUSTED_KEYS_MAX = 64


class Unsigned(Enum):
    """What becomes of a package that no trusted key has signed."""

    REFUSE = "refuse"
    ALLOW = "allow"


def key_problems(paths: Sequence[str]) -> Iterator[str]:
    """What keeps the files from being public keys."""
    if not paths:
        return  # without keys, nothing needs the library that reads them
    from appliance.domain.errors import OperatorError
    from appliance.package.keys import read_public_key

    if len(paths) > TRUSTED_KEYS_MAX:
        yield f"has {len(paths)} entries; the limit is {TRUSTED_KEYS_MAX}"
    for path in paths[:TRUSTED_KEYS_MAX]:
        try:
            read_public_key(Path(path))
        except OperatorError as error:
            yield str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesConfig:
    """Which packages may be installed. Paths in a file are relative to that file."""

    trusted_keys: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "files with public keys (PEM), relative to this one; a package signed by any of them is trusted",
            "check": key_problems,
        },
    )
    unsigned: Unsigned = field(
        default=Unsigned.REFUSE,
        metadata={"help": "packages without a signature of a trusted key: refuse them, or allow them"},
    )
