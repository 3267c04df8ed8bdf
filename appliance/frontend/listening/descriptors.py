"""Descriptors of this process: as many as the system gives, and whether connections could take what workers need."""

from __future__ import annotations

import resource
from typing import Final

WORKERS_NEED: Final = 512
"""Left for workers, models' files, the store and the rest: some ten for each worker that is started or replaced."""


def raise_descriptor_limit() -> None:
    """Each connection is a descriptor: use all that the system lets us have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """How many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def descriptor_shortage(connections: int, allowed: int) -> str:
    """What happens where connections may take ``connections`` descriptors of the ``allowed`` ones, and what to do; ""
    where enough are left."""
    if connections + WORKERS_NEED <= allowed:
        return ""
    return (
        f"grpc.max_connections and http.max_connections allow connections that take {connections} descriptors, and the "
        f"system allows this process {allowed} in all: when they are used up, no worker can be started; lower those "
        f"settings, or raise the limit (LimitNOFILE= of the service, 'ulimit -Hn') to {connections + WORKERS_NEED}"
    )
