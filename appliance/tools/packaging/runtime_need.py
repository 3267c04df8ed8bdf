"""Which release of ONNX Runtime a graph needs: the first one that reads its operator sets and its format. Pure.

Measured, not read off tables: releases 1.20.0, 1.21.0, 1.22.0, 1.23.0, 1.24.1, 1.25.0 and 1.31.1 were given graphs of
each operator set and of each version of the format (``ir_version``). A test asks the release that is installed.
"""

from __future__ import annotations

from typing import Final

from appliance.domain.manifest import RuntimeNeed
from appliance.package.conformity import RUNTIME, manifest_opsets
from appliance.repository.onnx.summary import GraphSummary

OLDEST: Final = "1.20"
"""What the appliance itself asks for."""
OPSETS: Final = (("1.20", 21), ("1.21", 22), ("1.23", 23), ("1.24", 25), ("1.25", 26))
FORMATS: Final = (("1.20", 10), ("1.23", 11), ("1.24", 13))
"""Releases that brought more, oldest first, with the highest standard operator set, and ``ir_version``, that they
read."""


def runtime_need(graph: GraphSummary) -> RuntimeNeed:
    """What runs the graph. Of one that is newer than all that is known here, the newest release that is."""
    opsets = manifest_opsets(graph)
    standard = max((opset.version for opset in opsets if not opset.domain), default=0)
    releases = (_first(OPSETS, standard), _first(FORMATS, graph.ir_version))
    minimum = max(releases, key=lambda release: tuple(map(int, release.split("."))))
    return RuntimeNeed(name=RUNTIME, minimum=minimum, opsets=opsets)


def _first(table: tuple[tuple[str, int], ...], wanted: int) -> str:
    return next((release for release, highest in table if wanted <= highest), table[-1][0])
