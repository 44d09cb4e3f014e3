"""Slots over time: what each slot of each worker did when, read back from what the store has recorded.

Invariants:
- An attempt is one unbroken run of bars, from its claim to its end. What lies between two attempts of a slot is idle.
- A slot is a lane of its worker: an attempt gets the first lane that is free when it is claimed.
"""

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain

from outrider.core.attempt import Attempt
from outrider.core.event import EventKind, RecordedEvent
from outrider.core.ledger import GroupEntry, GroupState
from outrider.core.machine import AWAITED, BOARDED, WANTED
from outrider.core.rollout import Rollout
from outrider.core.status import AttemptStatus, Mode
from outrider.core.turn import RESET
from outrider.store import Store
from outrider.train.watch import Phase

N_READERS = 16
"""Groups that are read at once."""

MAX_ATTEMPTS = 40_000
"""How many attempts a timeline holds; of more, the latest."""


VALIDATION_MARK = "-val-"
"""What follows the ledger's name in the ids of rollouts that validate."""

THIN_SECONDS = 0.001
"""A wait that is shorter is none."""


class MarkKind(StrEnum):
    """What happened at one moment for all slots."""

    DELIVERED = "delivered"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A batch that was delivered, or the version that came of it, published; `label` is what a picture calls it."""

    kind: MarkKind
    at: datetime
    batch: int
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of one phase, in seconds from the beginning of its attempt."""

    phase: Phase
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One attempt in its slot. `version` is that of the policy in its first turn."""

    rollout_id: str
    group_id: str
    tag: str
    worker_id: str
    status: AttemptStatus
    version: int | None
    began_at: datetime
    bars: tuple[Bar, ...]
    lane: int = 0

    @property
    def seconds(self) -> float:
        return self.bars[-1].ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All of it. `stays` stand worker by worker, in the order they began."""

    began_at: datetime
    ended_at: datetime
    stays: tuple[Stay, ...]
    marks: tuple[Mark, ...]
    n_left_out: int = 0

    @property
    def seconds(self) -> float:
        return (self.ended_at - self.began_at).total_seconds()

    def workers(self) -> dict[str, list[Stay]]:
        found: dict[str, list[Stay]] = defaultdict(list)
        for stay in self.stays:
            found[stay.worker_id].append(stay)
        return dict(found)

    @property
    def n_slots(self) -> int:
        """The lanes of all workers, those of workers that are gone included."""
        return sum(max(stay.lane for stay in stays) + 1 for stays in self.workers().values())

    def slot_seconds(self) -> "SlotSeconds":
        """How the slots spent their time. Those of a worker count from its first claim to its last end."""
        by_phase = dict.fromkeys(Phase, 0.0)
        idle = 0.0
        for stays in self.workers().values():
            began = [(stay.began_at - self.began_at).total_seconds() for stay in stays]
            ended = [at + stay.seconds for at, stay in zip(began, stays, strict=True)]
            n_lanes = max(stay.lane for stay in stays) + 1
            idle += n_lanes * (max(ended) - min(began)) - sum(stay.seconds for stay in stays)
            for bar in chain.from_iterable(stay.bars for stay in stays):
                by_phase[bar.phase] += bar.ended - bar.began
        return SlotSeconds(by_phase=by_phase, idle=max(idle, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSeconds:
    """The time of all slots together."""

    by_phase: Mapping[Phase, float]
    idle: float

    @property
    def total(self) -> float:
        return sum(self.by_phase.values()) + self.idle

    @property
    def occupancy(self) -> float:
        """The share of it in which a slot had an attempt, from 0 to 1."""
        return 1 - self.idle / self.total if self.total else 0.0

    @property
    def at_work(self) -> float:
        """The share of it in which an attempt was at work: not held back, and not waiting for a machine."""
        waited = self.by_phase[Phase.HELD] + self.by_phase[Phase.MACHINE]
        return self.occupancy - waited / self.total if self.total else 0.0


async def read_timeline(
    store: Store, ledger: str, *, marks: Sequence[Mark] = (), now: datetime, max_attempts: int = MAX_ATTEMPTS
) -> Timeline:
    """The timeline of a ledger. `marks` are those that the trainer has noted; the rest is read from the ledger.

    Attempts that are under way last until `now`.
    """
    groups = (await store.query_groups(ledger)).items
    gate = asyncio.Semaphore(N_READERS)
    async with asyncio.TaskGroup() as readers:
        reading = [readers.create_task(_stays_of_group(store, group.group_id, gate, now)) for group in groups]
        reading += [
            readers.create_task(_stays_of(store, [rollout], gate, now))
            for rollout in await store.query_rollouts(mode=Mode.VAL)
            if rollout.rollout_id.startswith(f"{ledger}{VALIDATION_MARK}")
        ]
    found = sorted(chain.from_iterable(task.result() for task in reading), key=lambda stay: stay.began_at)
    kept = found[-max_attempts:]
    all_marks = sorted([*marks, *_marks_of(groups, marks)], key=lambda mark: mark.at)
    moments = [stay.began_at for stay in kept] + [stay.began_at + timedelta(seconds=stay.seconds) for stay in kept]
    return Timeline(
        began_at=min(moments, default=now),
        ended_at=max(moments, default=now),
        stays=tuple(in_lanes(kept)),
        marks=tuple(mark for mark in all_marks if not moments or mark.at >= min(moments)),
        n_left_out=len(found) - len(kept),
    )


async def _stays_of_group(store: Store, group_id: str, gate: asyncio.Semaphore, now: datetime) -> list[Stay]:
    async with gate:
        rollouts = await store.query_rollouts(group_id=group_id)
    return await _stays_of(store, rollouts, gate, now)


async def _stays_of(store: Store, rollouts: Iterable[Rollout], gate: asyncio.Semaphore, now: datetime) -> list[Stay]:
    async with gate:
        found = []
        for rollout in rollouts:
            for attempt in await store.query_attempts(rollout.rollout_id):
                events = await store.query_events(rollout.rollout_id, attempt_id=attempt.attempt_id)
                found.append(stay_of(rollout, attempt, events.items, now))
        return found


def _marks_of(groups: Iterable[GroupEntry], noted: Sequence[Mark]) -> Iterator[Mark]:
    """The newest thing that the ledger knows of each batch, if it is not noted."""
    known = {(mark.kind, mark.batch) for mark in noted}
    latest: dict[tuple[MarkKind, int], datetime] = {}
    for group in groups:
        if group.batch is not None:
            kind = MarkKind.PUBLISHED if group.state is GroupState.ACKNOWLEDGED else MarkKind.DELIVERED
            latest[kind, group.batch] = max(latest.get((kind, group.batch), group.moved_at), group.moved_at)
    for (kind, batch), at in latest.items():
        if (kind, batch) not in known:
            yield Mark(kind=kind, at=at, batch=batch, label=f"batch {batch}")


def stay_of(rollout: Rollout, attempt: Attempt, events: Sequence[RecordedEvent], now: datetime) -> Stay:
    """An attempt as bars, from what it recorded."""
    turns = (event for event in events if event.kind is EventKind.TURN)
    first = next(turns, None)
    return Stay(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id or ("validation" if rollout.mode is Mode.VAL else ""),
        tag=rollout.tag or "",
        worker_id=attempt.worker_id,
        status=attempt.status,
        version=None if first is None else int(first.data.get("policy_version", 0)),
        began_at=attempt.started_at,
        bars=tuple(_bars(attempt, events, now)),
    )


_BEGINS = {WANTED: Phase.HELD, AWAITED: Phase.MACHINE, BOARDED: Phase.RESET}
"""What begins with an event of an attempt that takes a machine."""


def _bars(attempt: Attempt, events: Sequence[RecordedEvent], now: datetime) -> Iterator[Bar]:
    """Each event ends a phase. What lies between the phase before it and a model call is a wait for leave to ask."""
    at, phase = 0.0, Phase.RESET
    for event in events:
        end = max((event.at - attempt.started_at).total_seconds(), at)
        if event.kind is EventKind.TURN:
            asked = min(max(end - float(event.data.get("seconds", 0.0)), at), end)
            if asked - at >= THIN_SECONDS:
                yield Bar(phase if phase is Phase.RESET else Phase.HELD, at, asked)
                at = asked
            yield Bar(Phase.MODEL, at, end)
            at, phase = end, Phase.ENV
        elif event.kind is EventKind.STEP:
            yield Bar(Phase.RESET if event.name == RESET else Phase.ENV, at, end)
            at, phase = end, Phase.HELD if event.name == RESET else Phase.MODEL
        elif event.kind is EventKind.REWARD:
            phase = Phase.SCORE
        elif event.kind is EventKind.LOG and event.name in _BEGINS:
            yield Bar(phase, at, end)
            at, phase = end, _BEGINS[event.name]
    if attempt.status is AttemptStatus.SUCCEEDED:
        phase = Phase.SCORE
    yield Bar(phase, at, max(((attempt.ended_at or now) - attempt.started_at).total_seconds(), at))


def in_lanes(stays: Iterable[Stay]) -> Iterator[Stay]:
    """The same, each in the lowest lane of its worker that is free when it begins; worker by worker."""
    by_worker: dict[str, list[Stay]] = defaultdict(list)
    for stay in sorted(stays, key=lambda stay: stay.began_at):
        by_worker[stay.worker_id].append(stay)
    for worker_id in sorted(by_worker):
        free: list[int] = []
        busy: list[tuple[datetime, int]] = []
        n_lanes = 0
        for stay in by_worker[worker_id]:
            while busy and busy[0][0] <= stay.began_at:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if free:
                lane = heapq.heappop(free)
            else:
                lane, n_lanes = n_lanes, n_lanes + 1
            heapq.heappush(busy, (stay.began_at + timedelta(seconds=stay.seconds), lane))
            yield replace(stay, lane=lane)


def merged(bars: Sequence[Bar], thin_seconds: float) -> list[Bar]:
    """The same stretch with no bar under `thin_seconds` but the last: thin ones become one, in the longest's phase."""
    found: list[Bar] = []
    together: dict[Phase, float] = {}
    began = 0.0
    for number, bar in enumerate(bars):
        if not together:
            began = bar.began
        together[bar.phase] = together.get(bar.phase, 0.0) + bar.ended - bar.began
        if bar.ended - began < thin_seconds and number < len(bars) - 1:
            continue
        phase = max(together, key=together.__getitem__)
        together.clear()
        if found and found[-1].phase is phase:
            began = found.pop().began
        found.append(Bar(phase, began, bar.ended))
    return found
