"""A row that cannot be read, written by another version or damaged, fails visibly and is in nobody's way."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from outrider.core import wire
from outrider.core.errors import Boundary
from outrider.core.rollout import RolloutConfig, RolloutRequest
from outrider.store import open_store
from outrider.testing import FakeClock, eventually
from postgres_server import PostgresServer
from processes import run_outrider
from store_invariants import check_invariants
from store_moves import finish, log

Spoil = Callable[[str, str, bytes], None]
"""Writes into a column of the row of a rollout."""

GARBAGE = b"\xc1 not msgpack"
NEWER = wire._encode((99, {"what": "nobody knows"}))  # what a later version might write
POISON = wire._encode((1, {"unresponsive_seconds": 1e12}))  # was taken once: ends in the year 33,000
DAMAGE = {
    "config of a later version": ("config", NEWER),
    "config that is garbage": ("config", GARBAGE),
    "config with a number out of bounds": ("config", POISON),
    "input": ("input", GARBAGE),
    "metadata": ("metadata", GARBAGE),
}


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """No history tells of rows that are written behind the store's back, so none is checked here."""
    return tmp_path


@pytest.fixture
def spoil(durable_url: str, request: pytest.FixtureRequest) -> Spoil:
    if durable_url.startswith("sqlite"):

        def spoil(rollout_id: str, column: str, data: bytes) -> None:
            with closing(sqlite3.connect(durable_url.removeprefix("sqlite:///"), timeout=30)) as database:
                if column == "config":
                    database.execute("UPDATE rollouts SET config = ? WHERE rollout_id = ?", (data, rollout_id))
                else:
                    chosen = "seq = (SELECT seq FROM rollouts WHERE rollout_id = ?)"
                    database.execute(f"UPDATE inputs SET {column} = ? WHERE {chosen}", (data, rollout_id))
                database.commit()

    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        schema = durable_url.rpartition("=")[2]

        def spoil(rollout_id: str, column: str, data: bytes) -> None:
            value = f"'\\x{data.hex()}'::bytea"
            # What a store of today keeps beside the configuration, one that took the poison kept by it.
            lease = ", lease_seconds = 1e12" if data is POISON else ""
            server.sql(f"UPDATE {schema}.rollouts SET {column} = {value}{lease} WHERE rollout_id = '{rollout_id}'")

    return spoil


@pytest.mark.parametrize("damage", list(DAMAGE))
async def test_a_rollout_that_cannot_be_read_fails_when_it_is_claimed_and_the_others_are_claimed(
    durable_url: str, clock: FakeClock, spoil: Spoil, damage: str
):
    async with open_store(durable_url, clock=clock) as store:
        await store.enqueue_many_rollouts(
            [RolloutRequest(input=n, rollout_id=f"r{n}", tag="t", priority=-n) for n in range(4)]
        )
        for name in ("r0", "r2"):
            spoil(name, *DAMAGE[damage])
        assert (await store.query_rollouts()).total == 4
        first = await store.dequeue_rollout(worker_id="w")
        assert first is not None
        assert first.rollout_id == "r1"
        rest = await store.dequeue_many_rollouts(5, worker_id="w", tags=["t"])
        assert [one.rollout_id for one in rest] == ["r3"]
        assert await store.dequeue_rollout(worker_id="w") is None

        failed = await store.query_rollouts(status="failed")
        assert [one.rollout_id for one in failed] == ["r0", "r2"]
        for rollout in failed:
            assert rollout.failure is not None
            assert (rollout.failure.boundary, rollout.failure.kind) == (Boundary.WORKER, "UnreadableRollout")
            assert "cannot be read" in rollout.failure.message
        for claimed in (first, *rest):
            await finish(store, claimed)
        assert [one.rollout_id for one in (await store.finished_after()).items] == ["r0", "r2", "r1", "r3"]
        await check_invariants(store)


async def test_commands_read_a_store_with_rollouts_that_cannot_be_read(durable_url: str, spoil: Spoil):
    async with open_store(durable_url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=n, rollout_id=f"r{n}") for n in range(4)])
        spoil("r0", "input", GARBAGE)
        spoil("r1", "config", NEWER)
        claimed = await store.dequeue_rollout(worker_id="w")
        assert claimed is not None
        await finish(store, claimed)
        spoil("r2", "metadata", GARBAGE)
        spoil("r3", "config", GARBAGE)
    assert "2 failed with worker: UnreadableRollout" in run_outrider("status", "--store", durable_url).stdout
    assert len(run_outrider("export", "--store", durable_url).stdout.splitlines()) == 3
    for name in ("r0", "r2", "r3"):
        assert "cannot be read" in run_outrider("show", name, "--store", durable_url).stdout


async def test_a_running_rollout_whose_row_is_spoiled_ends_with_its_lease_and_keeps_nobody_waiting(
    durable_url: str, clock: FakeClock, spoil: Spoil
):
    async with open_store(durable_url, clock=clock) as store, open_store(durable_url, clock=clock) as other:
        await store.enqueue_many_rollouts([RolloutRequest(input=n, rollout_id=f"r{n}") for n in range(3)])
        claimed = await store.dequeue_many_rollouts(3, worker_id="w")
        spoil("r0", "config", NEWER)
        spoil("r1", "config", GARBAGE)
        ids = [one.attempt.attempt_id for one in claimed]
        assert await other.heartbeat("w", ids) == ()
        await clock.advance(RolloutConfig().unresponsive_seconds + 1)

        async def all_expired() -> bool:
            return (await store.statistics()).rollouts["preparing"] == 0

        await eventually(all_expired)
        found = {one.rollout_id: one for one in await store.query_rollouts()}
        assert [found[f"r{n}"].status for n in range(3)] == ["failed", "failed", "requeuing"]
        again = await store.dequeue_rollout(worker_id="w")
        assert again is not None
        assert again.rollout_id == "r2"


async def test_a_spoiled_rollout_can_be_ended_cancelled_and_enqueued_again_beside_others(
    durable_url: str, clock: FakeClock, spoil: Spoil
):
    async with open_store(durable_url, clock=clock) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=n, rollout_id=f"r{n}") for n in range(3)])
        one, two = await store.dequeue_many_rollouts(2, worker_id="w")
        for name in ("r0", "r1", "r2"):
            spoil(name, "config", NEWER)
            spoil(name, "input", GARBAGE)
    async with open_store(durable_url, clock=clock) as store:  # which remembers nothing
        await finish(store, one, reward=1.0, events=[log()])
        await finish(store, two, "failed")
        assert await store.cancel_rollouts(["r2"]) == ("r2",)
        found = await store.query_rollouts()
        assert [rollout.status for rollout in found] == ["succeeded", "failed", "cancelled"]
        assert (await store.query_events("r0")).total == 1
        assert [rollout.reward for rollout in found] == [1.0, None, None]


async def test_an_event_or_failure_that_cannot_be_read_is_shown_as_such(
    durable_url: str, clock: FakeClock, request: pytest.FixtureRequest
):
    async with open_store(durable_url, clock=clock) as store:
        await store.enqueue_rollout(1, rollout_id="r")
        claimed = await store.dequeue_rollout(worker_id="w")
        assert claimed is not None
        await finish(store, claimed, "succeeded", events=[log("good", n=1), log("bad", n=2)])
        commands = [
            "UPDATE {}events SET data = {} WHERE name = 'bad'",
            "UPDATE {}rollouts SET failure = {} WHERE rollout_id = 'r'",
        ]
        if durable_url.startswith("sqlite"):
            with closing(sqlite3.connect(durable_url.removeprefix("sqlite:///"))) as database:
                for command in commands:
                    database.execute(command.format("", f"x'{GARBAGE.hex()}'"))
                database.commit()
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            schema = durable_url.rpartition("=")[2]
            for command in commands:
                server.sql(command.format(f"{schema}.", f"'\\x{GARBAGE.hex()}'::bytea"))
        good, bad = await store.query_events("r")
        assert good.data == {"n": 1}
        assert "cannot be read" in str(bad.data["unreadable"])
        (rollout,) = await store.query_rollouts()
        assert rollout.failure is not None
        assert rollout.failure.kind == "UnreadableRollout"
        (attempt,) = await store.query_attempts("r")
        assert attempt.failure is not None
