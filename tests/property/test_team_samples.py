"""What a team is trained on does not depend on which of its calls ended first, nor on who played it."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.orchestra import Agent, Orchestra, Performance, Team, VerdictRule
from outrider.train import SampledTrajectory, SampleReport
from playing import draw
from soaking import examples
from speaking import TokenSpeaker, play_team, team_kit

N_TASKS = 3
AGENTS = [
    Agent(name="info", prompt="info {question}", policy="helper"),
    Agent(name="plan", prompt="plan {question} {context}"),
    Agent(name="solver", prompt="solve {question} {context}", max_context_tokens=80),
    Agent(name="critic", prompt="critic {context}", reads=("solver",), parse=VerdictRule(), policy="helper"),
]


async def play(team: Team) -> str:
    await team.gather("info", "plan", "info")
    for _ in team.rounds(2):
        await team.call("solver", route="try")
        team.approve(await team.call("critic"))
    await team.first("plan", "solver", "plan", accept=lambda reply: len(reply.text) % 2 == 0)
    answers = await team.parallel(_branch, _branch)
    return " ".join(answers)


async def _branch(team: Team) -> str:
    found, _ = await team.gather("solver", "critic")
    return found.text


def says(prompt: str, seed: int) -> str:
    rng = draw(prompt, seed)
    if prompt.startswith("critic"):
        return rng.choice(["<verify>yes</verify>", "<verify>no</verify>", "no tag"])
    return " ".join(rng.choice(["river", "stone", "bird"]) for _ in range(rng.randrange(1, 9)))


def played(seconds: Sequence[float], *, early: bool = True, **workers: int) -> list[SampledTrajectory]:
    policies = {name: TokenSpeaker(says, lambda n: seconds[n % len(seconds)]) for name in ("", "helper")}
    team = Orchestra(AGENTS, play, performance=Performance(enable_early_termination=early))
    return play_team(team_kit(team, policies), N_TASKS, **workers)


def without_waste(found: Sequence[SampledTrajectory]) -> list[SampledTrajectory]:
    """How much was thrown away does depend on who was quicker."""

    def clean(report: SampleReport) -> SampleReport:
        return replace(report, n_unused=0, n_unused_tokens=0)

    return [replace(one, reports={name: clean(report) for name, report in one.reports.items()}) for one in found]


PLAIN = played([1.0])


def test_the_plain_run_has_samples_of_all_kinds():
    calls = [call for one in PLAIN for sample in one.samples for call in sample.calls]
    assert {sample.agent for one in PLAIN for sample in one.samples} == {agent.name for agent in AGENTS}
    assert {call.verdict for call in calls} >= {"", "approve", "reject", "malformed"}
    assert {call.policy for call in calls} == {"", "helper"}
    assert {call.round for call in calls} == {0, 1}
    assert any(call.dropped for call in calls)
    late = played([1.0], early=False)
    assert sum(one.report.n_unused for one in late) > sum(one.report.n_unused for one in PLAIN)


@settings(max_examples=examples(12))
@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=30), st.booleans(), st.sampled_from([(1, 1), (1, 4), (3, 2)]))
def test_samples_are_the_same_whatever_the_time_calls_take_and_whoever_plays(
    seconds: list[float], early: bool, workers: tuple[int, int]
):
    found = played(seconds, early=early, n_workers=workers[0], slots=workers[1])
    assert without_waste(found) == without_waste(PLAIN)
