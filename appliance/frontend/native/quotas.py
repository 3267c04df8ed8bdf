"""Quotas whose accounts the native door keeps, so that it asks them without Python."""

from __future__ import annotations

import time
from collections.abc import Callable

from edge_appliance_door import Quotas as Clients

from appliance.config.quotas import QuotasConfig
from appliance.frontend.quota.quotas import Quotas


def native_quotas(config: QuotasConfig, report: Callable[..., None]) -> Quotas:
    """Quotas on the door's clock."""
    return Quotas(Clients(), config, time.monotonic_ns, report)


def clients_of(quotas: Quotas) -> Clients:
    """What the door asks."""
    assert isinstance(quotas.clients, Clients), "quotas of another door"
    return quotas.clients
