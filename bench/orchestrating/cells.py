"""One run of a team over a batch: what is varied, and what is taken."""

import gc
import hashlib
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from orchestrating.clock import run_on_cpu_time
from orchestrating.flows import FLOWS, Library
from orchestrating.server import Asked, Replies, ServedPolicy, Server, World
from orchestrating.tokens import CountingTokenizer
from orchestrating.workload import MAX_STEPS, N_ROUNDS, information, question
from outrider.core.task import Task
from outrider.orchestra import BatchResult, Orchestra, Performance, TeamStatistics
from outrider.testing import LoopClock

Loop = Callable[[Coroutine[Any, Any, "Figures"]], "Figures"]
"""Runs a program to its end, on a time of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is run. `window` samples are under way at once, and `chunk` are given at once; 0 is all of the batch.

    `group`: so many samples in a row have the same question, as in the groups of a trainer. `whole_batch`: in each call
    of the batch the prompts of all its samples are tokenised, also of those that take no part.
    """

    flow: str
    batch: int
    rate: float
    tail: bool
    switches: Mapping[str, Any] = field(default_factory=dict)
    whole_batch: bool = False
    window: int = 0
    chunk: int = 0
    group: int = 1

    @property
    def case(self) -> str:
        return f"{self.flow} b={self.batch} p={self.rate:g} {'tail' if self.tail else 'flat'}"

    @property
    def work(self) -> tuple[object, ...]:
        """What its rows follow from."""
        return self.flow, self.batch, self.rate, self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run took. `rows` are digests, in the order of the batch."""

    samples: int
    for_nothing: int
    cpu_seconds: float
    wall_seconds: float
    prompt_tokens: float
    tokenised: float
    """Tokens, for each sample."""

    tokenising_seconds: float
    """Of the CPU time, that of the tokenizer."""

    in_flight: float
    """Calls under way, over time, for each place in the window."""

    rows: tuple[bytes, ...]
    statistics: TeamStatistics
    peak_mb: float

    @property
    def cpu_ms_per_call(self) -> float:
        return 1000 * self.cpu_seconds / self.samples


class Bench:
    """Runs cells with one tokenizer."""

    def __init__(self, tokenizer: CountingTokenizer) -> None:
        self._tokenizer = tokenizer
        self._replies = Replies(tokenizer)

    def run(self, cell: Cell, *, on: Loop = run_on_cpu_time, traced: bool = False) -> Figures:
        """`traced`: with the greatest amount of memory, which takes time."""
        self._prepare(cell)
        gc.collect()
        gc.freeze()  # what was there before is not the team's to look through
        if not traced:
            return on(self._played(cell))
        tracemalloc.start()
        try:
            return on(self._played(cell))
        finally:
            tracemalloc.stop()

    def _prepare(self, cell: Cell) -> None:
        """Make all texts, verdicts and times of the workload, which are not the team's work."""
        world, flow = _world(cell), FLOWS[cell.flow]
        for sid in range(cell.batch):
            question(sid)
            for step in range(1, MAX_STEPS) if flow.acts else ():
                information(sid, step)
            for agent in flow.agents:
                for rnd in range(N_ROUNDS[cell.flow]):
                    asked = Asked(agent.name, sid, rnd)
                    self._replies.of(world.reply(asked))
                    world.seconds(asked)

    async def _played(self, cell: Cell) -> Figures:
        clock, flow, tokenizer = LoopClock(), FLOWS[cell.flow], self._tokenizer
        server = Server(_world(cell), self._replies)
        policy = ServedPolicy(server, tokenizer, clock=clock, whole_batch=cell.whole_batch)
        orchestra = Orchestra(flow.agents, flow.play, performance=Performance(**cell.switches))
        tasks = [Task(task_id=str(sid), question=question(sid // cell.group)) for sid in range(cell.batch)]
        library = Library() if flow.acts else None
        chunk = cell.chunk or cell.batch
        window = cell.window or chunk
        results: list[BatchResult] = []
        n_before, tokenising, cpu_before = tokenizer.n_tokens, tokenizer.seconds, time.process_time()
        before = clock.time()
        for at in range(0, cell.batch, chunk):
            part = tasks[at : at + chunk]
            results.append(await orchestra.run(part, policy=policy, environments=library, window=window, clock=clock))
        cpu_seconds, wall_seconds = time.process_time() - cpu_before, clock.time() - before
        return Figures(
            samples=server.n_samples,
            for_nothing=server.n_for_nothing,
            cpu_seconds=cpu_seconds,
            wall_seconds=wall_seconds,
            prompt_tokens=server.prompt_tokens / (server.n_samples + server.n_for_nothing),
            tokenised=(tokenizer.n_tokens - n_before) / server.n_samples,
            tokenising_seconds=tokenizer.seconds - tokenising,
            in_flight=server.running_seconds / (window * wall_seconds),
            rows=_digests(results),
            statistics=orchestra.stats(),
            peak_mb=tracemalloc.get_traced_memory()[1] / 2**20 if tracemalloc.is_tracing() else 0.0,
        )


def _world(cell: Cell) -> World:
    return World(batch=cell.batch, rate=cell.rate, tail=cell.tail)


def _digests(results: Sequence[BatchResult]) -> tuple[bytes, ...]:
    """Of each row and each outcome; where a sample stands in its part of the batch does not matter."""
    told = [
        *(row for result in results for row in result.rows),
        *(one for result in results for one in result.outcomes),
    ]
    packed = [msgspec.msgpack.encode(msgspec.structs.replace(each, sample=0)) for each in told]
    return tuple(hashlib.blake2b(each, digest_size=16).digest() for each in packed)


def n_differing(rows: Sequence[bytes], others: Sequence[bytes]) -> int:
    return sum(a != b for a, b in zip(rows, others, strict=False)) + abs(len(rows) - len(others))
