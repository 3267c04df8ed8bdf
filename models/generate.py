"""Make sample models on demand: `python models/generate.py OUT_DIR [NAME ...]`, `--list` for the names.

Nothing made here is committed; tests and benchmarks call `write_model` for what they need.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

if __package__ in (None, ""):  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    if find_spec("onnx") is None:
        sys.exit(
            "models/generate.py makes models with onnx, which is not installed; 'make install-test' installs it"
        )

from models.generators import burn, compute, tensors, trouble
from models.generators.package import Expectation, SampleModel, write_package

__all__ = ["MODELS", "Expectation", "SampleModel", "main", "write_model"]

MODELS: Final[Mapping[str, SampleModel]] = MappingProxyType(
    {sample.name: sample for module in (tensors, compute, burn, trouble) for sample in module.SAMPLES}
)
"""Every sample model by name, in the order `--list` shows."""


def write_model(name: str, root: Path) -> Path:
    """Write the sample model `name` as `root/name/1/model.onnx` with what belongs to it; returns `root/name`.

    Raises KeyError naming the nearest way out when there is no such model, OSError when the directory cannot
    be written.
    """
    if name not in MODELS:
        raise KeyError(f"no sample model is called {name!r}; --list shows the {len(MODELS)} there are")
    return write_package(MODELS[name].build(), name, root)


def _listing() -> str:
    width = max(map(len, MODELS))
    lines = []
    for sample in MODELS.values():
        mark = "" if sample.expectation is Expectation.SERVES else f" [{sample.expectation.name.lower()}]"
        lines.append(f"{sample.name:<{width}}  {sample.summary}{mark}")
    return "\n".join(lines)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="generate.py", description="Make sample models for tests and benchmarks."
    )
    parser.add_argument(
        "out_dir", nargs="?", type=Path, metavar="OUT_DIR", help="model repository to write into"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to make (default: all)")
    parser.add_argument("--list", action="store_true", help="show the names and what the models do")
    parsed = parser.parse_args(arguments)
    if not parsed.list and parsed.out_dir is None:
        parser.error("OUT_DIR is missing; give a directory, or --list to see the names")
    unknown = sorted(set(parsed.names) - set(MODELS))
    if unknown:
        parser.error(f"no sample model is called {', '.join(unknown)}; --list shows the names")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry; returns the exit status."""
    parsed = _parse(arguments)
    if parsed.list:
        print(_listing())
        return 0
    for name in parsed.names or MODELS:
        try:
            print(write_model(name, parsed.out_dir))
        except OSError as problem:
            print(f"cannot write {name} into {parsed.out_dir}: {problem}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
