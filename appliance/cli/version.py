"""Show the version of the appliance and, with --all, of what it runs on."""

from __future__ import annotations

import argparse
import platform

from appliance import __version__
from appliance.cli.failure import Exit
from appliance.frontend.native.package import PACKAGE, native_problem

PACKAGES = (
    "nvidia-ml-py",
    "tensorrt",
    "grpcio",
    "protobuf",
    "aiohttp",
    "uvloop",
    "numpy",
    "msgpack",
    "structlog",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--all", action="store_true", help="also Python, the system and the packages it uses")


def run(arguments: argparse.Namespace) -> int:
    """Print the version and the front end that serves by default, or one line per part."""
    print(f"appliance {__version__}\nfront end: {_front_end()}")
    if arguments.all:
        print(f"python {platform.python_version()}\nsystem {platform.platform()}")
        _print_runtime()
        for package in PACKAGES:
            _print_package(package)
    return Exit.OK


def _front_end() -> str:
    """What ``frontend.kind = "auto"`` takes here."""
    problem = native_problem()
    if problem:
        return f"python (the native one: {problem})"
    from importlib.metadata import version

    return f"native {version(PACKAGE)}"


def _print_runtime() -> None:
    """What ONNX Runtime is imported from: of several that are installed, one hides the others."""
    from appliance.runtimes.distributions import installed

    for name, release in installed("onnx").items():
        print(f"{name} {release}")


def _print_package(package: str) -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"{package} {version(package)}")
    except PackageNotFoundError:
        return
