"""Whether the native front end's package is there, loads, and is the one that this version of the appliance speaks
to."""

from __future__ import annotations

from typing import Final

from appliance.config.grpc import GrpcConfig
from appliance.frontend.native.limits import limits_of

PACKAGE: Final = "edge_appliance_native"
VERSION: Final = "0.8"
"""What both sides say to one another changes with it."""
HOW: Final = "'make native' builds it (with Rust's cargo)"


def native_problem() -> str:
    """Why the native front end cannot be used, and what to do; empty when it can."""
    try:
        import edge_appliance_native as package
    except ModuleNotFoundError as error:
        if error.name == PACKAGE:
            return f"it is not installed; {HOW}"
        return f"it does not load ({error}); {HOW}"
    except ImportError as error:
        return f"it does not load ({error}); {HOW} anew"
    spoken = package.__version__.startswith(f"{VERSION}.")
    if not spoken or set(package.LIMITS) != set(limits_of(GrpcConfig())):
        return (
            f"the installed one, {package.__version__}, is not of this version of the appliance; {HOW} anew"
        )
    return ""
