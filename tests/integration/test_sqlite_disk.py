"""A SQLite store on a disk that is full, breaks or cannot be written: said clearly, nothing hangs, nothing is lost."""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from disks import fill, make_read_only, small_disk
from leaks import no_leaks
from machine_journal import owner_of
from outrider.core.errors import StoreDamaged, StoreError, StoreUnavailable
from outrider.core.event import Event, EventKind
from outrider.core.rollout import AttemptedRollout, RolloutRequest
from outrider.store import Store, open_store
from outrider.store.sqlite import wal
from outrider.testing import eventually
from processes import OUTRIDER, output_of, run_outrider
from promptly import within
from store_invariants import check_invariants

TESTS = str(Path(__file__).parent.parent)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 40 << 20) as place:
        yield place


def check_integrity(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def enqueue_until_refused(store: Store) -> tuple[list[str], str]:
    """Enqueue until the disk is full; what was acknowledged, and why no more was."""
    acknowledged: list[str] = []
    for number in range(200):
        requests = [RolloutRequest(input="x" * 2000, rollout_id=f"r{number}-{k}") for k in range(400)]
        try:
            await store.enqueue_many_rollouts(requests)
        except StoreUnavailable as exc:
            return acknowledged, str(exc)
        acknowledged += [request.rollout_id or "" for request in requests]
    raise AssertionError("the disk did not fill up")


async def test_a_full_disk_is_reported_and_the_store_goes_on_by_itself_when_there_is_room(disk: Path):
    url = f"sqlite:///{disk}/runs.db"
    async with no_leaks(), asyncio.timeout(60), open_store(url) as store:
        running = await store.start_rollout("running", worker_id="w")
        filler = disk / "filler"
        filler.write_bytes(bytes(8 << 20))
        acknowledged, reason = await enqueue_until_refused(store)
        fill(disk)
        assert f"the disk of {disk}/runs.db is full" in reason
        assert "make room" in reason
        assert "goes on by itself" in reason
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="is full"):
                await store.enqueue_rollout("x" * 500_000)
        assert (await store.query_rollouts(limit=1)).total == len(acknowledged) + 1

        filler.unlink()
        await store.enqueue_rollout("after", rollout_id="after")
        await store.update_attempt(running.rollout_id, running.attempt.attempt_id, status="succeeded")
    async with open_store(url) as store:
        found = {rollout.rollout_id for rollout in await store.query_rollouts()}
        assert found == {running.rollout_id, "after", *acknowledged}
        await check_invariants(store)
    check_integrity(disk / "runs.db")


async def test_a_store_on_a_disk_that_stays_full_can_be_closed_and_read(disk: Path):
    url = f"sqlite:///{disk}/runs.db"
    async with no_leaks(), asyncio.timeout(60):
        async with open_store(url) as store:
            acknowledged, _ = await enqueue_until_refused(store)
            fill(disk)
        async with open_store(url) as store:
            assert (await store.query_rollouts(limit=1)).total == len(acknowledged)


CRAMPED = """
import asyncio, json, resource, sys
from outrider.core.errors import StoreDamaged, StoreError, StoreUnavailable
from outrider.store import open_store

def allow(n_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))

async def main(url):
    acknowledged, refused = [], []
    async with open_store(url) as store:
        running = await store.start_rollout("running", worker_id="w")
        allow(2_000_000)
        for n in range(40):
            try:
                await store.enqueue_rollout("x" * 200_000, rollout_id=f"r{n}")
                acknowledged.append(f"r{n}")
            except StoreUnavailable as error:
                refused.append(str(error))
        assert (await store.get_rollout_by_id(running.rollout_id)).status == "preparing"
        allow(resource.RLIM_INFINITY)
        await store.enqueue_rollout("after", rollout_id="after")
        await store.update_attempt(running.rollout_id, running.attempt.attempt_id, status="succeeded")
    print(json.dumps([running.rollout_id, acknowledged, refused]))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_file_that_may_not_grow_is_an_error_and_the_store_stays_whole(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/runs.db"
    running, acknowledged, refused = json.loads(output_of(CRAMPED, url))
    assert acknowledged
    assert refused
    assert all("runs.db cannot be written" in reason or "is full" in reason for reason in refused)
    check_integrity(tmp_path / "runs.db")
    async with open_store(url) as store:
        found = {rollout.rollout_id for rollout in await store.query_rollouts()}
        assert found == {running, *acknowledged, "after"}
        assert (await store.statistics()).rollouts["succeeded"] == 1
        await check_invariants(store)


ON_A_BREAKING_DISK = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from disks import fail_every_sync
from outrider.core.errors import StoreDamaged
from outrider.core.event import Event, EventKind
from outrider.core.rollout import AttemptedRollout, RolloutRequest
from outrider.store import open_store

async def main(url):
    acknowledged, refused = [], []
    async with asyncio.timeout(40), open_store(url) as store:
        await store.enqueue_rollout("before", rollout_id="before")
        fail_every_sync()
        for n in range(300):
            try:
                await store.enqueue_rollout("x" * 100_000, rollout_id=f"r{n}")
                acknowledged.append(f"r{n}")
            except StoreDamaged as error:
                refused.append(str(error))
            if len(refused) == 3:
                break
        for write in (store.dequeue_rollout(worker_id="w"), store.heartbeat("w"), store.put_resources({})):
            try:
                await write
            except StoreDamaged as error:
                refused.append(str(error))
        assert await store.get_rollout_by_id("before") is not None
    print(json.dumps([acknowledged, refused]))

asyncio.run(main(*sys.argv[2:]))
"""


@pytest.mark.parametrize(("synchronous", "at_once"), [("full", True), ("normal", False)])
async def test_after_a_failed_fsync_nothing_more_is_written(tmp_path: Path, synchronous: str, at_once: bool):
    url = f"sqlite:///{tmp_path}/runs.db?synchronous={synchronous}"
    acknowledged, refused = json.loads(output_of(ON_A_BREAKING_DISK, TESTS, url))
    assert (acknowledged == []) is at_once
    assert len(refused) == 6, refused
    assert len(set(refused)) == 1
    assert "may not hold what was written last" in refused[0]
    assert "check the disk, then open the store anew" in refused[0]
    log = tmp_path / "runs.db-wal"
    assert log.stat().st_size > 0, "the log was copied after the disk had failed, and may be the only good copy"
    async with open_store(url) as store:  # the disk is well, in this process
        found = {rollout.rollout_id for rollout in await store.query_rollouts()}
        assert found >= {"before", *acknowledged}
        await store.enqueue_rollout("after")
    check_integrity(tmp_path / "runs.db")


async def test_a_database_that_turns_out_corrupt_is_not_written_any_more(tmp_path: Path):
    path = tmp_path / "runs.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.enqueue_many_rollouts([RolloutRequest(input="x" * 5000) for _ in range(300)])
    data = bytearray(path.read_bytes())
    kept = 80 * 4096  # the schema, with a first page for each table and index
    data[kept:] = b"\xff" * len(data[kept:])
    path.write_bytes(data)
    async with no_leaks(), asyncio.timeout(20), open_store(f"sqlite:///{path}") as store:
        with pytest.raises(StoreDamaged, match="malformed"):
            await store.query_rollouts()
        with pytest.raises(StoreDamaged, match="nothing more is written"):
            await store.put_resources({})
    assert path.read_bytes() == data


AGENT = """
import asyncio, pathlib

async def break_the_disk(task, ctx):
    import sys
    sys.path.insert(0, task)
    from disks import fail_every_sync
    fail_every_sync()
    return 1.0

async def break_one_disk(task, ctx):
    import os
    try:
        pathlib.Path("broken").touch(exist_ok=False)
    except FileExistsError:
        await asyncio.sleep(0.2)
        return 1.0
    return await break_the_disk(os.environ["TESTS"], ctx)

async def dies_on_go(task, ctx):
    import os
    await wait_for_go("go", ctx)
    os._exit(9)

async def wait_for_go_file(task, ctx):
    pathlib.Path("began-" + ctx.rollout.rollout_id.replace("/", "-")).touch()
    return await wait_for_go("go", ctx)

async def wait_for_go(task, ctx):
    while not pathlib.Path(task).exists():
        await asyncio.sleep(0.02)
    return 1.0
"""


def told(process: subprocess.Popen[str], words: str) -> None:
    """Read what a program says until it says this."""
    assert process.stdout is not None
    for text in process.stdout:
        if words in text:
            return
    raise AssertionError(f"ended with {process.wait()} and never said {words!r}")


@contextmanager
def working(url: str, folder: Path, agent: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`outrider work` until all is done, with the agents of `folder`."""
    (folder / "disk_agents.py").write_text(AGENT)
    command = [*OUTRIDER, "work", "--store", url, "--agent", f"disk_agents:{agent}", "--until-done", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("kind", [[], ["--tasks"]], ids=["processes", "tasks"])
async def test_workers_wait_for_room_on_a_full_disk_and_lose_no_finished_work(
    disk: Path, tmp_path: Path, kind: list[str]
):
    url, go = f"sqlite:///{disk}/runs.db", tmp_path / "go"
    async with asyncio.timeout(60), open_store(url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=str(go)) for _ in range(6)])
        with working(url, tmp_path, "wait_for_go", "--workers", "2", "--heartbeat-interval", "0.5", *kind) as process:

            async def both_work() -> bool:
                return (await store.statistics()).rollouts["running"] == 2

            await eventually(both_work)
            filler = fill(disk)
            go.touch()
            await asyncio.to_thread(told, process, "the store is away since")
            refused = run_outrider("enqueue", "--test", "5000", "--store", url, code=1)
            assert f"outrider: the disk of {disk}/runs.db is full; nothing was changed" in refused.stderr
            assert process.poll() is None
            filler.unlink()
            await asyncio.to_thread(told, process, "the store is back after")
            assert await asyncio.to_thread(process.wait, 30) == 0
        rollouts = await store.query_rollouts()
        assert [(rollout.status, rollout.reward, rollout.n_attempts) for rollout in rollouts] == [
            ("succeeded", 1.0, 1)
        ] * 6
        await check_invariants(store)


SUMS = tuple(json.dumps({"id": f"t{n}", "question": f"What is {n} + 1?", "answer": f"{n + 1}"}) for n in range(4))


@pytest.mark.parametrize("where", ["with its store", "alone"])
async def test_a_run_waits_for_room_for_its_results_and_counts_each_once(disk: Path, tmp_path: Path, where: str):
    (tmp_path / "disk_agents.py").write_text(AGENT)
    (tmp_path / "sums.jsonl").write_text("\n".join(SUMS))
    go = tmp_path / "go"
    command = [*OUTRIDER, "run", "--mode", "math", "--data", "sums.jsonl", "--model", "builtin:solver"]
    command += ["--agent", "disk_agents:wait_for_go_file", "--output-dir", str(disk), "--name", "full", "--json"]
    url = f"sqlite:///{disk}/full/store.db"
    if where == "alone":
        url = f"sqlite:///{tmp_path}/runs.db"
        command += ["--store", url]

    async def all_began() -> bool:
        return len(list(tmp_path.glob("began-*"))) == len(SUMS)

    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            await eventually(all_began, within_seconds=30)
            filler = fill(disk)
            go.touch()
            assert process.stderr is not None
            said = ""
            async with asyncio.timeout(30):
                while "the store is away since" not in said:
                    said += await asyncio.to_thread(process.stderr.readline)
            assert process.poll() is None
            filler.unlink()
            out, rest = await asyncio.to_thread(process.communicate, timeout=40)
        finally:
            process.kill()
    assert process.returncode == 0, said + rest
    assert (said + rest).count("the store is away since") == 1
    assert "the store is back after" in rest
    outcome = json.loads(out)
    assert outcome["complete"]
    assert outcome["summary"]["total"]["statuses"] == {"succeeded": 4}
    lines = (disk / "full" / "results.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["task_id"] for line in lines) == ["t0", "t1", "t2", "t3"]


FAILING_SYNC = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from disks import fail_every_sync
from outrider.core.errors import OutriderError
from outrider.evaluate.results import ResultLine
from outrider.evaluate.results_file import ResultsFile

with ResultsFile(Path(sys.argv[2]), sync=True) as results:
    fail_every_sync()
    try:
        results.append([ResultLine(rollout_id="a", task_id="t", status="succeeded")])
    except OutriderError as error:
        print(type(error).__name__, error)
"""


def test_results_that_cannot_be_synced_are_an_error_that_says_what_to_do(tmp_path: Path):
    said = output_of(FAILING_SYNC, TESTS, str(tmp_path / "results.jsonl"))
    assert said.startswith("OutriderError cannot write")
    assert "Input/output error; check the disk, then --resume" in said


async def test_workers_stop_and_say_why_when_the_disk_has_lost_data(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/runs.db?durability=full"
    async with asyncio.timeout(60), open_store(url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=TESTS) for _ in range(3)])
        with working(url, tmp_path, "break_the_disk", "--workers", "1") as process:
            await asyncio.to_thread(told, process, "Stopped: the disk failed under")
            assert await asyncio.to_thread(process.wait, 30) == 3


@pytest.mark.parametrize("command", ["work", "run"])
async def test_all_workers_stop_when_the_disk_has_failed_under_one(tmp_path: Path, command: str):
    (tmp_path / "disk_agents.py").write_text(AGENT)
    url = f"sqlite:///{tmp_path}/runs.db?durability=full"
    arguments = ["--store", url, "--workers", "2", "--agent", "disk_agents:break_one_disk"]
    if command == "work":
        async with open_store(url) as store:
            await store.enqueue_many_rollouts([RolloutRequest(input=n) for n in range(200)])
        arguments.append("--until-done")
    else:
        arguments += ["--mode", "FrozenLake", "--model", "builtin:random", "--limit", "200", "--num-rollouts", "2"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*OUTRIDER, command, *arguments],
        cwd=tmp_path,
        env={**os.environ, "TESTS": TESTS},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "the disk failed under" in done.stdout + done.stderr
    async with open_store(url) as store:
        statistics = await store.statistics()
        assert statistics.rollouts["queuing"] > 100, "they went on claiming"
        assert statistics.rollouts["running"] + statistics.rollouts["preparing"] <= 1, "only that of the broken worker"


BROKEN_SUPERVISOR = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, os.environ["TESTS"])
from disks import fail_every_sync
from outrider.cli import main

def break_when_told():
    while not Path("broken").exists():
        time.sleep(0.02)
    fail_every_sync()
    Path("go").touch()

threading.Thread(target=break_when_told, daemon=True).start()
main()
"""


async def test_a_command_stops_when_the_disk_has_failed_under_its_own_store(tmp_path: Path):
    (tmp_path / "disk_agents.py").write_text(AGENT)
    url = f"sqlite:///{tmp_path}/runs.db?durability=full"
    arguments = ["work", "--store", url, "--workers", "1", "--agent", "disk_agents:dies_on_go"]
    async with open_store(url) as store:
        rollout = await store.enqueue_rollout("dies")
        with subprocess.Popen(
            [sys.executable, "-c", BROKEN_SUPERVISOR, *arguments],
            cwd=tmp_path,
            env={**os.environ, "TESTS": TESTS},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:

                async def runs() -> bool:
                    return (await store.statistics()).rollouts["running"] == 1

                await eventually(runs, within_seconds=30)
                (tmp_path / "broken").touch()
                said, _ = await asyncio.to_thread(process.communicate, timeout=30)
            finally:
                process.kill()
        assert process.returncode == 3, said
        assert "Stopped: the disk failed under" in said
        assert said.count("Starting Worker-0") == 1, "another worker was started"
        assert len(await store.query_attempts(rollout.rollout_id)) == 1, "it was claimed again"


async def appended(store: Store, claimed: AttemptedRollout, n_events: int, n_bytes: int) -> AsyncIterator[None]:
    """Append large events, one after the other."""
    for _ in range(n_events):
        event = Event(kind=EventKind.LOG, at=claimed.enqueued_at, data={"text": "x" * n_bytes})
        await store.append_events(claimed.rollout_id, claimed.attempt.attempt_id, [event])
        yield


async def test_the_write_ahead_log_stays_short_however_large_events_are(tmp_path: Path):
    log, n_bytes = tmp_path / "runs.db-wal", 60_000
    async with open_store(f"sqlite:///{tmp_path}/runs.db") as store, open_store(store.url) as reader:
        claimed = await store.start_rollout("task", worker_id="w")
        longest = 0
        async for _ in appended(store, claimed, 700, n_bytes):
            longest = max(longest, log.stat().st_size)
            await reader.statistics()
        assert wal.LIMIT_BYTES <= longest < wal.LIMIT_BYTES + 1_000_000
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("runs.db", "runs.db-wal"):  # as a killed process would leave it
            shutil.copy(tmp_path / name, copy)
        with within(2):
            async with open_store(f"sqlite:///{copy}/runs.db") as copied:
                assert (await copied.query_events(claimed.rollout_id, limit=0)).total == 700


async def test_a_log_that_a_reader_has_kept_from_starting_over_becomes_short_once_it_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wal, "LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr(wal, "STEP_BYTES", 1 << 18)
    monkeypatch.setattr(wal, "FAR_BYTES", 4 << 20)
    monkeypatch.setattr(wal, "KEPT_BYTES", 1 << 16)
    path, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    async with open_store(f"sqlite:///{path}") as store:
        claimed = await store.start_rollout("task", worker_id="w")
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM rollouts").fetchone()
            with within(20):  # each try waits a tenth of a second for the reader
                async for _ in appended(store, claimed, 100, 60_000):
                    pass
            assert log.stat().st_size > wal.FAR_BYTES
        async for _ in appended(store, claimed, 20, 60_000):
            pass
        assert log.stat().st_size < 2 * wal.LIMIT_BYTES


async def test_without_a_folder_for_bells_another_process_is_noticed_within_a_second(tmp_path: Path):
    (tmp_path / "runs.db-bells").write_text("in its place")
    url = f"sqlite:///{tmp_path}/runs.db"
    async with open_store(url) as one, open_store(url) as other:
        waiting = asyncio.create_task(one.dequeue_rollout(worker_id="w", wait=60))
        await asyncio.sleep(0)
        await other.enqueue_rollout("new")
        claimed = await asyncio.wait_for(waiting, 20)
        assert claimed is not None
        assert claimed.input == "new"


async def fill_store(store: Store) -> None:
    """One rollout has ended, one is running, and there is a machine."""
    await store.enqueue_many_rollouts([RolloutRequest(input=n, rollout_id=f"r{n}") for n in range(2)])
    done, _ = await store.dequeue_many_rollouts(2, worker_id="w")
    await store.update_attempt(done.rollout_id, done.attempt.attempt_id, status="succeeded", reward=1.0)
    await (await owner_of(store, "desk")).go("d1", "creating", "resetting", "ready")


@pytest.fixture
async def kept(tmp_path: Path) -> Path:
    """A folder with a store and nothing else."""
    folder = tmp_path / "kept"
    folder.mkdir()
    async with open_store(f"sqlite:///{folder}/runs.db") as store:
        await fill_store(store)
    return folder


def check_readable(path: Path) -> None:
    url = f"sqlite:///{path}"
    status = json.loads(run_outrider("status", "--json", "--store", url).stdout)
    assert (status["rollouts"]["succeeded"], status["rollouts"]["preparing"]) == (1, 1)
    assert "r0" in run_outrider("show", "r0", "--store", url).stdout
    assert json.loads(run_outrider("export", "--store", url).stdout)["rollout"]["reward"] == 1.0
    assert "r1" in run_outrider("view", url).stdout
    assert "r0" in run_outrider("view", url, "r0").stdout
    (pool,) = json.loads(run_outrider("pool", "ls", "--json", "--store", url).stdout)["pools"]
    assert [machine["machine_id"] for machine in pool["machines"]] == ["d1"]


async def check_only_readable(path: Path) -> None:
    check_readable(path)
    refused = run_outrider("cancel", "r1", "--store", f"sqlite:///{path}", code=2)
    assert f"cannot write the store in {path}; check its rights" in refused.stderr
    async with open_store(f"sqlite:///{path}", read_only=True) as store:
        with pytest.raises(StoreError, match="opened for reading only"):
            await store.cancel_rollouts(["r1"])
        assert await store.finished_after(wait=0.01)


async def test_a_store_on_a_disk_that_cannot_be_written_can_be_read(disk: Path, kept: Path):
    shutil.copy(kept / "runs.db", disk)
    make_read_only(disk)
    await check_only_readable(disk / "runs.db")


async def test_a_store_whose_writer_was_killed_can_be_read_where_nothing_can_be_written(disk: Path, tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        await fill_store(store)
        for name in ("runs.db", "runs.db-wal", "runs.db-shm"):
            shutil.copy(tmp_path / name, disk)
    (disk / "without").mkdir()
    for name in ("runs.db", "runs.db-wal"):
        shutil.copy(disk / name, disk / "without")
    make_read_only(disk)
    await check_only_readable(disk / "runs.db")
    refused = run_outrider("status", "--store", f"sqlite:///{disk}/without/runs.db", code=2)
    assert "copy runs.db and runs.db-wal to" in refused.stderr


async def test_a_store_on_a_full_disk_can_be_read(disk: Path, kept: Path):
    shutil.copy(kept / "runs.db", disk)
    fill(disk)
    check_readable(disk / "runs.db")


async def test_an_old_store_that_cannot_be_written_is_refused_with_what_to_do(disk: Path, kept: Path):
    with closing(sqlite3.connect(kept / "runs.db")) as database:
        database.execute("PRAGMA user_version = 1")
    shutil.copy(kept / "runs.db", disk)
    make_read_only(disk)
    with pytest.raises(StoreUnavailable, match=r"has schema 1, .* copy it to a folder that can be written"):
        await open_store(f"sqlite:///{disk}/runs.db", read_only=True)


async def test_reading_takes_no_lease_away(kept: Path):
    with closing(sqlite3.connect(kept / "runs.db")) as database:
        database.execute("UPDATE rollouts SET expires_at = 1 WHERE expires_at IS NOT NULL")
        database.commit()
    check_readable(kept / "runs.db")
    assert [file.name for file in kept.iterdir()] == ["runs.db"]
