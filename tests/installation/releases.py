"""The state of a box and of its controller between two releases: ``python -m tests.installation.releases COMMIT``.

The release of ``COMMIT`` makes a fleet of one: a controller, an enrolled box, two versions that served, what a person
pinned and held. This tree goes on with all of it, and the other one again with what this one left of the box. A line
is printed for each thing that holds; the first that does not is the end. Nothing but a temporary folder is touched.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from demo.fleet import free_port
from demo.versions import NAME, classifier, weights
from models.generators.package import ModelPackage, write_package
from tests.appliance_process import ApplianceProcess

ROOT: Final = Path(__file__).resolve().parents[2]
MAIN: Final = "import sys; from appliance.cli.main import main; sys.exit(main())"
WATCH_S: Final = 10
START_S: Final = 60.0
PAUSE_S: Final = 0.1
GROUP: Final = "sites"
BOX: Final = "north"


class Broken(Exception):
    """One release does not get on with what the other one left."""


@dataclass(frozen=True, slots=True)
class Release:
    """The code in a folder, run by this Python."""

    name: str
    code: Path

    @property
    def environment(self) -> dict[str, str]:
        """In which this code is imported, and no other."""
        return {**os.environ, "PYTHONPATH": str(self.code)}

    def try_to(self, *words: object, given: str = "", profile: Path | None = None) -> tuple[int, str, str]:
        """Exit status of a command, what it printed, and what it had to say."""
        more = {} if profile is None else {"APPLIANCE_CONTROLLER": str(profile)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", MAIN, *map(str, words)], cwd=self.code, env=self.environment | more,
            input=given, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def run(self, *words: object, given: str = "", profile: Path | None = None) -> str:
        """What a command prints; it has to succeed."""
        status, out, error = self.try_to(*words, given=given, profile=profile)
        if status:
            raise Broken(
                f"{self.name}: appliance {' '.join(map(str, words))} ended with {status}:\n{out}{error}"
            )
        return out

    @contextmanager
    def serving(self, config: dict[str, dict[str, Any]], state: Path) -> Iterator[ApplianceProcess]:
        """A daemon that serves from ``state``; it has to end by itself."""
        with ApplianceProcess(
            None, config, arguments=("--state-dir", str(state)), environment=self.environment
        ) as daemon:
            yield daemon.wait_ready()
            if daemon.stop():
                raise Broken(f"{self.name}: the daemon ended badly:\n{daemon.log()}")


class Fleet:
    """A controller and a box in ``folder``, whichever release runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.home = folder / "controller"
        self.profile = folder / "profile.json"
        self.key = folder / "key.pem"
        self.address = f"127.0.0.1:{free_port()}"
        self.config = folder / "box.toml"
        self.sections: dict[str, dict[str, Any]] = {
            "packages": {"trusted_keys": [f"{self.key}.pub"]},
            "swap": {"watch_s": WATCH_S},
            "frontend": {"kind": "python"},
        }
        self.config.write_text(
            f'state_dir = "{self.state}"\n[packages]\ntrusted_keys = ["{self.key}.pub"]\n', "utf-8"
        )

    @contextmanager
    def controlled(self, release: Release) -> Iterator[None]:
        """Have the controller served."""
        log = self.folder / "controller.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", MAIN, "controller", "serve", str(self.home)], cwd=release.code,
                env=release.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip
        try:
            _wait_said(process, log, "listens at")
            yield
        finally:
            process.terminate()
            process.wait(30)

    def begun_by(self, release: Release) -> None:
        """Make all of it, and have two versions of the model served one after the other."""
        release.run("model", "keygen", self.key)
        said = release.run(
            "controller", "init", self.home, "--url", f"https://{self.address}", "--address", self.address,
            "--package-key", f"{self.key}.pub",
        )  # fmt: skip
        token = re.search(r"shown once: (\S+)", said)
        assert token is not None, said
        with self.controlled(release):
            authority = self.home / "authority.crt"
            release.run(
                "fleet", "login", f"https://{self.address}", "--authority", authority, given=token[1],
                profile=self.profile,
            )  # fmt: skip
            enrolment = release.run("fleet", "token", "--group", GROUP, profile=self.profile).strip()
            release.run("sync", "enrol", enrolment, "--name", BOX, "--state-dir", self.state)
            for version, moved in ((1, 0.0), (2, 0.005)):
                self.released(release, version, moved)
        release.run("model", "pin", f"{NAME}/1", "--config", self.config)

    def released(self, release: Release, version: int, moved: float) -> None:
        """Have a version served at the box, because the fleet wants it."""
        home = write_package(
            ModelPackage(model=classifier(weights(moved))),
            NAME,
            self.folder / f"source-{version}",
            version=version,
        )
        package = self.folder / f"{version}.model"
        release.run(
            "model", "pack", home / str(version), "--name", NAME, "--version", version, "--key", self.key,
            "--no-proof", "-o", package,
        )  # fmt: skip
        release.run("fleet", "release", package, profile=self.profile)
        release.run("fleet", "want", f"{NAME}={version}", "--group", GROUP, profile=self.profile)
        with release.serving(self.sections, self.state) as daemon:
            release.run("sync", "once", "--config", self.config)
            daemon.until(f"version {version} alone", lambda now: _serves(now, version), 60.0)
            release.run("sync", "once", "--config", self.config)

    def history(self, release: Release) -> list[Any]:
        """What happened to the model at the box."""
        told = release.run("model", "history", NAME, "--json", "--state-dir", self.state)
        found: list[Any] = json.loads(told)
        return found

    def serves(self, release: Release, version: int) -> None:
        """Have the box serve ``version`` and answer."""
        with release.serving(self.sections, self.state) as daemon:
            daemon.until(f"version {version} alone", lambda now: _serves(now, version), 60.0)
            release.run("infer", NAME, "--zeros", "--url", daemon.grpc)


def _serves(now: Any, version: int) -> bool:
    return [(each["version"], each["state"], each["trial"]) for each in now["models"]] == [
        (version, "READY", None)
    ]


def _wait_said(process: subprocess.Popen[bytes], log: Path, text: str) -> None:
    """Return when the log has it. Raises Broken."""
    end = time.monotonic() + START_S
    while text not in (told := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > end:
            raise Broken(f"the controller does not listen:\n{told}")
        time.sleep(PAUSE_S)


def holds(text: str) -> None:
    """Tell of one thing."""
    print(f"holds: {text}", flush=True)


def play(before: Release, after: Release, folder: Path) -> None:
    """All of it. Raises Broken, and AssertionError where a daemon does not do what is waited for."""
    fleet = Fleet(folder)
    fleet.begun_by(before)
    known = fleet.history(before)
    holds(f"{before.name} makes a fleet: {len(known)} changes at the box")

    after.run("store", "check", "--state-dir", fleet.state)
    holds(f"{after.name} finds nothing wrong with the box's store")
    if fleet.history(after)[: len(known)] != known:
        raise Broken(f"{after.name} tells another history:\n{known}\n{fleet.history(after)}")
    holds(f"{after.name} tells the same history")
    fleet.serves(after, 2)
    holds(f"{after.name} serves what served")
    with fleet.controlled(after):
        devices = json.loads(after.run("fleet", "devices", "--json", profile=fleet.profile))
        if [each["name"] for each in devices] != [BOX]:
            raise Broken(f"{after.name}'s controller knows {devices}")
        after.run("fleet", "audit", profile=fleet.profile)
        after.run("sync", "once", "--config", fleet.config)
        holds(f"{after.name}'s controller knows the box, and hears it without a new enrolment")
        if NAME not in after.run("model", "resume", "--all", "--config", fleet.config):
            raise Broken(f"{after.name} does not know that a person pinned the model")
        holds(f"{after.name} knows what a person held, and lifts it")
        fleet.released(after, 3, 0.01)
        holds(f"{after.name} rolls out a version")

    before.run("store", "check", "--state-dir", fleet.state)
    fleet.serves(before, 3)
    holds(f"{before.name} finds nothing wrong, and serves what {after.name} rolled out")
    with fleet.controlled(after):
        before.run("sync", "once", "--config", fleet.config)
        holds(f"{before.name}'s agent is heard by {after.name}'s controller")
    after.run("store", "check", "--state-dir", fleet.state)
    fleet.serves(after, 3)
    holds(f"{after.name} takes it over again")


@contextmanager
def tree_of(commit: str, folder: Path) -> Iterator[Path]:
    """A work tree of ``commit``. Raises CalledProcessError."""
    path = folder / "before"
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=False)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("commit", metavar="COMMIT", help="the release before")
    commit = parser.parse_args().commit
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        try:
            before = Release(commit, stack.enter_context(tree_of(commit, Path(folder))))
            play(before, Release("this release", ROOT), Path(folder))
        except (Broken, AssertionError, subprocess.CalledProcessError) as error:
            print(f"does not hold: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
