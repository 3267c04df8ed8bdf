"""What a worker process goes by: its threads and processors, its memory, what it may read, its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.config.workers import WorkersConfig
from appliance.domain.device import CPU, DeviceName, cuda
from appliance.domain.model import ModelVersion
from appliance.workers.jail.access import FileAccess, access_to, access_to_build
from appliance.workers.jail.user import UserIds


class WorkerSettings(NamedTuple):
    """How one worker process runs. ``cpus`` empty: no affinity. ``memory_limit_bytes`` 0: none. ``access`` is all that
    its jail leaves it of the file system; None: it is in no jail, which only tests want. ``user``: whom it becomes (see
    ``jail.user``); ``device`` is the one that its models run on, ``visible`` the UUID of that one where the worker is
    to see no other ("": it sees all, and counts them as the driver does)."""

    threads: int
    cpus: tuple[int, ...]
    memory_limit_bytes: int
    access: FileAccess | None = None
    user: UserIds = ()
    device: DeviceName = CPU
    visible: str = ""

    @property
    def seen(self) -> DeviceName:
        """What the device is called in the worker."""
        return cuda(0) if self.visible else self.device

    def serving(
        self, versions: Sequence[ModelVersion], *, shared: bool, device: DeviceName = CPU
    ) -> WorkerSettings:
        """Give those of a worker that serves ``versions`` on ``device``; one that is ``shared`` may get any other,
        too."""
        if self.access is None:
            return self._replace(device=device)
        if shared or len(versions) != 1:
            return self._replace(access=self.access._replace(devices=not device.is_cpu), device=device)
        return self._replace(access=access_to(versions[0]), device=device)

    def building(self, version: ModelVersion, device: DeviceName = CPU) -> WorkerSettings:
        """Give those of a worker that builds the packed form of ``version``, which serves on ``device``."""
        access = None if self.access is None else access_to_build(version)
        return self._replace(access=access, device=device)

    def covers(self, version: ModelVersion) -> bool:
        """Whether a worker that versions share could read this one."""
        return self.access is None or self.access.covers(version)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTerms:
    """What worker processes go by. One that versions share reads below ``roots``; None: no jail confines what workers
    read, as where they are simulated. They become ``user``. ``visible`` are the UUIDs of devices of which each is all
    that its workers see, ``near`` the processors to which they are bound where none are configured."""

    config: WorkersConfig = field(default_factory=WorkersConfig)
    roots: tuple[str, ...] | None = None
    user: UserIds = ()
    visible: Mapping[DeviceName, str] = field(default_factory=dict)
    near: Mapping[DeviceName, tuple[int, ...]] = field(default_factory=dict)

    def settings(self, number: int, device: DeviceName = CPU) -> WorkerSettings:
        """Give those of the ``number``-th worker, which is for ``device``."""
        config = self.config
        cpus = config.cpus[number % len(config.cpus)] if config.cpus else self.near.get(device, ())
        access = None if self.roots is None else FileAccess(roots=self.roots)
        return WorkerSettings(
            config.threads,
            cpus,
            config.memory_limit_bytes,
            access,
            self.user,
            device,
            self.visible.get(device, ""),
        )
