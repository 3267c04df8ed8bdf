"""A module that stands for NVIDIA's where an engine is built, and refuses timing caches: nothing here is NVIDIA's, and
its engines are none."""

from __future__ import annotations

from types import SimpleNamespace

LEARNED = b"what the stub has learned"
ENGINE = b"an engine of the stub"


class Profile:
    """Takes any shapes."""

    def set_shape(self, name: str, *limits: tuple[int, ...]) -> None:
        """Take them, as the real one does: it gives nothing."""


class Cache:
    """A timing cache of these bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> bytes:
        """The bytes."""
        return self.data


class Config:
    """Of one build: ``caches`` are those that it was asked to make, in order; ``taken`` is the one that it took."""

    progress_monitor: object = None

    def __init__(self, module: StubModule) -> None:
        self._module = module
        self.caches: list[bytes] = []
        self.taken: Cache | None = None

    def set_memory_pool_limit(self, pool: object, size: int) -> None:
        """Take it."""

    def add_optimization_profile(self, profile: Profile) -> int:
        """Take it."""
        return 0

    def create_timing_cache(self, data: bytes) -> Cache | None:
        """None where the bytes are none of a cache."""
        self.caches.append(data)
        return None if data and self._module.how == "makes none" else Cache(data)

    def set_timing_cache(self, cache: Cache, ignore_mismatch: bool) -> bool:
        """Take an empty one alone: any other is of another device."""
        assert not ignore_mismatch, "what another device measured is no measure for this one"
        if not cache.data or self._module.how == "takes all":
            self.taken = cache
            return True
        if self._module.how == "raises":
            raise RuntimeError("the cache is of another device")
        return False

    def get_timing_cache(self) -> Cache | None:
        """What the build has learned."""
        return self.taken and Cache(self._module.learned)


class Builder:
    """Builds the same engine of anything."""

    def __init__(self, module: StubModule) -> None:
        self._module = module

    def create_network(self, flags: int) -> object:
        """Anything."""
        return object()

    def create_builder_config(self) -> Config:
        """One that is remembered."""
        self._module.configs.append(Config(self._module))
        return self._module.configs[-1]

    def create_optimization_profile(self) -> Profile:
        """One that takes all."""
        return Profile()

    def build_serialized_network(self, network: object, config: Config) -> bytes:
        """The engine. TensorRT builds without a cache, too, but learns nothing then."""
        assert config.taken is not None, "it was built without a cache"
        return ENGINE


class StubModule:
    """``how`` it has a cache: it "makes none" of its bytes, "says no" to it, "raises", or "takes all". ``learned`` is
    what each build has learned."""

    __version__ = "0.0 (a stub)"
    MemoryPoolType = SimpleNamespace(WORKSPACE=0)
    BuilderFlag = SimpleNamespace(WEIGHT_STREAMING=0, REFIT=1)
    IProgressMonitor = object

    class ILogger:
        """Takes words."""

        INTERNAL_ERROR, ERROR = 0, 1

    def __init__(self, how: str) -> None:
        self.how = how
        self.learned = LEARNED
        self.configs: list[Config] = []

    def Builder(self, words: object) -> Builder:  # noqa: N802 - as it is called there
        """The builder."""
        return Builder(self)

    def OnnxParser(self, network: object, words: object) -> object:  # noqa: N802 - as above
        """One that takes any graph."""
        return SimpleNamespace(parse=lambda graph, path: True)

    def init_libnvinfer_plugins(self, words: object, namespace: str) -> bool:
        """There are none."""
        return True
