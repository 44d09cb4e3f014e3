"""How many connections processes take, how they share them, and what they do when the server has none to spare."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from outrider.cli.machine_settings import MachineSettings
from outrider.cli.machines import Demand, n_pools_of
from outrider.cluster import Cluster
from outrider.core.errors import InvalidInput
from outrider.core.rollout import RolloutRequest
from outrider.store import StoreUrl, open_store
from outrider.store.bell import Topic
from outrider.store.opening import open_when_there
from outrider.store.postgres.address import address_of
from outrider.store.postgres.room import url_with_room
from outrider.testing import eventually
from postgres_load import (
    check_done_once,
    finish_all,
    ids_of,
    n_connections,
    n_listeners,
    no_connections_left,
    requests,
    schema_of,
)
from postgres_server import PostgresServer, started_server
from processes import OUTRIDER, line, program, run_outrider

N_CONNECTIONS = 16
N_RESERVED = 3

WAITER = """
import asyncio, sys
from outrider.store import StoreUrl, open_store
from outrider.store.bell import Topic
from outrider.store.opening import open_when_there
from outrider.store.postgres.address import address_of
from outrider.store.postgres.room import url_with_room

async def main(url, name):
    async with open_store(url) as store:
        store._bell.net_seconds = 60.0
        print("ready", flush=True)
        while True:
            claimed = await store.dequeue_rollout(worker_id=name, wait=60, tags=[name])
            if claimed is not None:
                print(claimed.input, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
"""Waits for rollouts, woken by rings alone, and prints what it gets."""


@pytest.fixture(scope="module")
def small_server() -> Iterator[PostgresServer]:
    """A server with few connections, and a user for whom none are reserved."""
    with started_server(max_connections=str(N_CONNECTIONS)) as server:
        make_plain_user(server)
        yield server


def make_plain_user(server: PostgresServer) -> None:
    server.sql("CREATE ROLE plain LOGIN; GRANT CREATE ON DATABASE postgres TO plain")


def plain_url(server: PostgresServer) -> str:
    return server.new_url().replace("postgres@", "plain@", 1)


@asynccontextmanager
async def all_taken(server: PostgresServer) -> AsyncIterator[None]:
    """Somebody else has all connections that a plain user can have."""
    async with AsyncExitStack() as stack:
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                link = await asyncpg.connect(server.url.replace("postgres@", "plain@", 1))
                stack.push_async_callback(link.close)
        yield


@pytest.mark.parametrize("allowed", [2, 1])
async def test_a_process_takes_no_more_connections_than_allowed_whatever_it_does_at_once(
    postgres_server: PostgresServer, postgres_url: str, allowed: int
):
    n = 120
    async with (
        no_connections_left(postgres_server, postgres_url),
        open_store(f"{postgres_url}&connections={allowed}") as store,
    ):
        await store.enqueue_many_rollouts(requests(n))
        most = 0
        working = asyncio.gather(*(finish_all(store, f"w{k}", n_events=1) for k in range(16)))
        while not working.done():
            reads = [store.statistics(), store.query_rollouts(limit=5), store.query_workers(), store.finished_after(0)]
            await asyncio.gather(*reads, store.heartbeat("w0", []), store.put_resources({"a": 1}))
            most = max(most, await n_connections(postgres_server, postgres_url))
        assert most == allowed
        await check_done_once(store, await working, n, n_events=1)


async def test_a_process_needs_no_second_connection_as_long_as_its_steps_are_quick(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outrider.store.postgres.connections.PATIENCE_SECONDS", 60.0)  # this machine may be slow
    async with no_connections_left(postgres_server, postgres_url), open_store(postgres_url) as store:
        await store.enqueue_many_rollouts(requests(40))
        working = [finish_all(store, f"w{k}", n_events=1) for k in range(8)]
        await asyncio.gather(*working, *[store.heartbeat(f"w{k}", []) for k in range(8)])
        assert await n_connections(postgres_server, postgres_url) == 1
        await asyncio.gather(store.statistics(), store.heartbeat("w0", []))


async def test_a_step_that_waits_for_a_slow_one_gets_a_second_connection(
    postgres_server: PostgresServer, postgres_url: str
):
    async with asyncio.timeout(60), open_store(postgres_url) as store:
        rollout = await store.start_rollout("task", worker_id="w0")
        blocker = await asyncpg.connect(postgres_server.url)
        try:
            async with blocker.transaction():
                await blocker.execute(f"LOCK TABLE {schema_of(postgres_url)}.feed IN EXCLUSIVE MODE")
                ending = asyncio.create_task(store.update_attempt(*ids_of(rollout), status="succeeded"))
                assert await store.heartbeat("w0", [rollout.attempt.attempt_id]) == ()
                assert not ending.done()
            assert (await ending).status == "succeeded"
        finally:
            await blocker.close()


async def test_a_process_that_never_waits_for_long_does_not_listen(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with open_store(postgres_url) as store:
        monkeypatch.setattr("outrider.store.postgres.bell.SETTLE_SECONDS", 3600.0)
        for _ in range(3):
            await store.dequeue_rollout(worker_id="w", wait=0.01)
            assert (store._bell._task, store._bell._settling) == (None, None)
        monkeypatch.undo()
        waiting = asyncio.create_task(store.dequeue_rollout(worker_id="w", wait=60))
        await eventually(lambda: n_listeners(postgres_server, postgres_url), within_seconds=60)
        await store.enqueue_rollout("task")
        assert await waiting is not None


def lock_holder(url: str) -> int | None:
    """The process that listens for this machine, by the kernel's list of locks."""
    number = (folder_of(url) / "listener").stat().st_ino
    for entry in Path("/proc/locks").read_text().splitlines():
        fields = entry.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{number}"):
            return int(fields[4])
    return None


def folder_of(url: str) -> Path:
    return address_of(StoreUrl(url)).folder_on_this_machine


async def test_processes_of_one_machine_share_one_listener_and_another_takes_over_when_it_is_killed(
    postgres_server: PostgresServer, postgres_url: str
):
    async with asyncio.timeout(120), open_store(postgres_url) as store:
        with ExitStack() as stack:
            waiters = {f"w{k}": stack.enter_context(program(WAITER, postgres_url, f"w{k}")) for k in range(3)}

            async def all_wait() -> bool:
                return len(list(folder_of(postgres_url).glob("queue-*"))) == len(waiters)

            async def another_listens() -> bool:
                return lock_holder(postgres_url) not in (None, listening)

            async def wake_all(text: str) -> None:
                """Each waits, and is woken by a ring for what only it may have."""
                await eventually(all_wait, within_seconds=60)
                await eventually(lambda: n_listeners(postgres_server, postgres_url), within_seconds=60)
                for name, waiter in waiters.items():
                    await store.enqueue_rollout(text, tag=name)
                    assert await asyncio.to_thread(line, waiter) == text
                assert await n_listeners(postgres_server, postgres_url) == 1

            for waiter in waiters.values():
                assert await asyncio.to_thread(line, waiter) == "ready"
            await wake_all("first")
            await wake_all("again")
            listening = lock_holder(postgres_url)
            (name,) = [name for name, waiter in waiters.items() if waiter.pid == listening]
            waiters.pop(name).kill()
            await eventually(another_listens, within_seconds=60)
            store._bell.ring_others([Topic.QUEUE])  # takes the pipe of the dead away
            await wake_all("after a death")


async def test_a_forked_process_does_not_listen_on_behalf_of_one_that_is_gone(
    postgres_server: PostgresServer, postgres_url: str
):
    source = WAITER.replace(
        'print("ready", flush=True)',
        """
        asyncio.get_running_loop().call_later(1.0, lambda: print("ready", flush=True))
        asyncio.get_running_loop().call_later(0.9, lambda: os.fork() or time.sleep(100))
        """.strip(),
    ).replace("import asyncio, sys", "import asyncio, os, sys, time")

    async def nobody_listens() -> bool:
        return lock_holder(postgres_url) is None

    with program(source, postgres_url, "w") as forking:
        assert await asyncio.to_thread(line, forking) == "ready"
        (child,) = Path(f"/proc/{forking.pid}/task/{forking.pid}/children").read_text().split()
        try:
            assert lock_holder(postgres_url) == forking.pid
            forking.kill()
            await eventually(nobody_listens, within_seconds=20)
            assert Path(f"/proc/{child}").exists()
        finally:
            os.kill(int(child), signal.SIGKILL)


async def test_more_workers_than_the_server_has_connections_for_are_refused_before_any_is_started(
    small_server: PostgresServer,
):
    url = plain_url(small_server)
    refused = run_outrider("work", "--store", url, "--workers", "40", code=2)
    assert "40 worker processes need 41 connections" in refused.stderr
    assert f"max_connections is {N_CONNECTIONS}, {N_RESERVED} of them reserved" in refused.stderr
    assert "Starting Worker-0" not in refused.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--mode", "FrozenLake", "--limit", "60", "--model", "builtin:solver", "--workers", "40"],
        ["rollout", "-c", "frozen_lake.yaml", "--steps", "1", "--workers", "40"],
    ],
    ids=lambda arguments: arguments[0],
)
async def test_runs_with_too_many_workers_are_refused_before_anything_is_made(
    small_server: PostgresServer, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("frozen_lake.yaml").write_text("model: builtin:solver\ntrain_env_manager: {tags: [FrozenLake]}\n")
    url = plain_url(small_server)
    refused = run_outrider(*arguments, "--store", url, code=2)
    assert "40 worker processes need 41 connections" in refused.stderr
    assert [path.name for path in Path().iterdir()] == ["frozen_lake.yaml"]
    async with open_store(url) as store:
        assert (await store.query_rollouts(limit=0)).total == 0


async def test_the_pools_on_the_nodes_of_a_cluster_count_too(small_server: PostgresServer):
    url = StoreUrl(plain_url(small_server))
    free = N_CONNECTIONS - N_RESERVED
    assert await url_with_room(url, 2, n_pools=2, n_machines=2) == (url, "")
    fewer, note = await url_with_room(url, 5, n_pools=2, n_machines=2)
    assert fewer.reveal() == f"{url.reveal()}&connections=1"
    assert "each of the 5 worker processes and 2 with a pool of machines takes one instead of 2" in note
    needed = "10 worker processes and 2 with a pool of machines need 14 connections"
    with pytest.raises(InvalidInput, match=rf"{needed}, .* has {free} to spare .*: start 9, or raise it"):
        await url_with_room(url, 10, n_pools=2, n_machines=2)


def demand(**settings: Any) -> Demand:
    """That of a run on machines of its own."""
    return Demand(
        settings=MachineSettings(**settings),
        environments=("OSWorld",),
        n_at_once=100,
        n_workers=8,
        n_slots=4,
        n_own=4,
        hold_seconds=60.0,
        run="run",
        place=Path(),
    )


def test_there_is_a_pool_for_each_node_if_workers_share_machines():
    shared = demand(use_vm_pool=True, num_vms=4)
    with Cluster(local=True, num_nodes=2) as cluster:
        assert n_pools_of(shared, cluster) == 2
        assert n_pools_of(demand(use_vm_pool=True, num_vms=1), cluster) == 1
        assert n_pools_of(demand(), cluster) == 0, "each worker has its own, in its process"
        assert n_pools_of(None, cluster) == 0
    assert n_pools_of(shared, None) == 0, "it is in the process of the command"


async def test_what_limits_connections_most_decides_how_many_each_process_takes(small_server: PostgresServer):
    url = StoreUrl(plain_url(small_server))
    free = N_CONNECTIONS - N_RESERVED
    assert await url_with_room(url, 5) == (url, "")
    fewer, note = await url_with_room(url, free - 1)
    assert fewer.reveal() == f"{url.reveal()}&connections=1"
    assert (
        f"{free} connections to spare (max_connections is {N_CONNECTIONS}, {N_RESERVED} of them reserved, 0 in use)"
        in note
    )
    assert f"each of the {free - 1} worker processes takes one instead of 2" in note
    with pytest.raises(InvalidInput, match=rf"start {free - 2}, or raise it to {N_CONNECTIONS + 1} or more"):
        await url_with_room(url, free - 1, n_machines=2)
    for limited in ("ROLE plain", "DATABASE postgres"):
        small_server.sql(f"ALTER {limited} CONNECTION LIMIT 5")
        try:
            async with open_store(url):
                with pytest.raises(InvalidInput, match=f"LIMIT of {limited.lower()} is 5, 1 in use.: start 3, or"):
                    await url_with_room(url, 4)
        finally:
            small_server.sql(f"ALTER {limited} CONNECTION LIMIT -1")


async def test_a_process_that_finds_no_connection_free_says_so_and_waits(
    small_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outrider.store.postgres.links.RETRY_SECONDS", 0.1)
    url, said, heard = plain_url(small_server), list[str](), asyncio.Event()

    def say(what: str) -> None:
        said.append(what)
        heard.set()

    async with open_store(url):
        pass
    async with asyncio.timeout(60), all_taken(small_server):
        opening = asyncio.create_task(open_when_there(url, say))
        await heard.wait()
        assert not opening.done()
    async with asyncio.timeout(60), await opening as store:
        await store.enqueue_rollout("task")
    (what,) = said
    assert "waits for the store" in what
    assert "it has no connection to spare: raise its max_connections" in what


async def test_a_process_that_is_refused_a_second_connection_goes_on_with_one(small_server: PostgresServer):
    n = 60
    async with asyncio.timeout(60), open_store(plain_url(small_server)) as store, all_taken(small_server):
        await store.enqueue_many_rollouts(requests(n))
        working = asyncio.gather(*(finish_all(store, f"w{k}", n_events=1) for k in range(8)))
        while not working.done():
            await asyncio.gather(store.statistics(), store.query_rollouts(limit=5), store.query_workers())
        await check_done_once(store, await working, n, n_events=1)


async def test_ten_workers_finish_a_queue_on_sixteen_connections_and_none_dies(small_server: PostgresServer):
    await work_off(plain_url(small_server), 10)


@pytest.mark.soak
async def test_sixty_four_workers_finish_a_queue_on_a_server_as_it_comes_and_none_dies():
    with started_server(max_connections="100") as server:
        make_plain_user(server)
        await work_off(plain_url(server), 64)


async def work_off(url: str, n_workers: int) -> None:
    n = 4 * n_workers
    async with open_store(url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input={"seconds": 0.2}) for _ in range(n)])
    command = [*OUTRIDER, "work", "--store", url, "--workers", str(n_workers), "--until-done"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert f"each of the {n_workers} worker processes takes one instead of 2" in done.stdout
    assert "💀" not in done.stdout
    async with open_store(url) as store:
        rollouts = await store.query_rollouts()
    assert [(one.status, one.n_attempts) for one in rollouts] == [("succeeded", 1)] * n


async def test_a_url_that_allows_no_or_too_many_connections_is_refused(postgres_url: str):
    for value in ("0", "3", "many", ""):
        with pytest.raises(InvalidInput, match="a process takes 1 or 2 connections"):
            await open_store(f"{postgres_url}&connections={value}")
