"""STORE: what a claim costs, alone and against Agent Lightning; waiting, recovery, queries, memory and the runner."""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from baselines import AGENT_LIGHTNING, BaselineMissing
from commands import Commands, compiled, share_of_processor
from cpu_time import tree_cpu_seconds
from goals import Goal
from report import Report, main
from store_engines import MEMORY, Engine, postgres, sqlite, usable
from store_engines import SYSTEM as US
from store_sizes import FULL, QUICK, Sizes
from subject import Answer, Subject, SubjectFailed
from workload import LOOKS, QUERIES

THEM = AGENT_LIGHTNING.system
LEASE_SECONDS = 2.0
WARM_UP = 400
SHALLOW = 4
"""How often a queue of a thousand is emptied in one sample."""

QUERY_REPEATS = {"limit=20": 20, "status limit=20": 20, "all": 1}

GOOD = (
    Goal(
        text="durable SQLite claim+finish ≥ 6x its in-memory store per CPU-second at 16 claimers",
        case="sqlite claimers=16 *",
        metric="ratio",
        of="pairs_per_cpu_second",
        at_least=6.0,
    ),
    Goal(
        text="the same in memory ≥ 6x",
        case="memory claimers=16 *",
        metric="ratio",
        of="pairs_per_cpu_second",
        at_least=6.0,
    ),
    Goal(
        text="PostgreSQL ≥ 2.5x",
        case="postgres claimers=16 *",
        metric="ratio",
        of="pairs_per_cpu_second",
        at_least=2.5,
    ),
    Goal(
        text="four processes on one PostgreSQL ≥ 2.5x",
        case="postgres processes=4 *",
        metric="ratio",
        of="pairs_per_cpu_second",
        at_least=2.5,
    ),
    Goal(
        text="four processes on one SQLite file ≥ 2.5x",
        case="sqlite processes=4 *",
        metric="ratio",
        of="pairs_per_cpu_second",
        at_least=2.5,
    ),
    Goal(
        text="`durability=full` ≥ 2x",
        case="* durability=full claimers=16 *",
        metric="ratio",
        of="pairs_per_cpu_second",
        at_least=2.0,
    ),
    Goal(
        text="cost per claim at {queued} queued ≤ 1.3x that at 1,000",
        case="* queued=*",
        metric="claim_cost_ratio",
        at_most=1.3,
    ),
    Goal(text="idle claim p99 ≤ 10 ms", case="*", metric="idle_claim_p99_ms", at_most=10.0),
    Goal(text="runner ≤ 0.4 ms CPU per no-op rollout", case="* n=*", metric="runner_cpu_ms", at_most=0.4),
    Goal(
        text="a look at {ended} ended rollouts < 300 ms",
        case="* ended=*",
        metric="query_wall_ms",
        at_most=300.0,
    ),
    Goal(text="all of `outrider status` there < 300 ms", case="* ended=*", metric="status_wall_ms", at_most=300.0),
    Goal(text="of CPU too", case="* ended=*", metric="status_cpu_ms", at_most=300.0),
    Goal(
        text="a supervisor that idles there ≤ 2 % of a processor", case="* ended=*", metric="idle_cpu_pct", at_most=2.0
    ),
    Goal(text="a claim with {tags} tags ≤ 10 ms", case="* tags=*", metric="claim_ms", at_most=10.0),
    Goal(text="recovery ≤ lease + 0.1 s", case="*", metric="recovery_over_lease_seconds", at_most=0.1),
)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Claim and finish `n` by so many claimers at once, `batch` in a call."""

    claimers: int
    batch: int
    n: int

    def __str__(self) -> str:
        return f"claimers={self.claimers} {'' if self.batch == 1 else f'batch={self.batch} '}n={self.n}"


def pair_cases(sizes: Sizes) -> list[Pairs]:
    """What each engine does from one process."""
    cases = [Pairs(claimers, batch, n) for n in sizes.matrix_ns for claimers in (1, 4, 16) for batch in (1, 10)]
    return cases if sizes.large_n in sizes.matrix_ns else [*cases, Pairs(16, 1, sizes.large_n)]


@dataclass(frozen=True, slots=True)
class Peer:
    """Agent Lightning: the process that is measured, and one that serves its store over HTTP."""

    worker: Subject
    server: Subject


class StoreBench:
    """The sections of the benchmark, on the systems that can run here."""

    def __init__(self, report: Report, sizes: Sizes, engines: Sequence[Engine], them: Peer | None) -> None:
        self._report = report
        self._sizes = sizes
        self._engines = engines
        self._us = Subject("outrider_store.py")
        self._them = None if them is None else them.worker
        self._their_server = None if them is None else them.server

    def close(self) -> None:
        self._us.close()

    def pairs(self) -> None:
        """Enqueue, then claim and finish, system after system in each round."""
        sizes = self._sizes
        for case in pair_cases(sizes):
            self._report.say(f"pairs: {case}")
            for _ in range(max(sizes.rounds, sizes.rounds_compared) if case.claimers == 16 else sizes.rounds):
                for engine in self._measured(case):
                    with self._opened(self._us, engine):
                        self._pairs_once(case, US, [self._us], engine)
                if self._them is not None and case.claimers == 16:
                    with self._opened(self._them, MEMORY):
                        self._pairs_once(case, THEM, [self._them], MEMORY)
            for engine in self._measured(case):
                for metric in ("pairs_per_cpu_second", "enqueues_per_cpu_second"):
                    self._report.ratio(
                        f"{engine.name} {case}", metric, of=US, against=THEM, against_case=f"memory {case}"
                    )
        self._report.publish()

    def _measured(self, case: Pairs) -> list[Engine]:
        """At 16 claimers those too that flush every commit to disk."""
        flushing = [engine.durable() for engine in self._engines if engine.is_shared and case.claimers == 16]
        return [*self._engines, *flushing]

    def processes(self) -> None:
        """The same store drained by 4 processes; their store knows one alone."""
        case = Pairs(16, 1, self._sizes.processes_n)
        with ExitStack() as stack:
            subjects = [stack.enter_context(Subject("outrider_store.py")) for _ in range(4)]
            for engine in self._engines:
                if not engine.is_shared:
                    continue
                self._report.say(f"{engine.name} from 4 processes: {case}")
                beside = Engine(f"memory beside {engine.name}", MEMORY.new_url)
                for _ in range(max(self._sizes.rounds, self._sizes.rounds_compared)):
                    url = engine.new_url()
                    for subject in subjects:
                        subject.ask("open", url=url)
                    self._pairs_once(case, US, subjects, engine)
                    for subject in subjects:
                        subject.ask("close")
                    if self._them is not None:
                        with self._opened(self._them, beside):
                            self._pairs_once(case, THEM, [self._them], beside)
                self._report.ratio(
                    f"{engine.name} processes={len(subjects)} {case}",
                    "pairs_per_cpu_second",
                    of=US,
                    against=THEM,
                    against_case=f"{beside.name} {case}",
                )
        self._report.publish()

    def http(self) -> None:
        """Their store through their own server and client."""
        if self._them is None or self._their_server is None:
            return
        n = self._sizes.http_n
        self._report.say(f"http: n={n}")
        for _ in range(self._sizes.rounds):
            url = self._their_server.ask("serve_http")["url"]
            engine = Engine("http", lambda url=url: url, self._their_server.pid)
            with self._opened(self._them, engine):
                self._pairs_once(Pairs(16, 1, n), THEM, [self._them], engine)
            self._their_server.ask("close")
        self._report.publish()

    def depth(self) -> None:
        """What a claim alone costs with many queued, against the same with 1,000 queued.

        Both sides are warmed up by claims that do not count: else a fresh store's first statements would count as
        the cost of a short queue, and make a long one look cheap.
        """
        for engine in self._engines:
            for depth in self._sizes.depths:
                self._report.say(f"depth: {engine.name} queued={depth}")
                with self._opened(self._us, engine), Subject("outrider_store.py") as shallow:
                    self._us.ask("enqueue", n=depth, callers=1, batch=1000)
                    for _ in range(max(self._sizes.rounds, self._sizes.rounds_compared)):
                        bases = []
                        for _ in range(SHALLOW):
                            with self._opened(shallow, engine):
                                shallow.ask("enqueue", n=1000 + WARM_UP, callers=1, batch=100)
                                bases.append(self._claim_cost(shallow, engine, 1000, 1000))
                        base = sum(bases) / SHALLOW
                        deep = self._claim_cost(self._us, engine, self._sizes.claims_at_depth, depth)
                        self._report.add(f"{engine.name} queued={depth}", US, "claim_cost_ratio", deep / base, "x")
        self._report.publish()

    def waiting(self) -> None:
        """How long a worker that waits takes to have what was just enqueued, or what a killed worker held.

        Their worker waits while ours do: it sleeps nearly all the time. The first wait does not count, for either side:
        connections are made in it and statements prepared, which a worker does once.
        """
        if self._them is not None:
            self._report.say(f"idle: {THEM}")
            self._them.ask("open", url="memory://")
            self._them.send("idle", samples=self._sizes.idle_samples_of_them, pause=0.02)
        for engine in self._engines:
            self._report.say(f"idle: {engine.name}")
            with self._opened(self._us, engine):
                seconds = self._us.ask("idle", samples=self._sizes.idle_samples, pause=0.02)["seconds"]
                self._add_latencies(f"{engine.name} same process", US, seconds)
            if engine.is_shared:
                self._add_latencies(f"{engine.name} other process", US, self._idle_elsewhere(engine))
                self._report.say(f"recovery: {engine.name}")
                for _ in range(self._sizes.rounds):
                    self._recover_once(engine)
        if self._them is not None:
            self._add_latencies("memory same process", THEM, self._them.receive()["seconds"])
            self._them.ask("close")
            self._report.ratio("memory same process", "idle_claim_ms", of=US, against=THEM)
        self._report.publish()

    def memory(self) -> None:
        """Resident memory of rows in the stores that keep them in memory."""
        with Subject("outrider_store.py") as ours:
            self._memory_of(US, ours)
        if self._them is not None:
            self._memory_of(THEM, self._them)
        for what in ("queued", "finished"):
            self._report.ratio(f"memory {what}", "memory_mb_per_10k", of=US, against=THEM)
        self._report.publish()

    def query(self) -> None:
        """Queries on a store where half of the rollouts have ended."""
        rows = self._sizes.query_rows
        for engine in self._engines:
            self._query_once(engine, US, self._us)
        if self._them is not None:
            self._query_once(MEMORY, THEM, self._them)
        for kind in QUERIES:
            for engine in self._engines:
                self._report.ratio(
                    f"{engine.name} rows={rows} {kind}",
                    "query_ms",
                    of=US,
                    against=THEM,
                    against_case=f"memory rows={rows} {kind}",
                )
        self._report.publish()

    def many(self) -> None:
        """Looks at a store in which very much has ended, and claims from one with very many tags."""
        n_ended, n_tags = self._sizes.ended_rows, self._sizes.tags
        for engine in self._engines:
            if not engine.is_shared:
                continue
            self._report.say(f"many: {engine.name} ended={n_ended}")
            url = engine.new_url()
            self._us.ask("fill", url=url, n_ended=n_ended, n_queued=1000, n_tags=10)
            for _ in range(self._sizes.rounds):
                for kind in LOOKS:
                    looked, cpu = _spent(engine, [self._us], "look", kind=kind, repeats=10)
                    case, wall = f"{engine.name} ended={n_ended} {kind}", looked[0]["wall_seconds"]
                    self._report.add(case, US, "query_ms", cpu / 10 * 1000, "ms")
                    self._report.add(case, US, "query_wall_ms", wall / 10 * 1000, "ms")
            with compiled() as commands:
                self._commands_once(engine, url, f"{engine.name} ended={n_ended}", commands)
            self._us.ask("close")
            self._report.say(f"many: {engine.name} tags={n_tags}")
            self._us.ask("fill", url=engine.new_url(), n_ended=0, n_queued=20 * n_tags, n_tags=n_tags)
            for case, named in (("", None), (" named=1", ["tag-3"]), (f" named={n_tags}", _tags(n_tags))):
                repeats = 3 if named and len(named) == 1 else 20
                for _ in range(self._sizes.rounds if repeats > 3 else 1):
                    _, cpu = _spent(engine, [self._us], "claim_tagged", repeats=repeats, tags=named)
                    self._report.add(f"{engine.name} tags={n_tags}{case}", US, "claim_ms", cpu / repeats * 1000, "ms")
            self._us.ask("close")
        self._report.publish()

    def _commands_once(self, engine: Engine, url: str, case: str, commands: Commands) -> None:
        """What `status` takes on that store, all in all, and what a supervisor takes that has nothing to do."""
        commands.run("status", "--store", url)
        for _ in range(max(self._sizes.rounds, self._sizes.rounds_compared)):
            before = 0.0 if engine.server_pid is None else tree_cpu_seconds(engine.server_pid)
            ran = commands.run("status", "--store", url)
            server = 0.0 if engine.server_pid is None else tree_cpu_seconds(engine.server_pid) - before
            self._report.add(case, US, "status_wall_ms", ran.wall_seconds * 1000, "ms")
            self._report.add(case, US, "status_cpu_ms", (ran.cpu_seconds + server) * 1000, "ms")
        with commands.running("work", "--store", url, "--workers", "1", "--tag", "of-no-rollout") as pid:
            share_of_processor(pid, self._sizes.settle_seconds)
            for _ in range(self._sizes.rounds):
                self._report.add(case, US, "idle_cpu_pct", share_of_processor(pid, self._sizes.idle_seconds), "%")

    def runner(self) -> None:
        """No-op rollouts on 4 workers in one process."""
        for n in self._sizes.runner_ns:
            self._report.say(f"runner: n={n}")
            for _ in range(self._sizes.rounds):
                for engine in self._engines:
                    self._runner_once(US, self._us, engine, n)
                if self._them is not None:
                    self._runner_once(THEM, self._them, MEMORY, n)
            for engine in self._engines:
                self._report.ratio(
                    f"{engine.name} workers=4 n={n}",
                    "runner_cpu_ms",
                    of=US,
                    against=THEM,
                    against_case=f"memory workers=4 n={n}",
                )
        self._report.publish()

    @contextmanager
    def _opened(self, subject: Subject, engine: Engine) -> Iterator[None]:
        subject.ask("open", url=engine.new_url())
        yield
        subject.ask("close")

    def _pairs_once(self, pairs: Pairs, system: str, subjects: Sequence[Subject], engine: Engine) -> None:
        """Fill by the first subject, drain by all; the CPU time of all and of the engine's server counts.

        What a store does only at first (connections, statements prepared) does not count, for either side.
        """
        add, claimers = self._report.add, pairs.claimers // len(subjects)
        case = f"{engine.name} {'' if len(subjects) == 1 else f'processes={len(subjects)} '}{pairs}"
        _filled_and_drained(engine, subjects, claimers, Pairs(pairs.claimers, pairs.batch, WARM_UP))
        repeats = 1 if engine.name == "http" else max(1, self._sizes.least_pairs // pairs.n)
        passes = [_filled_and_drained(engine, subjects, claimers, pairs) for _ in range(repeats)]
        fill, fill_wall, drain, drain_wall = (sum(column) / repeats for column in zip(*passes, strict=True))
        if pairs.claimers == 16 and len(subjects) == 1:
            add(case, system, "enqueues_per_cpu_second", pairs.n / fill, "1/s")
            add(case, system, "enqueues_per_second", pairs.n / fill_wall, "1/s")
        add(case, system, "pairs_per_cpu_second", pairs.n / drain, "1/s")
        add(case, system, "pairs_per_second", pairs.n / drain_wall, "1/s")

    def _claim_cost(self, subject: Subject, engine: Engine, claims: int, depth: int) -> float:
        """CPU seconds of one claim, from so many."""
        subject.ask("drain", claimers=16, at_most=WARM_UP, finish=False)
        claimed, cpu = _spent(engine, [subject], "drain", claimers=16, at_most=claims, finish=False)
        if claimed[0]["n"] != claims:
            raise SubjectFailed(f"{engine.name}, {depth} queued: {claims} claims found {claimed[0]['n']} rollouts")
        self._report.add(f"{engine.name} queued={depth}", US, "claims_per_cpu_second", claims / cpu, "1/s")
        return cpu / claims

    def _idle_elsewhere(self, engine: Engine) -> list[float]:
        seconds = []
        url = engine.new_url()
        with Subject("outrider_store.py") as worker:
            worker.ask("open", url=url)
            self._us.ask("open", url=url)
            for _ in range(self._sizes.idle_samples):
                worker.send("claim_one", wait=30.0)
                time.sleep(0.05)
                asked = self._us.ask("enqueue_one")
                seconds.append(worker.receive()["at"] - asked["at"])
            self._us.ask("close")
            worker.ask("close")
        return seconds

    def _add_latencies(self, case: str, system: str, seconds: Sequence[float]) -> None:
        seconds = seconds[1:]
        for value in seconds:
            self._report.add(case, system, "idle_claim_ms", value * 1000, "ms")
        worst = sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))]
        self._report.add(case, system, "idle_claim_p99_ms", worst * 1000, "ms")

    def _recover_once(self, engine: Engine) -> None:
        url = engine.new_url()
        with Subject("outrider_store.py") as killed, Subject("outrider_store.py") as other:
            for subject in (killed, other):
                subject.ask("open", url=url)
            killed.ask("enqueue_one", unresponsive_seconds=LEASE_SECONDS)
            killed.ask("claim_one", wait=5.0, finish=False)
            other.send("claim_one", wait=60.0)
            died = time.monotonic()
            killed.kill()
            seconds = other.receive()["at"] - died
            other.ask("close")
        case = f"{engine.name} lease={LEASE_SECONDS:g}s"
        self._report.add(case, US, "recovery_seconds", seconds, "s")
        self._report.add(case, US, "recovery_over_lease_seconds", seconds - LEASE_SECONDS, "s")

    def _memory_of(self, system: str, subject: Subject) -> None:
        self._report.say(f"memory: {system}")
        n = self._sizes.memory_n
        with self._opened(subject, MEMORY):
            for _ in range(self._sizes.rounds):
                before = subject.ask("resident_mb")["mb"]
                subject.ask("enqueue", n=n, batch=100)
                queued = subject.ask("resident_mb")["mb"] - before
                subject.ask("drain", claimers=16)
                finished = subject.ask("resident_mb")["mb"] - before
                self._report.add("memory queued", system, "memory_mb_per_10k", queued * 10_000 / n, "MB")
                self._report.add("memory finished", system, "memory_mb_per_10k", finished * 10_000 / n, "MB")

    def _query_once(self, engine: Engine, system: str, subject: Subject) -> None:
        rows = self._sizes.query_rows
        self._report.say(f"query: {system} {engine.name} rows={rows}")
        with self._opened(subject, engine):
            subject.ask("enqueue", n=rows, batch=500)
            subject.ask("drain", claimers=16, at_most=rows // 2)
            for _ in range(self._sizes.rounds):
                for kind in QUERIES:
                    answers, cpu = _spent(engine, [subject], "query", kind=kind, repeats=QUERY_REPEATS[kind])
                    n = answers[0]["n"]
                    self._report.add(f"{engine.name} rows={rows} {kind}", system, "query_ms", cpu / n * 1000, "ms")

    def _runner_once(self, system: str, subject: Subject, engine: Engine, n: int) -> None:
        """A few rollouts are run again and again: the CPU time of a server is known to 10 ms."""
        repeats = max(1, self._sizes.least_runs // n)
        cpu = wall = 0.0
        with self._opened(subject, engine):
            for _ in range(repeats):
                subject.ask("enqueue", n=n, batch=100)
                answers, spent = _spent(engine, [subject], "work", n=n, workers=4)
                cpu += spent
                wall += answers[0]["wall_seconds"]
        case = f"{engine.name} workers=4 n={n}"
        self._report.add(case, system, "runner_cpu_ms", cpu / (n * repeats) * 1000, "ms")
        self._report.add(case, system, "runner_wall_ms", wall / (n * repeats) * 1000, "ms")


def _spent(engine: Engine, subjects: Sequence[Subject], work: str, **arguments: object) -> tuple[list[Answer], float]:
    """The answers of all, and the CPU seconds of all of them and of the engine's server."""
    before = 0.0 if engine.server_pid is None else tree_cpu_seconds(engine.server_pid)
    for subject in subjects:
        subject.send(work, **arguments)
    answers = [subject.receive() for subject in subjects]
    server = 0.0 if engine.server_pid is None else tree_cpu_seconds(engine.server_pid) - before
    return answers, server + sum(answer["cpu_seconds"] for answer in answers)


def _filled_and_drained(
    engine: Engine, subjects: Sequence[Subject], claimers: int, pairs: Pairs
) -> tuple[float, float, float, float]:
    """Enqueue and then claim and finish all: CPU and wall seconds of either."""
    filled, fill = _spent(engine, subjects[:1], "enqueue", n=pairs.n, callers=16, batch=pairs.batch)
    drained, drain = _spent(engine, subjects, "drain", claimers=claimers, batch=pairs.batch)
    done = sum(answer["n"] for answer in drained)
    if done != pairs.n:
        raise SubjectFailed(f"{engine.name} {pairs}: {pairs.n} were enqueued, but {done} were claimed and finished")
    return fill, filled[0]["wall_seconds"], drain, max(answer["wall_seconds"] for answer in drained)


def _tags(n: int) -> list[str]:
    return [f"tag-{i}" for i in range(n)]


def measure(report: Report, sizes: Sizes, engines: Sequence[Engine], them: Peer | None) -> None:
    """All sections."""
    bench = StoreBench(report, sizes, engines, them)
    try:
        bench.memory()
        bench.pairs()
        bench.processes()
        bench.http()
        bench.runner()
        bench.waiting()
        bench.query()
        bench.many()
        bench.depth()
    finally:
        bench.close()


def run(report: Report, quick: bool) -> None:
    with ExitStack() as stack:
        them = None
        try:
            python = AGENT_LIGHTNING.install()
        except BaselineMissing as exc:
            report.missing("", THEM, str(exc))
        else:
            program = "agentlightning_store.py"
            them = Peer(*[stack.enter_context(Subject(program, python=python)) for _ in range(2)])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-bench-")))
        engines = [MEMORY, sqlite(folder), *stack.enter_context(postgres(report))]
        measure(report, QUICK if quick else FULL, usable(report, engines), them)


if __name__ == "__main__":
    sys.exit(main("store", run, sys.argv[1:]))
