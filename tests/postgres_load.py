"""What tests of the PostgreSQL engine share: rollouts to work off, a look at its connections, and ways to cut them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import asyncpg

from outrider.core.event import Event, EventKind
from outrider.core.rollout import AttemptedRollout, RolloutConfig, RolloutRequest
from outrider.store import Store
from outrider.testing import eventually
from postgres_server import PostgresServer
from store_invariants import check_invariants

PATIENT = RolloutConfig(unresponsive_seconds=120.0)


def requests(n: int, **fields: object) -> list[RolloutRequest]:
    return [RolloutRequest(input=i, rollout_id=f"r{i}", config=PATIENT, **fields) for i in range(n)]


def schema_of(url: str) -> str:
    return url.rpartition("schema=")[2]


def note(text: str) -> Event:
    return Event(kind=EventKind.LOG, at=datetime.now(UTC), data={"text": text})


def ids_of(rollout: AttemptedRollout) -> tuple[str, str]:
    return rollout.rollout_id, rollout.attempt.attempt_id


async def finish_all(store: Store, name: str, *, n_events: int = 0, progress: list[int] | None = None) -> list[int]:
    """Claim and finish one by one until nothing is left; what was claimed. `progress` gets what was finished."""
    taken = []
    while (rollout := await store.dequeue_rollout(worker_id=name)) is not None:
        taken.append(rollout.input)
        for k in range(n_events):
            await store.append_events(*ids_of(rollout), [note(str(k))])
        await store.update_attempt(*ids_of(rollout), status="succeeded", reward=1.0)
        if progress is not None:
            progress.append(rollout.input)
    return taken


async def check_done_once(store: Store, taken: Sequence[Sequence[int]], n: int, *, n_events: int) -> None:
    assert sorted(i for several in taken for i in several) == list(range(n))
    rollouts = await store.query_rollouts()
    assert {(rollout.status, rollout.n_attempts) for rollout in rollouts} == {("succeeded", 1)}
    for rollout in rollouts:
        events = await store.query_events(rollout.rollout_id)
        assert [event.data["text"] for event in events] == [str(k) for k in range(n_events)]
    await check_invariants(store)


@asynccontextmanager
async def waiting_claim(store: Store) -> AsyncIterator["asyncio.Task[AttemptedRollout | None]"]:
    """A claim that waits and is woken by rings alone."""
    bell = store._bell
    bell.net_seconds = 60.0
    claim = asyncio.create_task(store.dequeue_rollout(worker_id="waiter", wait=30))
    try:
        yield claim
    finally:
        claim.cancel()
        await asyncio.gather(claim, return_exceptions=True)


async def n_connections(server: PostgresServer, url: str, query: str = "%") -> int:
    where = f"application_name = 'outrider.{schema_of(url)}' AND query LIKE '{query}'"
    return int(await asyncio.to_thread(server.sql, f"SELECT count(*) FROM pg_stat_activity WHERE {where}"))


async def n_listeners(server: PostgresServer, url: str) -> int:
    return await n_connections(server, url, "LISTEN%")


@asynccontextmanager
async def no_connections_left(server: PostgresServer, url: str) -> AsyncIterator[None]:
    yield

    async def none_left() -> bool:
        return await n_connections(server, url) == 0

    await eventually(none_left, within_seconds=20)


async def terminate_backends(server: PostgresServer, url: str) -> None:
    """Kill all connections of the stores at `url`."""
    link = await asyncpg.connect(server.url)
    try:
        where = f"application_name = 'outrider.{schema_of(url)}'"
        await link.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {where}")
    finally:
        await link.close()
