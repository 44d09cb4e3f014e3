"""What becomes of a sample, its siblings and its calls when a call, a program or a parser fails."""

import asyncio
import sys
from collections.abc import Callable

import pytest

from outrider.core.errors import PolicyUnusable
from outrider.orchestra import Agent, BatchResult, Orchestra, Performance, Team
from outrider.orchestra.lockstep import Lockstep
from outrider.orchestra.orchestra import Play
from outrider.testing import LoopClock, run_virtual
from playing import Speaker, critics

AGENTS = [Agent(name=name, prompt=f"{name} {{question}} {{context}}") for name in "abc"]
BOTH = pytest.mark.parametrize("parallel", [True, False])


def answers(*broken: str) -> Callable[[str, int], str]:
    """Says who was asked; those that are broken fail."""

    def says(prompt: str, _: int) -> str:
        if prompt[0] in broken:
            raise RuntimeError(f"{prompt[0]} is broken")
        return prompt[0]

    return says


def speaking(seconds: dict[str, float], *broken: str) -> Speaker:
    """Each agent takes its own time."""
    speaker = Speaker(answers(*broken))
    speaker._seconds = lambda n: seconds.get(speaker.prompts[n - 1][0], 1.0)
    return speaker


def played(
    play: Play, speaker: Speaker, *, tasks: tuple[str, ...] = ("q",), timeout: float = 1000.0, **switches: bool
) -> tuple[BatchResult, float]:
    """The result, and how long it took. Nothing is left behind."""

    async def run() -> tuple[BatchResult, float]:
        team = Orchestra(AGENTS, play, performance=Performance(**switches))
        result = await team.run(tasks, policy=speaker, clock=LoopClock(), timeout_seconds=timeout)
        assert len(asyncio.all_tasks()) == 1
        return result, asyncio.get_running_loop().time()

    return run_virtual(run(), limit_seconds=100_000)


@pytest.mark.parametrize("seconds", [1.0, 1e6])
def test_a_spare_call_that_fails_or_hangs_changes_nothing(seconds: float):
    def says(prompt: str, seed: int) -> str:
        if not seed:
            raise RuntimeError("the server is gone")
        return f"{prompt[0]}{seed}"

    async def play(team: Team) -> str:
        await team.call("a")
        return (await team.call("c")).text

    speaker = Speaker(says, lambda n: seconds if n == 3 else 1.0)
    plain, _ = played(play, Speaker(says), tasks=("x", "y"))
    spared, _ = played(play, speaker, tasks=("x", "y"), timeout=50.0, batch_synchronous=True, enable_agent_skip=False)
    assert (spared.rows, spared.outcomes) == (plain.rows, plain.outcomes)
    assert len(speaker.prompts) == 5
    assert plain.rows


def test_a_lockstep_that_fails_ends_the_calls_that_wait_with_its_error(monkeypatch: pytest.MonkeyPatch):
    async def broken(self: Lockstep) -> None:
        raise ZeroDivisionError("a step that cannot be")

    monkeypatch.setattr(Lockstep, "_step", broken)

    async def play(team: Team) -> str:
        return (await team.call("a")).text

    result, _ = played(play, speaking({}), tasks=("x", "y"), batch_synchronous=True)
    for outcome in result.outcomes:
        assert outcome.failure is not None
        assert "a step that cannot be" in outcome.failure.message


def test_a_sample_that_hangs_in_lockstep_costs_no_other_its_time():
    async def play(team: Team) -> str:
        await team.call("a")
        return (await team.call("b")).text

    def seconds(n: int) -> float:
        return 1e6 if "hang" in speaker.prompts[n - 1] else 1.0

    for lockstep in (False, True):
        speaker = Speaker(answers(), seconds)
        result, _ = played(play, speaker, tasks=("hang", "x", "y"), timeout=5.0, batch_synchronous=lockstep)
        assert [outcome.output for outcome in result.outcomes] == [None, "b", "b"]
        assert result.outcomes[0].failure is not None
        assert result.outcomes[0].failure.boundary == "limit"


def test_what_a_sample_leaves_waiting_does_not_stop_the_lockstep():
    left: list[asyncio.Task[object]] = []

    async def play(team: Team) -> str:
        if team.task.question == "careless":
            left.append(asyncio.ensure_future(team.call("b")))
            await asyncio.sleep(0)
            return "gone"
        await asyncio.sleep(1)
        return (await team.call("c")).text

    result, _ = played(play, speaking({}), tasks=("careless", "x"), batch_synchronous=True)
    assert [outcome.output for outcome in result.outcomes] == ["gone", "c"]
    assert left[0].done()


@pytest.mark.parametrize("agent", ["search", "critic"])
async def test_a_call_that_fails_after_approval_changes_no_row(agent: str):
    n_asked = 0

    def says(prompt: str, _: int) -> str:
        nonlocal n_asked
        n_asked += 1
        if n_asked > 2 and prompt.startswith("Search" if agent == "search" else "Judge"):
            raise RuntimeError("too late")
        return "<critic>approve</critic>" if prompt.startswith("Judge") else "found"

    early = await critics().run(["a"], policy=Speaker(says))
    n_asked = 0
    late = await critics(performance=Performance(enable_early_termination=False)).run(["a"], policy=Speaker(says))
    assert n_asked > 2
    assert (late.rows, late.outcomes) == (early.rows, early.outcomes)
    assert len(early.rows) == 2


def test_what_a_program_does_after_approval_is_not_done_again():
    """A round that is not like the one before it would otherwise leave other values behind."""

    async def play(team: Team) -> str:
        said = ""
        for number in team.rounds(3):
            said += (await team.call("abc"[number])).text
            team.note(said)
            team.approve(number == 1)
        return said + (await team.call("c")).text

    plain, _ = played(play, speaking({}))
    late, seconds = played(play, speaking({}), enable_early_termination=False)
    assert (late.rows, late.outcomes) == (plain.rows, plain.outcomes)
    assert plain.outcomes[0].output == "abc"
    assert seconds == 4.0


def test_a_call_for_nothing_that_hangs_fails_no_sample():
    async def play(team: Team) -> str:
        for _ in team.rounds(2):
            said = await team.call("a")
            team.approve(True)
        return said.text + (await team.call("b")).text

    speaker = Speaker(answers(), lambda n: 1e6 if n == 2 else 1.0)
    result, seconds = played(play, speaker, timeout=10.0, enable_early_termination=False)
    assert result.outcomes[0].output == "ab"
    assert seconds == 12.0


@BOTH
def test_the_first_success_wins_though_another_failed(parallel: bool):
    async def play(team: Team) -> str:
        found = await team.first("a", "b", "c", accept=lambda _: True)
        return "" if found is None else found.agent

    speaker = speaking({"b": 5.0, "c": 9.0}, "a")
    result, seconds = played(play, speaker, enable_parallel_agents=parallel)
    assert result.outcomes[0].output == "b"
    assert [row.agent for row in result.rows] == ["b"]
    assert seconds == (5.0 if parallel else 6.0)
    assert speaker.n_cancelled == int(parallel)


@BOTH
@pytest.mark.parametrize("ordered", [True, False])
def test_first_raises_if_all_fail_and_names_each(parallel: bool, ordered: bool):
    async def play(team: Team) -> str:
        await team.first("a", "b", accept=lambda _: True, ordered=ordered)
        return "unreachable"

    result, _ = played(play, speaking({}, "a", "b"), enable_parallel_agents=parallel)
    failure = result.outcomes[0].failure
    assert failure is not None
    assert "a is broken" in failure.message
    assert "b is broken" in failure.message
    assert failure.boundary == "policy"


@BOTH
def test_a_quorum_is_of_those_that_answer(parallel: bool):
    async def play(team: Team) -> str:
        return " ".join([reply.agent for reply in await team.quorum(2, "a", "b", "c", accept=lambda _: True)])

    result, _ = played(play, speaking({}, "b"), enable_parallel_agents=parallel)
    assert result.outcomes[0].output == "a c"
    refused, _ = played(play, speaking({}, "a", "b"), enable_parallel_agents=parallel)
    assert refused.outcomes[0].output == "c"


def test_a_quorum_of_nobody_is_refused():
    async def play(team: Team) -> str:
        return str(await team.quorum(0, "a", accept=lambda _: True))

    result, _ = played(play, speaking({}))
    assert result.outcomes[0].failure is not None
    assert "quorum of 0" in result.outcomes[0].failure.message


@BOTH
def test_a_failed_call_of_several_cuts_off_those_behind_it_and_keeps_those_before_it(parallel: bool):
    async def play(team: Team) -> str:
        with pytest.raises(Exception, match="b is broken"):
            await team.gather("a", "b", "c")
        assert [entry.author for entry in team.context] == ["a"]
        return (await team.call("c")).text

    speaker = speaking({"a": 5.0, "c": 3.0}, "b")
    result, seconds = played(play, speaker, enable_parallel_agents=parallel)
    assert [row.call_id for row in result.rows] == ["a.0.0", "c.0.1"]
    assert seconds == (8.0 if parallel else 9.0)
    assert speaker.n_cancelled == int(parallel)


@BOTH
def test_a_failed_branch_cuts_off_those_behind_it_and_keeps_what_was_said_before(parallel: bool):
    async def good(team: Team) -> str:
        await team.call("a")
        return (await team.call("a")).text

    async def bad(team: Team) -> str:
        await team.call("a")
        await team.call("b")
        return "unreachable"

    async def endless(team: Team) -> str:
        while True:
            await team.call("c")

    async def play(team: Team) -> str:
        with pytest.raises(Exception, match="b is broken"):
            await team.parallel(good, bad, endless)
        return (await team.call("a")).text

    speaker = speaking({"a": 1.0, "b": 5.0, "c": 0.5}, "b")
    result, seconds = played(play, speaker, enable_parallel_agents=parallel)
    assert [row.call_id for row in result.rows] == ["1/a.0.0", "1/a.0.1", "2/a.0.0", "a.0.0"]
    assert result.rows[-1].reads == ("1/a.0.0", "1/a.0.1", "2/a.0.0")
    assert seconds == (7.0 if parallel else 9.0)
    wasted = {agent.agent: agent.n_wasted for agent in result.statistics.agents}
    assert (wasted["a"], wasted["c"] > 5) == (0, parallel)


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_program_that_exits_is_a_failure_of_its_sample(lockstep: bool):
    async def play(team: Team) -> str:
        if team.task.question == "bad":
            sys.exit(2)
        return (await team.call("a")).text

    result, _ = played(play, speaking({"a": 1.0}), tasks=("x", "bad", "y"), batch_synchronous=lockstep)
    assert [str(outcome.failure and outcome.failure.message) for outcome in result.outcomes] == [
        *("None", "SystemExit: 2", "None"),
    ]


@pytest.mark.parametrize("lockstep", [True, False])
def test_what_ends_the_run_ends_it_for_all_samples_and_is_raised_as_it_is(lockstep: bool):
    def no_key(prompt: str, _: int) -> str:
        raise PolicyUnusable("the key is wrong")

    async def ask(team: Team) -> str:
        return (await team.first("a", "b", accept=lambda _: True) or "").text  # type: ignore[union-attr]

    with pytest.raises(PolicyUnusable):
        played(ask, Speaker(no_key), tasks=("x", "y"), batch_synchronous=lockstep)


@BOTH
def test_a_cancellation_that_nobody_asked_for_is_a_failure_of_its_sample(parallel: bool):
    async def play(team: Team) -> str:
        if team.task.question == "bad":
            raise asyncio.CancelledError
        return "".join([reply.text for reply in await team.gather("a", "b")])

    def says(prompt: str, _: int) -> str:
        if "worse" in prompt:
            raise asyncio.CancelledError
        return prompt[0]

    tasks = ("x", "bad", "worse", "y")
    result, _ = played(play, Speaker(says), tasks=tasks, enable_parallel_agents=parallel)
    assert [outcome.output for outcome in result.outcomes] == ["ab", None, None, "ab"]
    assert [str(outcome.failure and outcome.failure.boundary) for outcome in result.outcomes[1:3]] == [
        "agent",
        "policy",
    ]


def test_a_timeout_of_the_program_itself_is_not_that_of_the_sample():
    async def play(team: Team) -> str:
        async with asyncio.timeout(2):
            return (await team.call("a")).text

    result, _ = played(play, speaking({"a": 50.0}))
    assert result.outcomes[0].failure is not None
    assert result.outcomes[0].failure.boundary == "agent"


def test_a_run_that_is_cancelled_leaves_nothing_behind():
    async def branch(team: Team) -> str:
        return (await team.gather("a", "b"))[0].text

    async def play(team: Team) -> str:
        await team.parallel(branch, branch)
        return ""

    async def run(**switches: bool) -> int:
        speaker = speaking({"a": 1e5, "b": 1e5})
        team = Orchestra(AGENTS, play, performance=Performance(**switches))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await team.run(["x", "y"], policy=speaker, clock=LoopClock())
        assert len(asyncio.all_tasks()) == 1
        return speaker.n_running

    for lockstep in (True, False):
        for parallel in (True, False):
            playing = run(batch_synchronous=lockstep, enable_parallel_agents=parallel, enable_agent_skip=False)
            assert run_virtual(playing, limit_seconds=1000) == 0


async def test_a_parser_that_fails_tells_why_in_few_words():
    agents = [Agent(name="a", prompt="{question}", parse=float)]

    async def play(team: Team) -> str:
        return (await team.call("a")).text

    result = await Orchestra(agents, play).run(["x"], policy=Speaker(lambda *_: "no number " * 100_000))
    failure = result.outcomes[0].failure
    assert failure is not None
    assert "parse of agent 'a' failed: ValueError" in failure.message
    assert len(failure.message) < 1000
