"""Switches, windows, and the time that calls take change how long a team takes, never its rows, whatever fails."""

import asyncio
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from outrider.core.chat import Message
from outrider.core.errors import AttemptError, ContextOverflow, PolicyError
from outrider.orchestra import Agent, BatchResult, Eviction, Orchestra, Performance, Tag, Team, VerdictRule
from outrider.policy import Completion
from outrider.testing import LoopClock, run_virtual
from playing import Speaker, draw
from soaking import examples

N_SAMPLES = 10
SWITCHES = (
    "enable_early_termination",
    "enable_agent_skip",
    "enable_preprocessing_cache",
    "enable_parallel_agents",
    "batch_synchronous",
)
SECONDS = (0.3, 2.0, 0.1, 1.1, 0.7)

AGENTS = [
    Agent(name="info", prompt="info {question}"),
    Agent(name="plan", prompt="plan {question} {context}", reads=("info",)),
    Agent(name="solver", prompt="solve {question} round {round} {context}", parse=Tag("answer"), max_context_tokens=60),
    Agent(name="critic", prompt="critic {context}", reads=("solver",), parse=VerdictRule(), max_context_tokens=50,
          eviction=Eviction.LONGEST),
    Agent(name="judge", prompt="judge {context}", reads=("solver", "critic"), max_context_tokens=80),
]  # fmt: skip


async def play(team: Team) -> str:
    await team.gather("info", "plan")
    for _ in team.rounds(3):
        solved = await team.call("solver")
        team.approve(await team.call("critic"))
    for _ in team.rounds(2):
        solved = await team.call("solver")
    answer = await team.first("solver", "judge", "solver", accept=lambda reply: reply.value is not None)
    several = await team.quorum(2, "judge", "solver", "judge", accept=lambda reply: len(reply.text) % 2 == 0)
    branches = await team.parallel(_branch, _branch)
    last = await team.call("judge", route="final")
    return f"{solved.text} {answer and answer.id} {[reply.id for reply in several]} {branches} {last.text}"


async def _branch(team: Team) -> str:
    await team.call("info")
    for _ in team.rounds(2):
        team.approve(await team.call("critic"))
    return (await team.call("solver")).id


def says(prompt: str, seed: int) -> str:
    """What is said follows from what was asked and the seed."""
    rng = draw(prompt, seed)
    if prompt.startswith("critic"):
        return rng.choice(["<verify>yes</verify>", "<verify>no</verify>", "no tag", "<verify>yes or no</verify>"])
    words = " ".join(rng.choice(["river", "stone", "bird"]) for _ in range(rng.randrange(1, 12)))
    return f"<answer>{words}</answer>" if prompt.startswith("solve") and rng.random() < 0.5 else words


def played(seconds: Sequence[float], window: int, **switches: bool) -> BatchResult:
    async def run() -> BatchResult:
        speaker = Speaker(says, lambda n: seconds[n % len(seconds)])
        orchestra = Orchestra(AGENTS, play, performance=Performance(**switches))
        tasks = [f"question {n}" for n in range(N_SAMPLES)]
        return await orchestra.run(tasks, policy=speaker, window=window, clock=LoopClock(), seed=7)

    return run_virtual(run(), limit_seconds=10_000)


def results(result: BatchResult) -> tuple[object, object]:
    return result.rows, result.outcomes


PLAIN = played([1.0], N_SAMPLES)


def test_the_plain_run_has_all_kinds_of_rows():
    assert {row.agent for row in PLAIN.rows} == {agent.name for agent in AGENTS}
    assert {row.verdict for row in PLAIN.rows} >= {"", "approve", "reject", "malformed", "ambiguous"}
    assert any(row.dropped for row in PLAIN.rows)
    assert sum(row.agent == "critic" and row.round == 0 and row.verdict == "approve" for row in PLAIN.rows) > 1
    assert all(outcome.failure is None for outcome in PLAIN.outcomes)


@settings(max_examples=examples(20))
@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=40), st.integers(1, 2 * N_SAMPLES))
def test_rows_do_not_depend_on_how_long_calls_take_or_how_many_samples_are_under_way(seconds: list[float], window: int):
    assert results(played(seconds, window)) == results(PLAIN)


def test_rows_do_not_depend_on_switches():
    for values in product((True, False), repeat=len(SWITCHES)):
        switches = dict(zip(SWITCHES, values, strict=True))
        assert results(played(SECONDS, 3, **switches)) == results(PLAIN), switches


class Troubled(Speaker):
    """Some calls fail in one of many ways or never end: which, follows from what was asked and the trouble's number."""

    def __init__(self, trouble: int, seconds: Sequence[float]) -> None:
        super().__init__(says, lambda n: seconds[n % len(seconds)])
        self._trouble = trouble

    async def complete(self, messages: Sequence[Message], **asked: Any) -> Completion:
        completion = await super().complete(messages, **asked)
        sampling = asked["sampling"]
        rng = draw(self._trouble, messages[-1].content, sampling and sampling.seed)
        if rng.random() > TROUBLE:
            return completion
        match rng.choice(["raises", "times out", "is refused", "is too long", "is cancelled", "hangs", "nonsense"]):
            case "raises":
                raise RuntimeError("the server is gone")
            case "times out":
                raise TimeoutError
            case "is refused":
                raise PolicyError("not now", stage="server")
            case "is too long":
                raise ContextOverflow("too many words")
            case "is cancelled":
                raise asyncio.CancelledError
            case "hangs":
                await asyncio.sleep(FOR_EVER)
        return replace(completion, message=replace(completion.message, content=NONSENSE))


TROUBLE = 0.06
NONSENSE = "nonsense"
FOR_EVER = 1e9
DEADLINE = 10_000.0
N_TROUBLED = 6
N_TROUBLES = 8


def read(text: str) -> str:
    if text == NONSENSE:
        raise ValueError(text)
    return text


TROUBLED = [*AGENTS, Agent(name="reader", prompt="read {question} {round} {context}", parse=read)]


async def play_on(team: Team) -> str:
    """A program that goes on after failures, and sometimes does not."""
    said = []
    for _ in team.rounds(3):
        for group in (("info", "reader", "plan"), ("reader", "reader", "solver", "info")):
            try:
                said += [reply.id for reply in await team.gather(*group)]
            except ContextOverflow:
                raise
            except AttemptError as exc:
                said.append(str(exc))
        team.approve(await team.call("critic"))
    try:
        said += await team.parallel(_branch, _nested, _branch)
    except AttemptError as exc:
        said.append(str(exc))
    for group in (("reader", "solver"), ("reader", "reader", "info")):
        found = await team.first(*group, accept=lambda reply: len(reply.text) % 2 == 0)
        said.append("none" if found is None else found.id)
    return " ".join([*said, (await team.call("judge")).text])


async def _nested(team: Team) -> str:
    for _ in team.rounds(2):
        inner = await team.parallel(_branch, _branch)
        team.approve(len(inner[0]) % 2 == 0)
    return (await team.call("reader")).id


def troubled(trouble: int, seconds: Sequence[float], window: int, **switches: Any) -> BatchResult:
    async def run() -> BatchResult:
        orchestra = Orchestra(TROUBLED, play_on, performance=Performance(**switches))
        result = await orchestra.run(
            [f"question {n}" for n in range(N_TROUBLED)],
            policy=Troubled(trouble, seconds),
            window=window,
            clock=LoopClock(),
            seed=trouble,
            timeout_seconds=DEADLINE,
            max_attempts=2,
        )
        assert len(asyncio.all_tasks()) == 1
        return result

    return run_virtual(run(), limit_seconds=1e8)


def told(result: BatchResult) -> tuple[object, object]:
    """Rows and outcomes; the lines of code that an error went through are not part of what became of a sample."""
    outcomes = [
        replace(each, failure=each.failure and replace(each.failure, traceback=None)) for each in result.outcomes
    ]
    return result.rows, outcomes


@cache
def plainly_troubled(trouble: int) -> tuple[object, object]:
    return told(troubled(trouble, [1.0], N_SAMPLES))


def test_troubles_end_some_samples_and_others_go_on_after_them():
    outcomes = [each for trouble in range(N_TROUBLES) for each in troubled(trouble, [1.0], N_SAMPLES).outcomes]
    assert {str(each.failure.boundary) for each in outcomes if each.failure is not None} == {"policy", "limit"}
    assert "context" in {each.stop_reason for each in outcomes}
    outputs = " ".join(each.output for each in outcomes if each.output is not None)
    assert [
        said for said in ("not now", "server is gone", NONSENSE, "nobody had cancelled") if said not in outputs
    ] == []


@settings(max_examples=examples(8))
@given(
    trouble=st.integers(0, N_TROUBLES - 1),
    values=st.tuples(*[st.booleans() for _ in SWITCHES]),
    limit=st.sampled_from([None, 100_000]),
    seconds=st.lists(st.floats(0.0, 9.0), min_size=1, max_size=40),
    window=st.integers(1, 2 * N_SAMPLES),
)
def test_rows_and_outcomes_do_not_depend_on_switches_when_calls_fail(
    trouble: int, values: tuple[bool, ...], limit: int | None, seconds: list[float], window: int
):
    switches = dict(zip(SWITCHES, values, strict=True))
    assert told(troubled(trouble, seconds, window, max_context_length=limit, **switches)) == plainly_troubled(trouble)
