"""Switches, windows, and the time that calls take change how long a team takes, never its rows."""

from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from outrider.orchestra import Agent, BatchResult, Eviction, Orchestra, Performance, Tag, Team, VerdictRule
from outrider.testing import LoopClock, run_virtual
from playing import Speaker, draw

N_SAMPLES = 10
SWITCHES = ("enable_early_termination", "enable_agent_skip", "enable_preprocessing_cache", "enable_parallel_agents")

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


@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=40), st.integers(1, 2 * N_SAMPLES))
def test_rows_do_not_depend_on_how_long_calls_take_or_how_many_samples_are_under_way(seconds: list[float], window: int):
    assert results(played(seconds, window)) == results(PLAIN)


def test_rows_do_not_depend_on_switches():
    seconds = [0.3, 2.0, 0.1, 1.1, 0.7]
    for values in product((True, False), repeat=len(SWITCHES)):
        for batch_synchronous in (True, False):
            switches = dict(zip(SWITCHES, values, strict=True))
            found = played(seconds, 3, **switches, batch_synchronous=batch_synchronous)
            assert results(found) == results(PLAIN), (switches, batch_synchronous)
