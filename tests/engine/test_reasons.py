"""Why a version serves another file than the one that was asked for: said for as long as it is so, and no longer."""

from __future__ import annotations

from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.engine.versions.wording import AS_THEY_ARE
from appliance.workers import port
from tests.domain.sample import make_version
from tests.engine.rig import Rig

MODEL = make_version("m", 1)
STILL = "still serving the previous file; the new one"


class Loads(Rig):
    """A version serves; loads after that end when they are told to."""

    def __init__(self) -> None:
        self.loads: list[tuple[int, int]] | None = None
        super().__init__(MODEL)
        self.loads = []

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        if self.loads is None:
            super().load(worker, model, version, wish)
        else:
            self.loads.append((worker, model))

    def want(self, fingerprint: str) -> None:
        self.engine.apply(Catalog(versions=(CatalogVersion(model=MODEL, fingerprint=fingerprint),)))
        self.turns()

    def end_load(self, *, reason: str = "") -> None:
        assert self.loads
        worker, model = self.loads.pop()
        if reason:
            self.engine.pool_event(port.ModelRefused(worker, model, reason))
        else:
            self.engine.pool_event(port.ModelLoaded(worker, model, (), 1, 1))
        self.turns()

    @property
    def told(self) -> str:
        """The reason in the index, which is that of the status, too."""
        (entry,), (status,) = self.engine.index(ready_only=False), self.engine.status().versions
        assert entry.state.value == "READY"
        assert entry.reason == status.reason
        return entry.reason

    @property
    def outlook(self) -> str:
        """What programs are told, in the index as in the status."""
        (entry,), (status,) = self.engine.index(ready_only=False), self.engine.status().versions
        assert (entry.outlook, entry.waiting) == (status.outlook, status.waiting)
        return entry.outlook.value


def test_a_reload_says_how_it_stands_until_it_serves() -> None:
    rig = Loads()
    assert rig.told == ""
    rig.want("b")
    assert rig.told == f"{STILL} is loading"
    assert rig.outlook == "successor loads"
    rig.end_load(reason="it is broken")
    assert rig.told == f"{STILL} failed: it is broken"
    assert rig.outlook == "successor failed"
    rig.want("b")
    assert rig.told == f"{STILL} failed: it is broken", "nobody asked for it again"
    rig.want("c")
    assert rig.told == f"{STILL} is loading", "of another file that is no news"
    rig.end_load()
    assert rig.told == ""
    assert rig.outlook == "as wanted"


def test_a_version_stays_out_for_the_word_of_a_process_that_has_held_no_other() -> None:
    for liar in (False, True):
        rig = Loads()
        serving = rig.engine.status().versions[0].workers[0]
        rig.want("b")
        assert rig.loads
        worker, model = rig.loads.pop()
        refused = port.ModelRefused(serving if liar else worker, model, "it is too new", unsupported=True)
        rig.engine.pool_event(refused)
        rig.turns()
        assert rig.told == f"{STILL} failed: it is too new" + ("" if liar else f"; {AS_THEY_ARE}")
        assert rig.outlook == "successor failed"


def test_nothing_is_wrong_with_what_is_wanted_again_after_another_file_failed() -> None:
    rig = Loads()
    rig.want("b")
    rig.end_load(reason="it is broken")
    rig.want("")
    assert rig.told == ""
    assert not rig.loads


def test_a_reload_that_is_withdrawn_is_forgotten_and_what_serves_is_not_loaded_again() -> None:
    rig = Loads()
    rig.want("b")
    rig.want("")
    assert rig.told == ""
    assert len(rig.loads or ()) == 1
    rig.end_load()
    assert rig.told == ""
    assert rig.engine.settled_of("m")
    assert not rig.loads


def test_a_version_that_failed_is_not_in_memory() -> None:
    rig = Loads()
    wanted = (CatalogVersion(model=make_version("m", number), fingerprint="") for number in (1, 2))
    rig.engine.apply(Catalog(versions=tuple(wanted)))
    rig.turns()
    rig.end_load(reason="it is broken")
    assert {each.version: each.residency for each in rig.engine.status().versions} == {
        1: "resident",
        2: "cold",
    }
