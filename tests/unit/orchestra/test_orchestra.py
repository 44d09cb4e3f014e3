"""A team's program over one sample, and over a batch."""

import asyncio

import pytest

from outrider.core.errors import InvalidInput
from outrider.orchestra import Agent, BaseOrchestra, Eviction, Orchestra, Performance, Team, VerdictRule
from outrider.testing import LoopClock, run_virtual
from playing import Speaker, critics


def says(approve_in: int):
    """A critic that approves in this round; the search says which round it is in."""

    def answer(prompt: str, seed: int) -> str:
        if prompt.startswith("Judge round"):
            number = int(prompt.split()[2].strip("."))
            return f"<critic>{'approve' if number >= approve_in else 'reject'}</critic>"
        return f"found {prompt.count('[search')}"

    return answer


async def test_a_team_plays_a_batch_and_gives_its_rows_in_order():
    result = await critics().run(["the moon", "the sun"], policy=Speaker(says(approve_in=2)))
    assert [outcome.output for outcome in result.outcomes] == ["found 1", "found 1"]
    assert [(row.sample, row.call_id, row.verdict) for row in result.rows] == [
        (0, "search.0.0", ""),
        (0, "critic.0.0", "reject"),
        (0, "search.1.0", ""),
        (0, "critic.1.0", "approve"),
        (1, "search.0.0", ""),
        (1, "critic.0.0", "reject"),
        (1, "search.1.0", ""),
        (1, "critic.1.0", "approve"),
    ]
    assert result.rows[2].reads == ("search.0.0", "critic.0.0")
    assert result.rows[0].request[0].content.startswith("Search for the moon.")


async def test_a_sample_that_is_never_approved_still_has_an_answer():
    result = await critics().run(["x"], policy=Speaker(says(approve_in=99)))
    assert result.outcomes[0].output == "found 2"
    assert len(result.rows) == 6


@pytest.mark.parametrize("n_samples", [0, 1, 5])
async def test_any_number_of_samples_is_a_batch(n_samples: int):
    result = await critics().run([f"q{n}" for n in range(n_samples)], policy=Speaker(says(1)), window=2)
    assert len(result.outcomes) == n_samples
    assert len(result.rows) == 2 * n_samples


def test_a_window_bounds_how_many_samples_are_played_at_once():
    async def play() -> int:
        speaker = Speaker(says(1), lambda _: 1.0)
        await critics().run([f"q{n}" for n in range(20)], policy=speaker, window=3, clock=LoopClock())
        return speaker.most_at_once

    assert run_virtual(play(), limit_seconds=100) == 3


async def test_early_termination_saves_calls_and_changes_no_row():
    quick, slow = Speaker(says(1)), Speaker(says(1))
    early = await critics().run(["a", "b"], policy=quick)
    late = await critics(performance=Performance(enable_early_termination=False)).run(["a", "b"], policy=slow)
    assert (len(quick.prompts), len(slow.prompts)) == (4, 12)
    assert early.rows == late.rows
    assert early.outcomes == late.outcomes


def parallel_team(**settings: object) -> Orchestra:
    async def play(team: Team) -> str:
        info, plan = await team.gather("info", "planning")
        return (await team.call("actor", hint=f"{info.text}/{plan.text}")).text

    agents = [
        Agent(name="info", prompt="Info on {question}"),
        Agent(name="planning", prompt="Plan {question} {context}"),
        Agent(name="actor", prompt="Act on {hint}\n{context}", reads=("planning", "info")),
    ]
    return Orchestra(agents, play, **settings)  # type: ignore[arg-type]


def test_agents_that_do_not_need_each_other_are_asked_at_once_and_read_in_declared_order():
    async def play(performance: Performance) -> tuple[object, float]:
        seconds = iter([3.0, 1.0, 1.0])
        speaker = Speaker(lambda prompt, _: prompt.split()[0].lower(), lambda _: next(seconds))
        began = asyncio.get_running_loop().time()
        result = await parallel_team(performance=performance).run(["x"], policy=speaker, clock=LoopClock())
        assert "[info, round 1]\ninfo\n\n[planning, round 1]\nplan" in speaker.prompts[-1]
        return result.rows, asyncio.get_running_loop().time() - began

    at_once, seconds = run_virtual(play(Performance()), limit_seconds=100)
    assert seconds == pytest.approx(4.0)
    in_turn, seconds = run_virtual(play(Performance(enable_parallel_agents=False)), limit_seconds=100)
    assert seconds == pytest.approx(5.0)
    assert at_once == in_turn


def test_the_first_accepted_reply_wins_by_the_order_given_and_the_losers_are_cancelled():
    async def team_play(team: Team) -> str:
        found = await team.first("a", "b", "c", accept=lambda reply: "yes" in reply.text)
        return "none" if found is None else found.agent

    async def play(parallel: bool) -> tuple[object, int]:
        agents = [Agent(name=name, prompt=f"{name} {{question}}") for name in "abc"]
        times = {"a": 2.0, "b": 1.0, "c": 9.0}
        speaker = Speaker(lambda prompt, _: "no" if prompt.startswith("a") else "yes")
        speaker._seconds = lambda n: times[speaker.prompts[n - 1][0]]
        performance = Performance(enable_parallel_agents=parallel)
        result = await Orchestra(agents, team_play, performance=performance).run(
            ["x"], policy=speaker, clock=LoopClock()
        )
        assert result.outcomes[0].output == "b"
        wasted = {one.agent: one.n_wasted for one in result.statistics.agents if one.agent}
        assert wasted == {"a": 0, "b": 0, "c": int(parallel)}
        return result.rows, speaker.n_cancelled

    rows, n_cancelled = run_virtual(play(parallel=True), limit_seconds=100)
    assert n_cancelled == 1
    assert run_virtual(play(parallel=False), limit_seconds=100) == (rows, 0)
    assert [row.agent for row in rows] == ["a", "b"]


async def test_programs_beside_each_other_have_their_own_numbers_and_join_in_order():
    async def solve(team: Team) -> str:
        await team.call("solver")
        return (await team.call("solver")).text

    async def play(team: Team) -> str:
        answers = await team.parallel(solve, solve)
        return (await team.call("judge", answers=" ".join(answers))).text

    agents = [
        Agent(name="solver", prompt="Solve {question} {context}"),
        Agent(name="judge", prompt="{answers} {context}"),
    ]
    speaker = Speaker(lambda prompt, _: str(len(prompt)), lambda n: 0.01 / n)
    result = await Orchestra(agents, play).run(["x"], policy=speaker)
    ids = [row.call_id for row in result.rows]
    assert ids == ["1/solver.0.0", "1/solver.0.1", "2/solver.0.0", "2/solver.0.1", "judge.0.0"]
    assert result.rows[-1].reads == tuple(ids[:4])
    assert result.rows[1].reads == ("1/solver.0.0",)


async def test_a_budget_leaves_out_the_oldest_words_and_tells_which():
    async def play(team: Team) -> str:
        for _ in team.rounds(3):
            await team.call("talker")
        return (await team.call("reader")).text

    agents = [
        Agent(name="talker", prompt="Talk"),
        Agent(name="reader", prompt="{question} {context}", max_context_tokens=40, eviction=Eviction.OLDEST),
    ]
    speaker = Speaker(lambda prompt, _: "word " * 12)
    result = await Orchestra(agents, play).run(["question"], policy=speaker)
    last = result.rows[-1]
    assert last.reads == ("talker.2.0",)
    assert last.dropped == ("talker.0.0", "talker.1.0")
    assert last.request[-1].content.startswith("question ")


async def test_a_budget_smaller_than_the_question_is_a_failure_of_that_sample_alone():
    agents = [Agent(name="a", prompt="{question}", max_context_tokens=5)]

    async def play(team: Team) -> str:
        return (await team.call("a")).text

    result = await Orchestra(agents, play).run(["short", "long " * 50], policy=Speaker(lambda *_: "ok"))
    assert result.outcomes[0].failure is None
    failure = result.outcomes[1].failure
    assert failure is not None
    assert (failure.boundary, "raise max_context_tokens" in failure.message) == ("agent", True)


async def test_one_failing_sample_agent_or_tool_stops_no_other():
    def answer(prompt: str, _: int) -> str:
        if "bad" in prompt:
            raise RuntimeError("the server is gone")
        return "<critic>approve</critic>" if prompt.startswith("Judge") else "found"

    result = await critics().run(["good", "bad", "fine"], policy=Speaker(answer), max_attempts=2)
    assert [outcome.failure is None for outcome in result.outcomes] == [True, False, True]
    assert result.outcomes[1].n_attempts == 2
    assert {row.sample for row in result.rows} == {0, 2}


def test_a_sample_that_takes_too_long_is_cut_off():
    async def play() -> None:
        speaker = Speaker(says(1), lambda n: 60.0 if n == 1 else 0.1)
        result = await critics().run(["slow", "quick"], policy=speaker, timeout_seconds=5, clock=LoopClock())
        assert result.outcomes[0].failure is not None
        assert result.outcomes[0].failure.boundary == "limit"
        assert result.outcomes[1].failure is None

    run_virtual(play(), limit_seconds=100)


async def test_a_malformed_verdict_is_no_approval_and_is_told():
    def answer(prompt: str, _: int) -> str:
        return "I think it is fine" if prompt.startswith("Judge") else "found"

    result = await critics().run(["x"], policy=Speaker(answer))
    assert [row.verdict for row in result.rows if row.agent == "critic"] == ["malformed"] * 3


async def test_different_agents_may_ask_different_policies():
    agents = [Agent(name="a", prompt="{question}"), Agent(name="b", prompt="{context}", policy="big")]

    async def play(team: Team) -> str:
        await team.call("a")
        return (await team.call("b")).text

    orchestra = Orchestra(agents, play)
    small, big = Speaker(lambda *_: "small"), Speaker(lambda *_: "big")
    result = await orchestra.run(["x"], policy=small, policies={"big": big})
    assert (result.outcomes[0].output, len(small.prompts), len(big.prompts)) == ("big", 1, 1)
    assert [row.policy for row in result.rows] == ["", "big"]
    with pytest.raises(InvalidInput, match="policy 'big', which was not given"):
        await orchestra.run(["x"], policy=small)


@pytest.mark.parametrize(
    ("agents", "settings", "says"),
    [
        ([], {}, "a team needs an agent"),
        ([Agent(name="a", prompt=""), Agent(name="a", prompt="")], {}, "two agents are named 'a'"),
        ([Agent(name="search", prompt="", reads=("serch",))], {}, "did you mean 'search'"),
        ([Agent(name="a", prompt="")], {"needs": {"a": ["b"]}}, "the unknown agent 'b'"),
        (
            [Agent(name=name, prompt="") for name in "abc"],
            {"needs": {"a": ["b"], "b": ["c"], "c": ["a"]}},
            "a → b → c → a",
        ),
    ],
)
def test_a_team_that_cannot_be_is_refused(agents: list[Agent], settings: dict[str, object], says: str):
    with pytest.raises(InvalidInput, match=says):
        Orchestra(agents, play_nothing, **settings)  # type: ignore[arg-type]


async def play_nothing(team: Team) -> None:
    """Asks nobody."""


def test_a_team_needs_a_program():
    with pytest.raises(TypeError, match="abstract"):
        BaseOrchestra([Agent(name="a", prompt="")])  # type: ignore[abstract]


async def test_an_unknown_agent_is_named_with_the_nearest():
    async def play(team: Team) -> str:
        return (await team.call("serch")).text

    result = await Orchestra([Agent(name="search", prompt="")], play).run(["x"], policy=Speaker(says(1)))
    assert result.outcomes[0].failure is not None
    assert "did you mean 'search'?" in result.outcomes[0].failure.message


async def test_agents_of_which_one_needs_the_other_are_not_asked_at_once():
    async def play(team: Team) -> str:
        await team.gather("a", "b")
        return ""

    team = Orchestra([Agent(name="a", prompt=""), Agent(name="b", prompt="")], play, needs={"b": ["a"]})
    result = await team.run(["x"], policy=Speaker(says(1)))
    assert result.outcomes[0].failure is not None
    assert "'b' needs 'a' to have spoken" in result.outcomes[0].failure.message


async def test_a_document_with_a_place_in_it_stays_as_it_is():
    agents = [Agent(name="a", prompt='{"role": "a"} {question}'), Agent(name="b", prompt="{context}")]

    async def play(team: Team) -> str:
        await team.call("a")
        return (await team.call("b")).text

    speaker = Speaker(lambda prompt, _: "see {question} and {context}")
    await Orchestra(agents, play).run(["why {round}?"], policy=speaker)
    assert speaker.prompts[0] == '{"role": "a"} why {round}?'
    assert "see {question} and {context}" in speaker.prompts[1]


def test_a_batch_in_lockstep_takes_each_step_together_and_gives_the_same_rows():
    def answer(prompt: str, seed: int) -> str:
        if prompt.startswith("Judge"):
            return f"<critic>{'approve' if seed % 3 == 0 else 'reject'}</critic>"
        return f"found {seed}"

    async def play(**switches: bool) -> tuple[object, Speaker]:
        speaker = Speaker(answer, lambda n: 0.1 * (n * 7 % 10))
        orchestra = critics(performance=Performance(**switches))
        result = await orchestra.run([f"q{n}" for n in range(12)], policy=speaker, clock=LoopClock())
        return result.rows, speaker

    rows, free = run_virtual(play(), limit_seconds=1000)
    same, locked = run_virtual(play(batch_synchronous=True), limit_seconds=1000)
    assert same == rows
    assert len(free.prompts) == len(locked.prompts)
    kinds = [prompt.split()[0] for prompt in locked.prompts]
    assert kinds == sorted(kinds[:24], key=lambda kind: kind != "Search") + kinds[24:]
    spent, spare = run_virtual(play(batch_synchronous=True, enable_agent_skip=False), limit_seconds=1000)
    assert spent == rows
    assert len(spare.prompts) >= len(locked.prompts)


def test_a_verdict_rule_is_a_parser():
    assert VerdictRule()("<verify>yes</verify>").approved
