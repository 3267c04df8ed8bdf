"""Whether this machine can serve as a configuration says: the checks of the components, and files read with them.

Composition only: imported by the daemon's starter and ``config check``. ``appliance.config`` has the values alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Final

from appliance.config import loading
from appliance.config.listening import ListeningConfig
from appliance.config.loading import Checks
from appliance.config.tree import ApplianceConfig
from appliance.domain.errors import system_reason
from appliance.fleet.settings import CHECKS as FLEET
from appliance.frontend.choice import front_end_problems, region_problems
from appliance.frontend.listening.certificates import certificate_problems
from appliance.frontend.listening.credential_stores import for_next_start
from appliance.frontend.listening.sockets import group_problems
from appliance.frontend.regions.users import user_problems
from appliance.runtimes.runtime import known_runtimes
from appliance.sync.contact_plan import plan_problems
from appliance.telemetry.log_file import file_problems
from appliance.workers.jail.support import kernel_support

MAX_CPUS: Final = 8192


def directory_problems(models: str) -> Iterator[str]:
    """What keeps the model directory from being read; "" stands for none."""
    if not models:
        return
    try:
        with os.scandir(models):
            pass
    except (OSError, ValueError) as error:
        yield (
            f"'{models}' cannot be read: {system_reason(error)}; give a directory that holds NAME/VERSION/model.onnx "
            "(models, or --models), or the state directory of a store (state_dir, or --state-dir)"
        )


def state_problems(state_dir: str) -> Iterator[str]:
    """What keeps the store from being served; "" stands for none."""
    if state_dir and not os.path.lexists(state_dir):
        yield f"there is no '{state_dir}'; make it, or let 'appliance model install' or 'appliance sync enrol' do so"
    elif state_dir and not os.path.isdir(state_dir):
        yield f"'{state_dir}' is no directory; give the state directory of a store"


def confinement_problems(confinement: str) -> Iterator[str]:
    """What this kernel cannot keep workers from, where it has to."""
    if confinement == "required":
        for text in kernel_support().lacking:
            yield f"'required' cannot be had here: {text}; set 'auto' to serve all the same"


def trusted_key_problems(paths: Sequence[str]) -> Iterator[str]:
    """What keeps files from being public keys; without any, the library that reads them is not needed."""
    if paths:
        from appliance.package.keys import key_problems

        yield from key_problems(paths)


def cpu_problems(sets: tuple[tuple[int, ...], ...]) -> Iterator[str]:
    """What is wrong with processor sets for workers on this machine."""
    usable = usable_cpus() if sets else frozenset()
    for each in sets:
        if refused := sorted(set(each) - usable):
            yield (
                f"set {list(each)} names {', '.join(map(str, refused))}, which this process may not use; it may use "
                f"{', '.join(map(str, sorted(usable)))}"
            )


def usable_cpus() -> frozenset[int]:
    """CPUs that a child of this process may be bound to. They may be more than this process is bound to now, as when
    the daemon is kept away from the workers' CPUs: so a thread, whose affinity is its own, asks for all."""
    found = set(os.sched_getaffinity(0))

    def ask() -> None:
        with suppress(OSError):
            os.sched_setaffinity(0, range(MAX_CPUS))
            found.update(os.sched_getaffinity(0))

    thread = Thread(target=ask, name="cpus")
    thread.start()
    thread.join()
    return frozenset(found)


def runtime_problems(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    """Runtimes that are not installed."""
    known = known_runtimes()
    for name in sorted(set(config.repository.runtimes) - set(known)):
        yield "repository.runtimes", f"no runtime '{name}' is installed; known here: {', '.join(known)}"


def trace_problems(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    """What keeps traces from being written."""
    if config.trace.one_in and config.trace.file:
        yield from (("trace.file", text) for text in file_problems(config.trace.file))


def port_problems(section: str, config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    """What keeps the front end from listening as that section tells it to."""
    yield from _tls_problems(section, getattr(config, section))


def next_port_problems(section: str, config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    """The same of a start by systemd that is yet to come."""
    yield from _tls_problems(section, for_next_start(getattr(config, section)))


def _tls_problems(section: str, port: ListeningConfig | None) -> Iterator[tuple[str, str]]:
    if port is not None and port.addresses:
        yield from ((f"{section}.{key}", text) for key, text in certificate_problems(port))


PORTS: Final = ("grpc", "http")
WHOLE: Final = (runtime_problems, trace_problems, front_end_problems, region_problems)
CHECKS: Final = Checks(
    settings={
        "models": directory_problems,
        "state_dir": state_problems,
        "packages.trusted_keys": trusted_key_problems,
        "grpc.unix_group": group_problems,
        "http.unix_group": group_problems,
        "shared_memory.users": user_problems,
        "workers.cpus": cpu_problems,
        "workers.confinement": confinement_problems,
        "log.file": file_problems,
        **{f"fleet.{key}": check for key, check in FLEET.items()},
        "fleet.contact_plan": plan_problems,
    },
    whole=(*WHOLE, *(partial(port_problems, port) for port in PORTS)),
)
"""Every question that is asked of this machine before anything starts."""
NEXT_CHECKS: Final = replace(CHECKS, whole=(*WHOLE, *(partial(next_port_problems, port) for port in PORTS)))

load: Final = partial(loading.load, checks=CHECKS)
load_for_next_start: Final = partial(loading.load, checks=NEXT_CHECKS)
reload: Final = partial(loading.reload, checks=CHECKS)
