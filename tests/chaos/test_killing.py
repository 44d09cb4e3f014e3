"""Workers and their supervisor killed and stopped at random: nothing is lost, nothing ends twice."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ended_once import check_ended_once, enqueue_traced
from history_checking import history_in
from outrider import open_store
from outrider.testing.history import check_store
from postgres_server import PostgresServer
from soaking import note_soak, time_limit, until

N_ROLLOUTS = 800
"""Of `trace_after_a_while`: more than three workers do while the least harm is done, however fast they are."""

N_ROLLOUTS_IN_SOAK = 4_800
LEASE_SECONDS = 1.5
KILL_SECONDS = 4.0
LEAST_HARM = 10
SOAK_SECONDS = 100.0
PATIENCE_SECONDS = 1.0
"""So long workers may be about to start before harm is done to them all the same: who is at work has more to lose."""

HERE = Path(__file__).parent


@pytest.fixture(params=["sqlite", "postgres"])
def new_url(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """The URL of a new store, for a run in that folder."""
    if request.param == "sqlite":
        return lambda folder: f"sqlite:///{folder / 'runs.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return lambda _: server.new_url()


def work(store_url: str, agent: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "outrider", "work", "--store", store_url, "--workers", "3", "--until-done"]
    command += ["--agent", f"chaos_agents:{agent}", "--max-env-num-per-worker", "4", "--grace", "0.5"]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, cwd=HERE)


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@contextmanager
def resumed(pids: list[int]) -> Iterator[None]:
    """Whatever was stopped goes on in the end, so that nothing is left behind."""
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def ran(trace: Path) -> list[str]:
    return [line.split()[0] for line in trace.read_text().splitlines()] if trace.exists() else []


def has_repeats(trace: Path) -> bool:
    return len(set(ran(trace))) < len(ran(trace))


class Killer:
    """Does harm at random for a while."""

    def __init__(self, store_url: str, agent: str, log: Path, rng: random.Random) -> None:
        self._store_url = store_url
        self._agent = agent
        self._log = log
        self._rng = rng
        self._stopped: dict[int, float] = {}
        self.supervisor = work(store_url, agent, log)
        self.harm: Counter[str] = Counter()

    def run(self, seconds: float, trace: Path) -> None:
        """So long, or on a busy machine longer, until enough was done and some rollout ran twice."""
        began = harmed = time.monotonic()
        n_ran = 0
        while self.supervisor.poll() is None:
            now = time.monotonic()
            is_enough = self.harm.total() >= LEAST_HARM and has_repeats(trace)
            if now - began > seconds and (is_enough or now - began > 5 * seconds):
                return
            time.sleep(self._rng.uniform(0.05, 0.3))
            self._continue(now)
            is_at_work = len(ran(trace)) > n_ran
            if is_at_work or now - harmed > PATIENCE_SECONDS:
                self._harm()
                harmed, n_ran = time.monotonic(), len(ran(trace))

    def _harm(self) -> None:
        workers = [pid for pid in children(self.supervisor.pid) if pid not in self._stopped]
        choice = self._rng.random()
        if choice < 0.1:
            self.supervisor.kill()
            self.supervisor.wait()
            self.harm["supervisor killed"] += 1
            self.supervisor = work(self._store_url, self._agent, self._log)
        elif workers and choice < 0.7:
            self._signal(self._rng.choice(workers), signal.SIGKILL)
            self.harm["worker killed"] += 1
        elif workers and len(self._stopped) < 2:
            pid = self._rng.choice(workers)
            self._signal(pid, signal.SIGSTOP)
            self._stopped[pid] = time.monotonic() + LEASE_SECONDS * 2
            self.harm["worker stopped past its lease"] += 1

    def _continue(self, now: float) -> None:
        for pid, deadline in list(self._stopped.items()):
            if now > deadline:
                self._signal(pid, signal.SIGCONT)
                del self._stopped[pid]

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def finish(self, seconds: float) -> None:
        """Stop doing harm, and let a last supervisor finish the work."""
        for pid in self._stopped:
            self._signal(pid, signal.SIGCONT)
        try:
            self.supervisor.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.supervisor.kill()
            pytest.fail(f"the work was not done: {self._log.read_text()[-3000:]}")
        if self.supervisor.returncode != 0:
            self.supervisor = work(self._store_url, self._agent, self._log)
            self.supervisor.wait(timeout=seconds)


async def check_killing(
    store_url: str, folder: Path, history: Path, *, agent: str, seed: int, n_rollouts: int, seconds: float
) -> None:
    trace = folder / "trace"
    async with open_store(store_url) as store:
        ids = await enqueue_traced(store, trace, n_rollouts, LEASE_SECONDS)
    killer = Killer(store_url, agent, folder / "log", random.Random(seed))
    with resumed(children(killer.supervisor.pid)):
        killer.run(seconds, trace)
        killer.finish(90 + 10 * seconds)
    print(f"seed {seed}:", dict(killer.harm))
    assert killer.harm.total() >= LEAST_HARM

    async with open_store(store_url) as store:
        await check_ended_once(store, ids, trace)
        n_calls = await check_store(store, history)
    stopped = killer.harm["worker stopped past its lease"]
    deaths = killer.harm.total() - stopped
    note_soak("workers killed", rollouts=n_rollouts, deaths=deaths, freezes=stopped, calls_checked=n_calls)
    if store_url.startswith("sqlite"):
        with sqlite3.connect(folder / "runs.db") as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("new_url", "seed"), [("sqlite", 1), ("postgres", 2)], indirect=["new_url"])
async def test_nothing_is_lost_and_nothing_ends_twice(
    new_url: Callable[[Path], str], tmp_path: Path, history: Path, seed: int
):
    how = {"agent": "trace_after_a_while", "n_rollouts": N_ROLLOUTS, "seconds": KILL_SECONDS}
    await check_killing(new_url(tmp_path), tmp_path, history, seed=seed, **how)


@pytest.mark.soak
@pytest.mark.timeout(time_limit(SOAK_SECONDS))
async def test_nothing_is_lost_however_long_it_goes_on(
    new_url: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory
):
    how = {"agent": "trace", "n_rollouts": N_ROLLOUTS_IN_SOAK, "seconds": 4 * KILL_SECONDS}
    for seed in until(SOAK_SECONDS):
        folder = tmp_path_factory.mktemp("killing")
        with history_in(tmp_path_factory.mktemp("history")) as history:
            await check_killing(new_url(folder), folder, history, seed=seed, **how)
