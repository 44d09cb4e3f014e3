"""A trainer with its scheduler, and workers, killed at random: no group is lost, trained on twice, or too stale."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fault_environments import N_STEPS
from history_checking import history_in
from outrider import Store, open_store
from outrider.core.event import EventKind
from outrider.core.ledger import GroupEntry, GroupState
from outrider.core.published import published_in
from outrider.core.status import LIVE, QUEUED, RolloutStatus
from outrider.testing import eventually
from outrider.testing.history import check_store
from outrider.train.scheduler import RolloutScheduler
from postgres_server import PostgresServer
from soaking import note_soak, time_limit, until
from walking import BATCH_GROUPS, CONFIG, GROUP_SIZE, LEDGER, MAX_STALENESS

HERE = Path(__file__).parent
N_HARMS = 6
SOAK_SECONDS = 100.0
N_BATCHES_AFTER = 4
"""How many batches the trainer takes in peace at the end."""

FINISH_SECONDS = 60.0
NEVER = 1_000_000


@pytest.fixture(params=["sqlite", "postgres"])
def new_url(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """The URL of a new store, for a run in that folder."""
    if request.param == "sqlite":
        return lambda folder: f"sqlite:///{folder / 'runs.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return lambda _: server.new_url()


class Run:
    """The processes of a training run, and the harm done to them."""

    def __init__(self, store_url: str, folder: Path) -> None:
        self.journal = folder / "journal"
        self.log = folder / "log"
        self.harm: Counter[str] = Counter()
        self._url = store_url
        self._processes: dict[str, subprocess.Popen[str]] = {}

    @contextmanager
    def going(self) -> Iterator["Run"]:
        try:
            self.start_workers()
            yield self
        finally:
            self.kill("trainer", "workers")

    def start_workers(self) -> None:
        self._start("workers", HERE.parent / "walking.py", self._url)

    def start_trainer(self, n_batches: int = NEVER) -> None:
        self._start("trainer", HERE / "training_program.py", self._url, str(self.journal), str(n_batches))

    def start_freezing_trainer(self) -> subprocess.Popen[str]:
        return self._start("trainer", HERE / "training_program.py", "freeze", self._url, str(self.journal))

    def kill(self, *names: str) -> None:
        """SIGKILL: the trainer, or the supervisor of the workers with all of them, all at one moment."""
        pids = [pid for name in names if name in self._processes for pid in self._pids(name)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in names:
            if name in self._processes:
                with self._processes.pop(name) as process:
                    process.kill()

    def kill_one_worker(self, rng: random.Random) -> bool:
        workers = self._pids("workers")[:-1]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
        return bool(workers)

    def finish(self, n_batches: int) -> None:
        self.kill("trainer")
        self.start_trainer(n_batches)
        try:
            code = self._processes["trainer"].wait(timeout=FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the trainer does not come to its end: {self.log.read_text()[-3000:]}")
        assert code == 0, self.log.read_text()[-3000:]

    def lines(self) -> list[dict[str, Any]]:
        """The journal: each line is whole, since one write made it."""
        return [json.loads(line) for line in self.journal.read_text().splitlines()] if self.journal.exists() else []

    def check_alive(self) -> None:
        for name, process in self._processes.items():
            assert process.poll() is None, f"the {name} ended by themselves: {self.log.read_text()[-3000:]}"

    def _start(self, name: str, *command: Path | str) -> subprocess.Popen[str]:
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(HERE.parent), str(HERE)])
        with self.log.open("a") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if name == "trainer" else log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                text=True,
            )
        return self._processes[name]

    def _pids(self, name: str) -> list[int]:
        """The process and its children, itself last."""
        pid = self._processes[name].pid
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return [*map(int, children), pid]
        return [pid]


def do_harm(run: Run, rng: random.Random) -> None:
    """One of the processes, some or all of them are gone; whoever is gone is started again."""
    choice = rng.random()
    if choice < 0.45:
        run.kill("trainer")
        run.start_trainer()
        run.harm["trainer"] += 1
    elif choice < 0.75:
        run.harm["worker"] += run.kill_one_worker(rng)
    else:
        run.kill("trainer", "workers")
        run.start_workers()
        run.start_trainer()
        run.harm["all"] += 1


def wait_for_line(run: Run, seconds: float = 40.0) -> None:
    """Until the trainer has noted another batch: it has not published then."""
    n_lines, deadline = len(run.lines()), time.monotonic() + seconds
    while len(run.lines()) == n_lines:
        run.check_alive()
        assert time.monotonic() < deadline, f"no batch any more: {run.log.read_text()[-3000:]}"
        time.sleep(0.005)


async def check_training(store_url: str, folder: Path, history: Path, *, seed: int, n_harms: int) -> None:
    rng = random.Random(seed)
    with Run(store_url, folder).going() as run:
        run.start_trainer()
        wait_for_line(run)
        while run.harm.total() < n_harms:
            if rng.random() < 0.7:  # otherwise whoever was started may not be ready yet
                wait_for_line(run)
            time.sleep(rng.uniform(0.0, 0.4))
            do_harm(run, rng)
        wait_for_line(run)
        run.kill("trainer")
        run.start_trainer()
        wait_for_line(run)
        n_batches = 1 + max(line["number"] for line in run.lines()) + N_BATCHES_AFTER
        run.finish(n_batches)
        print(f"seed {seed}:", dict(run.harm), n_batches, "batches,", len(run.lines()), "lines")

        async with open_store(store_url) as store:
            entries = list(await store.query_groups(LEDGER))
            check_journal(run.lines(), entries, n_batches)
            check_ledger(entries, n_batches)
            await check_trajectories(store, entries)
            await check_nothing_runs(store)
            await check_accounts(store)
            n_calls = await check_store(store, history, max_staleness=MAX_STALENESS)
    note_soak("trainers killed", deaths=run.harm.total(), batches=n_batches, calls_checked=n_calls)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("new_url", "seed"),
    [("sqlite", 1), pytest.param("postgres", 2, marks=pytest.mark.soak)],
    indirect=["new_url"],
)
async def test_no_group_is_lost_or_trained_on_twice_whoever_is_killed(
    new_url: Callable[[Path], str], tmp_path: Path, history: Path, seed: int
):
    await check_training(new_url(tmp_path), tmp_path, history, seed=seed, n_harms=N_HARMS)


@pytest.mark.soak
@pytest.mark.timeout(time_limit(SOAK_SECONDS))
async def test_no_group_is_lost_however_long_it_goes_on(
    new_url: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory
):
    for seed in until(SOAK_SECONDS):
        folder = tmp_path_factory.mktemp("training")
        with history_in(tmp_path_factory.mktemp("history")) as history:
            await check_training(new_url(folder), folder, history, seed=seed, n_harms=5 * N_HARMS)


def check_journal(lines: list[dict[str, Any]], entries: list[GroupEntry], n_batches: int) -> None:
    by_number: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_number[line["number"]].append(line)
        assert line["version"] == line["number"], "one version is published for each batch, whatever happens"
        assert max(line["staleness"]) <= MAX_STALENESS
        assert min(line["staleness"]) >= 0
        assert [len(members) for members in line["groups"].values()] == [GROUP_SIZE] * BATCH_GROUPS
    assert sorted(by_number) == list(range(n_batches))
    assert any(len(again) > 1 for again in by_number.values()), "the trainer was killed while it had a batch"
    for again in by_number.values():
        assert all(line["groups"] == again[0]["groups"] for line in again), "a batch comes again as it was"
    groups = Counter(group_id for again in by_number.values() for group_id in again[0]["groups"])
    assert set(groups.values()) == {1}, "no group is in two batches"
    members = Counter(one for again in by_number.values() for ids in again[0]["groups"].values() for one in ids)
    assert set(members.values()) == {1}
    for entry in entries:
        if entry.state is GroupState.ACKNOWLEDGED:
            assert entry.batch is not None
            assert by_number[entry.batch][0]["groups"][entry.group_id] == list(entry.members)


def check_ledger(entries: list[GroupEntry], n_batches: int) -> None:
    assert [entry.number for entry in entries] == list(range(len(entries))), "no number is missing"
    acknowledged = Counter(entry.batch for entry in entries if entry.state is GroupState.ACKNOWLEDGED)
    assert acknowledged == dict.fromkeys(range(n_batches), BATCH_GROUPS)
    dropped = [entry for entry in entries if entry.state is GroupState.DROPPED]
    assert len(dropped) == len(entries) - acknowledged.total(), "the last trainer has dropped what was open"
    reasons = Counter((entry.reason or "none").partition(":")[0] for entry in dropped)
    assert set(reasons) <= {"filtered", "aborted", "stale"}, reasons
    assert reasons["filtered"] == sum(entry.seed % 10 == 7 for entry in dropped if "filtered" in (entry.reason or ""))
    assert all(entry.seed % 10 != 7 for entry in entries if entry.state is GroupState.ACKNOWLEDGED)


async def check_trajectories(store: Store, entries: list[GroupEntry]) -> None:
    """What was trained on is there from its reset to its result."""
    for entry in entries:
        if entry.state is not GroupState.ACKNOWLEDGED:
            continue
        for rollout in await store.query_rollouts(rollout_ids=entry.members):
            assert (rollout.status, rollout.seed, rollout.tag) == (RolloutStatus.SUCCEEDED, entry.seed, entry.tag)
            events = (await store.query_events(rollout.rollout_id, attempt_id=rollout.attempt_id)).items
            kinds = Counter(event.kind for event in events)
            assert (kinds[EventKind.STEP], kinds[EventKind.TURN]) == (N_STEPS + 1, N_STEPS)
            assert events[-1].kind is EventKind.REWARD
            assert [event.index for event in events] == list(range(len(events)))


async def check_nothing_runs(store: Store) -> None:
    """No member of a closed group is left in a queue or a slot."""

    async def is_over() -> bool:
        return not (await store.query_rollouts(status_in=QUEUED | LIVE, limit=0)).total

    await eventually(is_over, within_seconds=20)


async def check_accounts(store: Store) -> None:
    """Every attempt is accounted for, with at least what its events tell, and each has found its fate."""
    rollouts = (await store.query_rollouts()).items
    accounts = {one.attempt_id: one for one in await store.query_accounts([one.rollout_id for one in rollouts])}
    for rollout in rollouts:
        for attempt in await store.query_attempts(rollout.rollout_id):
            turns = await store.query_events(rollout.rollout_id, attempt_id=attempt.attempt_id, kind=EventKind.TURN)
            stored = sum(turn.data.get("completion_tokens", 0) for turn in turns)
            assert accounts[attempt.attempt_id].account.completion_tokens >= stored, (attempt, rollout)
    tally = await store.tally(LEDGER)
    assert tally.generated == sum(one.account.completion_tokens for one in accounts.values())
    assert tally.n_attempts[None] == 0


@pytest.mark.parametrize("new_url", [pytest.param("sqlite", marks=pytest.mark.soak), "postgres"], indirect=True)
async def test_a_trainer_that_was_frozen_past_a_takeover_is_refused_and_changes_nothing(
    new_url: Callable[[Path], str], tmp_path: Path, history: Path
):
    store_url = new_url(tmp_path)
    async with open_store(store_url) as store:
        with Run(store_url, tmp_path).going() as run:
            frozen = run.start_freezing_trainer()
            assert frozen.stdout is not None
            assert frozen.stdin is not None
            assert await asyncio.to_thread(frozen.stdout.readline) == "taken\n"
            os.kill(frozen.pid, signal.SIGSTOP)
            async with RolloutScheduler(store, CONFIG, name=LEDGER) as second:
                batch = await second.get_batch()
                assert run.lines()[0]["groups"] == {
                    group.group_id: [one.rollout_id for one in group.trajectories] for group in batch.batch.groups
                }
                await second.publish()
                after = await second.get_batch()
                await second.publish()
                before = await kept_by(store)
                os.kill(frozen.pid, signal.SIGCONT)
                frozen.stdin.write("\n")
                frozen.stdin.flush()
                said = await asyncio.to_thread(frozen.stdout.read)
                assert said.split("\n")[:-1] == [
                    "publish: refused",
                    "acknowledge: refused",
                    "pause: refused",
                    "get_batch: refused",
                    "stopped",
                ]
                now = await kept_by(store)
                assert now["published"] == before["published"]
                assert all(now[number] is state for number, state in before.items() if state in CLOSED)
                assert (await second.get_batch()).number == after.number + 1
                assert second.status().dropped.get("aborted", 0) == 0
        await check_store(store, history, max_staleness=MAX_STALENESS)


CLOSED = (GroupState.ACKNOWLEDGED, GroupState.DROPPED)


async def kept_by(store: Store) -> Mapping[Any, Any]:
    """The published policy, and the state of each group by its number."""
    resources = await store.get_latest_resources()
    states: dict[Any, Any] = {entry.number: entry.state for entry in await store.query_groups(LEDGER)}
    return {**states, "published": resources and (resources.version, published_in(resources.resources))}
