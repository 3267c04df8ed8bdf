"""Groups, lanes, models and batch keys come and go; what that means for what is queued and running."""

from __future__ import annotations

from typing import assert_never

from appliance.core.scheduling import events as on
from appliance.core.scheduling import leases
from appliance.core.scheduling.actions import Action, Evicted, Lost
from appliance.core.scheduling.admission import release_hold
from appliance.core.scheduling.group import NEVER, BatchKey, Group, Lane, Model
from appliance.core.scheduling.profile import ServiceTime
from appliance.core.scheduling.state import State


class Membership(State):
    """A scheduler, as far as it is told who is there."""

    def _changed(self, event: on.Membership, now_ns: int) -> list[Action]:
        match event:
            case on.GroupOpened():
                assert event.group not in self._groups, "group opened twice"
                self._groups[event.group] = Group(event.group)
            case on.GroupClosed():
                return self._group_closed(event, now_ns)
            case on.LaneOpened():
                self._lane_opened(event, now_ns)
            case on.LaneClosed():
                return self._lane_closed(event, now_ns)
            case on.ModelOpened():
                left = self._models.get(event.model)
                assert left is None or left.closed, "model opened twice"
                # What it still runs where it was closed ends there: it may serve in another group before that.
                model = Model(event.model, self._groups[event.group], event.max_batch, event.batching)
                self._models[event.model] = model
                model.group.models.append(model)
                self._regrant(model.group)
            case on.ModelClosed():
                return self._model_closed(event)
            case on.BatchKeyOpened():
                self._batch_key_opened(event)
            case on.BatchKeyClosed():
                self._batch_key_closed(event)
            case _:
                assert_never(event)
        return []

    def _lane_opened(self, event: on.LaneOpened, now_ns: int) -> None:
        assert event.lane not in self._lanes, "lane opened twice"
        group = self._groups[event.group]
        release_hold(group, now_ns)
        if group.returning:
            group.returning.pop(event.lane if event.lane in group.returning else next(iter(group.returning)))
        lane = self._lanes[event.lane] = Lane(event.lane, group, event.leasable)
        group.lanes.append(lane)
        leases.opened(lane)
        self._dirty[group] = None

    def _lane_closed(self, event: on.LaneClosed, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        lane = self._lanes.pop(event.lane, None)
        if lane is not None:
            group = lane.group
            release_hold(group, now_ns)
            group.lanes.remove(lane)
            leases.closed(lane)
            for place, running in enumerate(lane.batches):
                del self._running[running.batch]
                actions += self._again(running.entries, now_ns, ran=not place, final=event.final)
        else:
            awaited = [group for group in self._groups.values() if event.lane in group.returning]
            if not awaited:
                return actions
            group = awaited[0]
            del group.returning[event.lane]
        if event.back_at_ns:
            group.returning[event.lane] = event.back_at_ns
        if not group.lanes and not group.returning:
            actions += [Lost(request) for request in self._empty([head[3] for head in group.heads])]
        return actions

    def _model_closed(self, event: on.ModelClosed) -> list[Action]:
        model = self._models.get(event.model)
        if model is None:  # its group was closed before, as when the daemon ends while it is watched
            return []
        return self._close(model)

    def _close(self, model: Model) -> list[Action]:
        model.closed = True
        evicted: list[Action] = [Evicted(request) for request in self._empty(model.batch_keys)]
        self._drop_if_done(model)
        self._regrant(model.group)
        return evicted

    def _batch_key_opened(self, event: on.BatchKeyOpened) -> None:
        assert event.batch_key not in self._batch_keys, "batch key opened twice"
        model = self._models[event.model]
        batch_key = BatchKey(event.batch_key, model, ServiceTime(self._lift, event.seeds))
        self._batch_keys[event.batch_key] = batch_key
        model.batch_keys.append(batch_key)
        batch_key.learned(self._config.plan_tolerance)

    def _batch_key_closed(self, event: on.BatchKeyClosed) -> None:
        batch_key = self._batch_keys.get(event.batch_key)
        if batch_key is None:
            return
        assert not batch_key.queue, "batch key closed with requests queued"
        del self._batch_keys[event.batch_key]
        batch_key.model.batch_keys.remove(batch_key)
        self._drop_if_done(batch_key.model)

    def _regrant(self, group: Group) -> None:
        """The models of ``group`` have changed: see in Settle to its leases."""
        if group.leases.leasable:
            leases.survey(group)
            self._dirty[group] = None

    def _drop_if_done(self, model: Model) -> None:
        if model.closed and not model.batch_keys:
            if self._models.get(model.model) is model:  # else it was opened anew
                del self._models[model.model]
            model.group.models.remove(model)

    def _group_closed(self, event: on.GroupClosed, now_ns: int) -> list[Action]:
        """Close its lanes for good, then all that it served: nothing can end later than this."""
        actions: list[Action] = []
        group = self._groups[event.group]
        for lane in [*(lane.lane for lane in group.lanes), *group.returning]:
            actions += self._lane_closed(on.LaneClosed(lane, 0), now_ns)
        for model in list(group.models):
            actions += self._close(model)
            for batch_key in list(model.batch_keys):
                self._batch_key_closed(on.BatchKeyClosed(batch_key.batch_key))
        self._agenda.set(group, NEVER)
        self._dirty.pop(group, None)
        del self._groups[event.group]
        return actions
