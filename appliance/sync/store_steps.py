"""Steps that change the store, a process for each: ``python -m appliance.sync.store_steps``, told by its input.

A process of its own, because it loads what reads packages and models, whose memory the agent need not keep. It takes
the store's lock, in turns with people's commands, and looks again under it whether a person holds the model: he may
have been quicker. It ends with its agent. Nothing is kept between steps: a kill leaves what a killed writer leaves,
which opening repairs.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from appliance.domain.errors import (
    ApplianceError,
    ArtefactError,
    PackageInvalid,
    Problem,
    StoreBusy,
    StoreFull,
    StoreRefused,
)
from appliance.package.servable import check_servable
from appliance.package.trust import vouched
from appliance.process.life import die_with_parent
from appliance.store.installation import InstallRequest
from appliance.store.layout import view_root
from appliance.store.writer import StoreWriter, open_store
from appliance.sync.arrivals import arrival
from appliance.sync.plan import Install, Reason, StartTrial, StopTrial, Uninstall, Want
from appliance.sync.step_order import HELD, Outcome, StepOrder, decode, encode


def perform(order: StepOrder) -> Outcome:
    """Do it; what keeps it from being done is told."""
    try:
        _perform(order)
    except _HeldMeanwhile:
        return Outcome(reason=HELD)
    except StoreBusy as busy:
        return Outcome(reason=Reason.HOLD, text=f"process {busy.pid} works on the store", again_s=2.5)
    except StoreFull as error:
        return Outcome(reason=Reason.DISK, text=str(error), again_s=600.0)
    except (StoreRefused, PackageInvalid, ArtefactError) as error:
        return Outcome(reason=Reason.REFUSED, text=str(error))
    except (ApplianceError, OSError) as error:
        return Outcome(reason=Reason.DISK, text=str(error), again_s=60.0)
    return Outcome()


class _HeldMeanwhile(Exception):
    """A person has changed the model since it was looked at: the step is not to be done."""


def _perform(order: StepOrder) -> None:
    step, now_ms = order.step, order.now_ms
    with open_store(Path(order.state), order.store) as store:
        if store.catalog.hold(step.name) is not None:
            raise _HeldMeanwhile
        match step:
            case Install():
                _install(step, store, order)
            case Want():
                _want(step, store, now_ms)
            case StartTrial():
                store.try_out(step.name, step.trial)
                if step.again:
                    store.ask_again(step.name, step.trial.version, now_ms)
            case StopTrial():
                store.try_out(step.name, None)
            case Uninstall():
                store.uninstall(step.name)


def _want(step: Want, store: StoreWriter, now_ms: int) -> None:
    before = store.catalog.model(step.name)
    store.want(step.name, step.version, now_ms, interface_change=step.interface_change, order=step.order)
    if before is not None and before.wanted == step.version and (step.again or step.order):
        store.ask_again(step.name, step.version, now_ms, order=step.order)


def _install(step: Install, store: StoreWriter, order: StepOrder) -> None:
    state = Path(order.state)
    trust = partial(vouched, keys=order.trusted(), unsigned=order.unsigned, file="manifest")
    with arrival(state, step.way, trust) as package:
        coming = package.version(order.now_ms)
        if (package.manifest.name, coming.version, coming.digest) != (
            step.name, step.version.version, step.version.manifest,
        ):  # fmt: skip
            text = "the stream brings another version than the one that is wished"
            raise PackageInvalid([Problem(file=f"{step.name}/{step.version.version}", key="", text=text)])
        request = InstallRequest(
            package=replace(package, managed=True),
            want=False,
            now_ms=order.now_ms,
            downgrade=step.downgrade,
            accept=lambda digest: check_servable(
                view_root(state, digest), package.manifest, order.repository
            ),
        )
        store.install(request)


def main() -> int:
    """Read what to do, do it, and write what came of it."""
    die_with_parent(os.getppid())
    sys.stdout.buffer.write(encode(perform(decode(sys.stdin.buffer.read()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
