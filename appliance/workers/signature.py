"""Whether a loaded session is what its model version says it is."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.domain.errors import LoadFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, TensorSpec
from appliance.runtimes.runtime import Port, Session


def check_signature(version: ModelVersion, session: Session) -> None:
    """Raise LoadFailed with every difference in names, datatypes, ranks and fixed dimensions."""
    differences = [
        *_differences("input", version.inputs, session.inputs, version.max_batch_size),
        *_differences("output", version.outputs, session.outputs, version.max_batch_size),
        *_left_out(version, session.inputs),
    ]
    if differences:
        raise LoadFailed(f"{version.key} is not what the model says: {'; '.join(differences)}")


def _differences(
    kind: str, specs: Iterable[TensorSpec], ports: Iterable[Port], max_batch_size: int
) -> list[str]:
    real = {port.name: port for port in ports}
    batch = (FREE,) if max_batch_size > 0 else ()
    found = []
    for spec in specs:
        port = real.get(spec.name)
        if port is None:
            names = ", ".join(f"'{name}'" for name in real)
            found.append(f"{kind} '{spec.name}' does not exist, the model has {names or 'none'}")
        elif port.datatype is not spec.datatype:
            found.append(
                f"{kind} '{spec.name}' is said to be {spec.datatype.wire}, the model has {port.datatype.wire}"
            )
        elif port.shape is not None and not _compatible(batch + spec.shape, port.shape):
            found.append(
                f"{kind} '{spec.name}' is said to have shape {list(batch + spec.shape)}, "
                f"the model has {list(port.shape)}"
            )
    return found


def _compatible(said: tuple[int, ...], real: tuple[int, ...]) -> bool:
    if len(said) != len(real):
        return False
    return all(one == other or FREE in (one, other) for one, other in zip(said, real, strict=True))


def _left_out(version: ModelVersion, ports: Iterable[Port]) -> list[str]:
    said = {spec.name for spec in version.inputs if not spec.optional}
    known = {spec.name for spec in version.inputs}
    found = []
    for port in ports:
        if port.optional or port.name in said:
            continue
        reason = (
            "is required by the model, but said to be optional" if port.name in known else "is not mentioned"
        )
        found.append(f"input '{port.name}' ({port.datatype.wire}) {reason}")
    return found
