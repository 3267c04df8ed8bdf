"""Run the scenarios: ``python -m tests.image.run [NAME ...]``, which is ``make image-test``.

Each is on its own and leaves a folder with its serial lines and what it measured. One that passed with the image that
is there now is not run again, so that a run that was cut off goes on; ``--again`` runs it all the same. What is known
is written to docs/IMAGE-TESTS.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
import traceback
from pathlib import Path
from typing import Any, Final

from appliance.domain.digest import digests_of_file
from image.place import ROOT, Place
from tests.image.scenarios import SCENARIOS
from tests.image.world import BASE, Scenario, World

DOCUMENT: Final = ROOT / "docs" / "IMAGE-TESTS.md"
RESULT: Final = "result.json"
HEAD: Final = """\
# Scenarios of the image

`make image-test` starts the image in an emulated machine (QEMU, UEFI firmware, two emulated processors, no KVM) and
breaks it on purpose. Written by that command from what it measured; `ARGS=NAME` runs one, `ARGS=--again` all anew.
Seconds are those of the emulation, on a machine that also did other things; "guest" is the guest's own account of its
start. Names that begin with arm64 are of the image for 64-bit ARM, by an emulated one (`-machine virt`).
"""


def main() -> int:
    """Run what is asked for; the exit status says whether all of it passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(each.name for each in SCENARIOS))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "image")
    parser.add_argument("--again", action="store_true", help="also what passed already")
    parser.add_argument("--table", action="store_true", help="only show and write what is known")
    arguments = parser.parse_args()
    known = {each.name for each in SCENARIOS}
    if unknown := sorted(set(arguments.names) - known):
        parser.error(f"no such scenario: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    world = World(place=Place(folder=arguments.folder.resolve()))
    if not arguments.table:
        images: dict[str, str] = {}
        for scenario in SCENARIOS:
            if not arguments.names or scenario.name in arguments.names:
                own = world.of(scenario.architecture)
                if scenario.architecture not in images:
                    images[scenario.architecture] = digests_of_file(own.disk(BASE)).digest
                image = images[scenario.architecture]
                _run(own, scenario, image, again=arguments.again or bool(arguments.names))
    results = [(scenario, _result(world.of(scenario.architecture), scenario)) for scenario in SCENARIOS]
    DOCUMENT.write_text(document(results), encoding="utf-8")
    for scenario, result in results:
        print(f"{result.get('outcome', 'not run'):8} {result.get('seconds', 0):>7} s  {scenario.name}")
    asked = [
        result for scenario, result in results if not arguments.names or scenario.name in arguments.names
    ]
    return int(any(result.get("outcome") != "passed" for result in asked))


def document(results: list[tuple[Scenario, dict[str, Any]]]) -> str:
    """The page with what is known."""
    lines = [HEAD, "| scenario | result | on | took | image |", "|---|---|---|---|---|"]
    for scenario, result in results:
        name, outcome, date = scenario.name, result.get("outcome", "not run"), result.get("date", "")
        took, image = result.get("seconds", 0), result.get("image", "")[:12]
        lines.append(f"| [{name}](#{name}) | {outcome} | {date} | {took} s | {image} |")
    for scenario, result in results:
        lines += ["", f"## {scenario.name}", "", scenario.about]
        facts = result.get("facts", {})
        short = {key: value for key, value in facts.items() if "\n" not in str(value)}
        if short:
            lines += ["", *(f"- {key}: {value}" for key, value in short.items())]
        for key in facts.keys() - short.keys():
            lines += ["", f"{key}:", "", "```", str(facts[key]), "```"]
        if result.get("error"):
            lines += ["", f"Failed: {result['error']}"]
    return "\n".join(lines) + "\n"


def _run(world: World, scenario: Scenario, image: str, *, again: bool) -> None:
    before = _result(world, scenario)
    if not again and before.get("outcome") == "passed" and before.get("image") == image:
        return
    print(f"make: {scenario.name} ...", flush=True)
    result: dict[str, Any] = {
        "image": image,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
    }
    begun = time.monotonic()
    world.folder(scenario.folder).mkdir(parents=True, exist_ok=True)
    try:
        result |= {"outcome": "passed", "facts": scenario.run(world)}
    except Exception as error:  # noqa: BLE001  whatever it is, the others are run
        (world.folder(scenario.folder) / "error.log").write_text(traceback.format_exc())
        result |= {"outcome": "failed", "error": f"{type(error).__name__}: {str(error)[:600]}"}
    result["seconds"] = round(time.monotonic() - begun)
    (world.folder(scenario.folder) / RESULT).write_text(json.dumps(result, indent=1))
    print(f"make: {scenario.name} {result['outcome']} after {result['seconds']} s", flush=True)


def _result(world: World, scenario: Scenario) -> dict[str, Any]:
    try:
        found = json.loads((world.folder(scenario.folder) / RESULT).read_text())
    except FileNotFoundError:
        return {}
    assert isinstance(found, dict)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
