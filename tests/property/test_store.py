"""The SQLite engine against the memory engine: the same calls at the same moments, and nobody can tell them apart."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Struct
from msgspec.structs import asdict

from outrider.core.attempt import Failure, LostLease
from outrider.core.errors import Boundary, OutriderError
from outrider.core.rollout import AttemptedRollout, RolloutConfig, RolloutRequest
from outrider.store import Revoked, Store, open_store
from outrider.store.sqlite.machines import SqliteMachines
from outrider.store.sqlite.store import SqliteStore
from outrider.testing import FakeClock
from soaking import examples
from store_invariants import check_invariants
from store_moves import log

Names = list[str]
"""An engine's own ids of the attempts, by the number they have for both."""

rollout_ids = st.integers(0, 11).map("r{}".format)
tags = st.sampled_from([None, "a", "b"])
modes = st.sampled_from(["train", "val"])
workers = st.sampled_from(["w0", "w1"])
configs = st.sampled_from(
    [
        RolloutConfig(),
        RolloutConfig(max_attempts=1),
        RolloutConfig(timeout_seconds=5, unresponsive_seconds=3, max_attempts=2),
        RolloutConfig(unresponsive_seconds=2, retry_condition=frozenset({"unresponsive"})),
        RolloutConfig(resources_version=2),
    ]
)
requests = st.builds(
    RolloutRequest,
    input=st.sampled_from([0, {"x": [1]}]),
    rollout_id=rollout_ids,
    mode=modes,
    tag=tags,
    priority=st.integers(-1, 1),
    group_id=st.sampled_from([None, "g"]),
    config=configs,
)
statuses = st.sampled_from([None, "running", "succeeded", "failed", "timeout", "cancelled"])
numbers = st.integers(0, 30)
indexes = st.sampled_from([None, 0, 1, 3])
FAILURE = Failure(boundary=Boundary.ENV, kind="K", message="m")


class TwoStores(RuleBasedStateMachine):
    """Drives both engines. Attempt ids differ between them, so that attempts are compared by number."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._folder = tempfile.TemporaryDirectory()
        self._clock = FakeClock()
        self._stores: list[Store] = []
        self._names: list[Names] = [[], []]
        self._holders: list[str] = []

    @initialize()
    def open(self) -> None:
        async def opened() -> list[Store]:
            urls = ["memory://", f"sqlite:///{self._folder.name}/runs.db"]
            return [await open_store(url, clock=self._clock) for url in urls]

        self._stores = self._runner.run(opened())

    def teardown(self) -> None:
        async def close() -> None:
            for store in self._stores:
                await check_invariants(store)
                await store.close()

        try:
            self._runner.run(close())
        finally:
            self._runner.close()
            self._folder.cleanup()

    def both(self, call: Callable[[Store, Names], Awaitable[Any]]) -> Any:
        """The outcome of a call on both engines, which must be the same."""

        async def outcomes() -> list[Any]:
            return [await _outcome(call(*engine)) for engine in zip(self._stores, self._names, strict=True)]

        memory, sqlite = self._runner.run(outcomes())
        self._note(memory, sqlite)
        plain = [_plain(found, names) for found, names in zip((memory, sqlite), self._names, strict=True)]
        assert plain[1] == plain[0]
        return memory

    def _note(self, *outcomes: Any) -> None:
        """Number the attempts of fresh claims alike for both engines."""
        claimed = [[c for c in _listed(found) if isinstance(c, AttemptedRollout)] for found in outcomes]
        for mine, theirs in zip(*claimed, strict=True):
            if mine.attempt.attempt_id not in self._names[0]:
                self._names[0].append(mine.attempt.attempt_id)
                self._names[1].append(theirs.attempt.attempt_id)
                self._holders.append(mine.rollout_id)

    def _number(self, n: int) -> int:
        """One of the attempts so far, of the later ones more often."""
        return max(0, len(self._holders) - 1 - n // 3) if n % 3 else n % len(self._holders)

    @rule(request=requests)
    def enqueue(self, request: RolloutRequest) -> None:
        self.both(lambda store, _: store.enqueue_many_rollouts([request]))

    @rule(several=st.lists(requests, max_size=4))
    def enqueue_many(self, several: list[RolloutRequest]) -> None:
        self.both(lambda store, _: store.enqueue_many_rollouts(several))

    @rule(rollout_id=rollout_ids, worker_id=workers, config=configs)
    def start(self, rollout_id: str, worker_id: str, config: RolloutConfig) -> None:
        self.both(lambda store, _: store.start_rollout(0, rollout_id=rollout_id, worker_id=worker_id, config=config))

    @rule(
        limit=st.integers(1, 3),
        worker_id=workers,
        tags=st.none() | st.sets(st.sampled_from("abc")),
        mode=st.none() | modes,
        request_id=st.sampled_from([None, None, "q0", "q1"]),
        isolated=st.sampled_from([False, False, True]),
    )
    def claim(self, limit: int, **filters: Any) -> None:
        self.both(lambda store, _: store.dequeue_many_rollouts(limit, **filters))

    @precondition(lambda self: self._holders)
    @rule(
        n=numbers,
        status=statuses,
        reward=st.sampled_from([None, None, 0.0, 1.0]),
        worker_id=st.none() | st.none() | workers,
        n_events=st.integers(0, 2),
        first_index=indexes,
        other=st.none() | st.none() | rollout_ids,
        fails=st.booleans(),
        metadata=st.sampled_from([None, None, {"noted": 1}, {}]),
    )
    def report(self, n: int, n_events: int, other: str | None, *, fails: bool, **report: Any) -> None:
        n = self._number(n)
        report |= {"events": [log(str(place)) for place in range(n_events)], "error": FAILURE if fails else None}
        self.both(lambda store, names: store.update_attempt(other or self._holders[n], names[n], **report))

    @precondition(lambda self: self._holders)
    @rule(n=numbers, n_events=st.integers(0, 2), first_index=indexes)
    def append(self, n: int, n_events: int, first_index: int | None) -> None:
        n = self._number(n)
        events = [log(str(place)) for place in range(n_events)]
        self.both(lambda store, names: store.append_events(self._holders[n], names[n], events, first_index=first_index))

    @rule(worker_id=workers, some=st.sets(numbers, max_size=4), stats=st.sampled_from([None, None, {"load": 1}]))
    def heartbeat(self, worker_id: str, some: set[int], stats: dict[str, int] | None) -> None:
        chosen = {self._number(n) for n in some} if self._holders else set()
        self.both(lambda store, names: store.heartbeat(worker_id, [names[n] for n in chosen], stats=stats))

    @rule(
        rollout_id=rollout_ids,
        fields=st.fixed_dictionaries(
            {},
            optional={
                "input": st.sampled_from([1, {"y": 2}]),
                "mode": modes,
                "tag": tags,
                "seed": st.sampled_from([None, 7]),
                "priority": st.integers(-1, 1),
                "config": configs,
                "metadata": st.sampled_from([{}, {"m": 1}]),
            },
        ),
    )
    def change(self, rollout_id: str, fields: dict[str, Any]) -> None:
        self.both(lambda store, _: store.update_rollout(rollout_id, **fields))

    @rule(resources_id=st.sampled_from(["default", "other"]))
    def publish(self, resources_id: str) -> None:
        self.both(lambda store, _: store.put_resources({"of": resources_id}, resources_id=resources_id))
        self.both(lambda store, _: store.get_latest_resources(resources_id=resources_id))
        self.both(lambda store, _: store.query_resources(descending=True, limit=2))

    @rule(worker_id=workers, how=st.sampled_from(Revoked))
    def revoke(self, worker_id: str, how: Revoked) -> None:
        self.both(lambda store, _: store.revoke_leases(worker_id, reason="died", how=how))

    @rule(ids=st.lists(rollout_ids, max_size=2))
    def cancel(self, ids: list[str]) -> None:
        self.both(lambda store, _: store.cancel_rollouts(ids))

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0, 3.0, 31.0]))
    def advance(self, seconds: float) -> None:
        self._runner.run(self._clock.advance(seconds))
        self.both(lambda store, _: self._swept(store))

    async def _swept(self, store: Any) -> None:
        # The stores sweep by themselves too; this only waits until nothing is overdue.
        while (due := await store._expire()) is not None and due <= self._clock.monotonic():
            pass

    @rule()
    def keep_tallies(self) -> None:
        self.both(lambda store, _: self._tallied(store))

    async def _tallied(self, store: Any) -> None:
        # By itself a store does this only once there is much to add.
        if isinstance(store, SqliteStore):
            await store._write(SqliteMachines.tally)

    @rule(
        status=st.sampled_from([None, "queuing", "requeuing", "preparing", "running", "failed"]),
        tag=tags,
        mode=st.none() | modes,
        group_id=st.sampled_from([None, "g"]),
        sort_by=st.sampled_from(["enqueued_at", "ended_at"]),
        descending=st.booleans(),
        limit=st.integers(-1, 3),
        offset=st.integers(0, 2),
    )
    def query(self, **query: Any) -> None:
        self.both(lambda store, _: store.query_rollouts(**query))

    @rule(rollout_id=rollout_ids, limit=st.integers(-1, 2), offset=st.integers(0, 1))
    def look_at_one(self, rollout_id: str, **window: int) -> None:
        self.both(lambda store, _: store.query_attempts(rollout_id, **window))
        self.both(lambda store, _: store.query_events(rollout_id, **window))
        self.both(lambda store, _: store.wait_for_rollouts([rollout_id], timeout=0))

    @precondition(lambda self: self._holders)
    @rule(n=numbers, kind=st.sampled_from([None, "log", "turn"]))
    def events_of_an_attempt(self, n: int, kind: str | None) -> None:
        n = self._number(n)
        self.both(lambda store, names: store.query_events(self._holders[n], attempt_id=names[n], kind=kind))

    @rule(cursor=st.integers(0, 5), limit=st.integers(1, 3))
    def read_feed(self, cursor: int, limit: int) -> None:
        self.both(lambda store, _: store.finished_after(cursor, limit=limit))

    @invariant()
    def both_look_the_same(self) -> None:
        if self._stores:
            self.both(lambda store, _: store.query_rollouts())
            self.both(lambda store, _: store.query_workers())
            self.both(lambda store, _: store.statistics())


async def _outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except OutriderError as error:
        return error


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def _plain(value: Any, names: Names) -> Any:
    """A value without the engine's own ids: attempts by number, whatever is sorted by id sorted by number."""
    if isinstance(value, OutriderError):
        facts = {name: fact for name, fact in vars(value).items() if not name.startswith("_")}
        return type(value).__name__, _plain(facts, names)
    if isinstance(value, Struct):
        return type(value).__name__, _plain(asdict(value), names)
    if isinstance(value, Mapping):
        return {key: _plain(item, names) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [_plain(item, names) for item in value]
        return sorted(items, key=repr) if all(isinstance(item, str | LostLease) for item in value) else items
    if isinstance(value, str) and value in names:
        return f"attempt {names.index(value)}"
    return value


TestTwoStores = TwoStores.TestCase
TestTwoStores.settings = settings(max_examples=examples(25), stateful_step_count=40)
