"""Versions for tests, in whatever phase."""

from __future__ import annotations

from typing import Any

from appliance.core.rollout.version import Artifact, Version, VersionSpec
from appliance.domain.model import ModelVersion
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import VersionMeter


def make_served(
    *,
    id: int,
    model: ModelVersion,
    fingerprint: str = "",
    identity: str = "",
    artifact: Artifact = Artifact.AS_PACKAGED,
    meter: VersionMeter | None = None,
    **state: Any,
) -> Served:
    """A version of the engine; ``state`` is its record's."""
    spec = VersionSpec(id=id, model=model, fingerprint=fingerprint, identity=identity, artifact=artifact)
    return Served(version=Version(spec=spec, **state), meter=meter or VersionMeter(model.name, model.version))
