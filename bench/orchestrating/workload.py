"""ORCHESTRA-1: what is asked and said, who approves of what, and how long the model takes.

The texts, verdicts and times are the ones that the workload lays down; how often agents are asked follows from them.
"""

import random
import zlib
from collections.abc import Iterator
from functools import cache

WORDS = (
    *("river", "mountain", "council", "treaty", "engine", "bridge", "author", "album", "season", "coach", "island"),
    *("province", "army", "bishop", "theory", "protein", "signal", "market", "harbour", "satellite", "festival"),
    *("museum", "railway", "empire", "novel", "actor", "studio", "league"),
)

SEARCH, CRITIC, VERIFIER, ANSWER = "Search Agent", "Critic Agent", "Verifier Agent", "Answer Agent"
SOLVER, CHECKER = "Solver Agent", "Math Verifier"
INFO, PLANNING, ACTION = "Info Agent", "Planning Agent", "Action Agent"
"""The last three are no part of ORCHESTRA-1: two that do not need each other, and one that reads both."""

MAX_STEPS, MAX_SEARCHES, MAX_SOLUTIONS = 4, 2, 3
N_ROUNDS = {"critic": MAX_SEARCHES, "episode": MAX_STEPS, "math": MAX_SOLUTIONS, "parallel": 1}

SAMPLES = {
    ("critic", 8): (17, 22),
    ("critic", 64): (138, 176),
    ("critic", 256): (550, 704),
    ("episode", 8): (18, 43),
    ("episode", 64): (151, 324),
    ("episode", 256): (600, 1338),
    ("math", 8): (18, 33),
    ("math", 64): (149, 260),
    ("math", 256): (594, 1047),
}
"""How many samples are sent, by flow and batch, at each of `RATES`: part of the workload."""

RATES = (0.85, 0.25)
ADMISSION_SECONDS, LATENCY_SECONDS = 0.002, 0.050


def rng(*key: object) -> random.Random:
    return random.Random(zlib.crc32(repr(key).encode()))


def words(n: int, *key: object) -> str:
    r = rng(*key)
    return " ".join(r.choice(WORDS) for _ in range(n))


@cache
def question(sid: int) -> str:
    return f"[sid={sid:05d}] which {words(24, 'q', sid)}?"


@cache
def approved(sid: int, batch: int, rate: float, rnd: int, seed: int = 0) -> bool:
    """`rnd` counts the calls of that agent from 0; in `episode` it is the step of the environment less one."""
    return _places(batch, rnd, seed)[sid] < round(rate * batch)


@cache
def _places(batch: int, rnd: int, seed: int) -> list[int]:
    p = list(range(batch))
    rng("perm", batch, rnd, seed).shuffle(p)
    return p


@cache
def response(agent: str, sid: int, rnd: int, ok: bool) -> str:
    think = words(90, agent, sid, rnd)
    return {
        SEARCH: f"<think>{think}</think><search>{words(8, 'query', sid, rnd)}</search>",
        CRITIC: f"<think>{think}</think><critic>{'approve' if ok else 'reject'}</critic>",
        ANSWER: f"<think>{think}</think><answer>{words(3, 'ans', sid)}</answer>",
        VERIFIER: f"{think} <verify>{'yes' if ok else 'no'}</verify>",
        CHECKER: f"{think} <verify>{'approve' if ok else 'reject'}</verify>",
        SOLVER: f"{think} so the answer is \\boxed{{{sid}}}",
        INFO: f"<info>{think}</info>",
        PLANNING: f"<plan>{think}</plan>",
        ACTION: f"<think>{think}</think><answer>{words(3, 'ans', sid)}</answer>",
    }[agent]


@cache
def information(sid: int, step: int) -> str:
    """`step` is how many turns have been taken: 1, 2, 3."""
    docs = "".join(f"Doc {k + 1}: {words(60, 'doc', sid, step, k)}\n" for k in range(3))
    return f"\n<information>{docs}</information>\n"


@cache
def tail_ms(agent: str, sid: int, rnd: int, seed: int = 0) -> float:
    """In `math` the verifier's name is that of the other one here."""
    named = VERIFIER if agent == CHECKER else agent
    return 100.0 * rng("tail", named, sid, rnd, seed).lognormvariate(0.0, 1.0)


def calls(flow: str, sid: int, batch: int, rate: float) -> Iterator[tuple[str, int]]:
    """Whom one sample asks, in which round: what every program that does this work has to wait for."""
    match flow:
        case "critic":
            yield from ((SEARCH, 0), (CRITIC, 0))
            if not approved(sid, batch, rate, 0):
                yield SEARCH, 1
        case "episode":
            yield from _steps(sid, batch, rate)
        case "math":
            for rnd in range(MAX_SOLUTIONS):
                yield SOLVER, rnd
                if rnd == MAX_SOLUTIONS - 1:
                    return
                yield CHECKER, rnd
                if approved(sid, batch, rate, rnd):
                    return
        case "parallel":
            yield from ((INFO, 0), (PLANNING, 0), (ACTION, 0))


def _steps(sid: int, batch: int, rate: float) -> Iterator[tuple[str, int]]:
    for rnd in range(MAX_STEPS):
        yield VERIFIER, rnd
        if approved(sid, batch, rate, rnd):
            yield ANSWER, rnd
            return
        if rnd < MAX_STEPS - 1:
            yield SEARCH, rnd


def least_seconds(flow: str, batch: int, rate: float, *, tail: bool) -> float:
    """What these calls take at least, whoever makes them: one after the other into the server, and each sample's."""
    asked = [list(calls(flow, sid, batch, rate)) for sid in range(batch)]

    def longest(sid: int) -> float:
        each = [ADMISSION_SECONDS + LATENCY_SECONDS + (tail_ms(a, sid, n) / 1000 if tail else 0) for a, n in asked[sid]]
        return sum(each) if flow != "parallel" else max(each[:2]) + each[2]

    n_calls = sum(map(len, asked))
    return max(n_calls * ADMISSION_SECONDS + LATENCY_SECONDS, *map(longest, range(batch)))
