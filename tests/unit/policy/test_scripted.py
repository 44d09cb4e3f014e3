import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from guessing import Bisecting, Counting, Lines, call, scripted
from outrider.core.chat import Message, ToolSpec, assistant, system, user
from outrider.core.errors import InvalidInput, PolicyError
from outrider.policy import FinishReason, PolicySpec, Sampling, open_policy
from outrider.policy.scripted.policy import ScriptedPolicy, ScriptOptions, options_of
from outrider.policy.scripted.scripts import bundled_scripts
from outrider.testing import FakeClock
from processes import output_of

COUNTING = (system("A counting game."), user("Count."))


class Coin(Counting):
    """Tells a guess from a solution."""

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        return assistant("solved")

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:
        return assistant(f"guessed {rng.random()}")


async def said(policy: ScriptedPolicy, n_messages: int = 2, seed: int | None = None, session: str = "s") -> str:
    messages = COUNTING + tuple(user("go on") for _ in range(n_messages - 2))
    completion = await policy.complete(messages, sampling=Sampling(seed=seed), session=session)
    return completion.message.content


async def test_the_first_script_that_understands_answers():
    completion = await scripted(Bisecting(), Counting()).complete(COUNTING)
    assert completion.message == assistant("1")
    assert (completion.finish_reason, completion.model) == (FinishReason.STOP, "builtin:test")
    assert completion.usage.prompt_tokens > completion.usage.completion_tokens > 0


async def test_a_tool_call_is_why_a_completion_ends():
    completion = await scripted(Lines(assistant("", (call("guess"),)))).complete(COUNTING)
    assert completion.finish_reason is FinishReason.TOOL_CALLS


async def test_solver_always_solves_and_random_always_guesses():
    assert {await said(scripted(Coin(), p=0.0), n) for n in range(2, 30)} == {"solved"}
    assert "solved" not in {await said(scripted(Coin(), p=1.0), n) for n in range(2, 30)}


async def test_noise_comes_as_often_as_it_should():
    answers = [await said(scripted(Coin(), p=0.3), session=f"s{i}") for i in range(2000)]
    assert 0.25 < sum(answer != "solved" for answer in answers) / 2000 < 0.35


async def test_noise_depends_on_session_seed_and_turn_and_on_nothing_else():
    policy = scripted(Coin(), p=1.0)
    first = await said(policy)
    for _ in range(3):
        await said(policy, session="another")
    assert await said(policy) == first
    assert await said(scripted(Coin(), p=1.0)) == first
    others = [await said(policy, session="t"), await said(policy, seed=1), await said(policy, 3)]
    others.append(await said(scripted(Coin(), p=1.0, seed=7)))
    assert len({first, *others}) == 5


async def test_noise_is_the_same_in_another_process():
    policy = scripted(Counting(), p=1.0, seed=3)
    here = [(await policy.complete(COUNTING, session=f"s{i}")).message.content for i in range(20)]
    source = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from guessing import Counting, scripted
from outrider.core.chat import system, user
async def main():
    policy = scripted(Counting(), p=1.0, seed=3)
    for i in range(20):
        completion = await policy.complete((system("A counting game."), user("Count.")), session=f"s{i}")
        print(completion.message.content)
asyncio.run(main())
"""
    assert output_of(source, str(Path(__file__).parents[2])).split() == here


async def test_an_answer_takes_its_latency_on_the_clock(clock: FakeClock):
    policy = ScriptedPolicy({"c": Counting()}, name="c", options=ScriptOptions(latency=0.5), clock=clock)
    asked = asyncio.ensure_future(policy.complete(COUNTING))
    await clock.advance(0.4)
    assert not asked.done()
    await clock.advance(0.1)
    assert (await asked).message == assistant("1")


async def test_a_call_without_latency_lets_others_run():
    ran = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    await scripted(Counting()).complete(COUNTING)
    assert ran == [1]


async def test_a_conversation_no_script_understands_is_an_error_that_says_what_is_known():
    tools = (ToolSpec(name="fly", description="", parameters={}),)
    with pytest.raises(PolicyError, match=r"knows script 0, but not this .*begins 'Hello' \(tools: fly\)") as caught:
        await scripted(Counting()).complete((user("Hello"),), tools=tools)
    assert caught.value.stage == "policy.complete"
    with pytest.raises(PolicyError, match="tools: none"):
        await scripted(Counting()).complete((user(""),))


async def test_a_script_that_breaks_is_a_failure_of_the_policy():
    class Broken(Counting):
        def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
            raise ZeroDivisionError("oops")

    with pytest.raises(PolicyError, match="ZeroDivisionError: oops"):
        await scripted(Broken()).complete(COUNTING)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("builtin:solver", ScriptOptions()),
        ("builtin:random", ScriptOptions(p=1.0)),
        ("builtin:noisy", ScriptOptions(p=0.3)),
        ("builtin:noisy?p=0.5&seed=4", ScriptOptions(p=0.5, seed=4)),
        ("builtin:solver?latency=0.25", ScriptOptions(latency=0.25)),
        ("builtin:noisy?p=0", ScriptOptions(p=0.0)),
    ],
)
def test_options_stand_behind_the_name(model: str, options: ScriptOptions):
    assert options_of(model) == options


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("builtin:solvr", "did you mean solver"),
        ("builtin:", "there are solver, random, noisy"),
        ("builtin:noisy?latancy=1", "did you mean latency"),
        ("builtin:solver?p=0.5", "solver has no option 'p'"),
        ("builtin:noisy?p=2", "p is 2.0; give 1 at most"),
        ("builtin:noisy?p=nan", "p is nan"),
        ("builtin:noisy?p=x", "p"),
        ("builtin:noisy?p", "p"),
        ("builtin:noisy?&", "option=value"),
        ("builtin:solver?latency=-1", "latency is -1"),
        ("builtin:solver?latency=inf", "latency is inf"),
        ("builtin:solver?seed=1.5", "seed"),
    ],
)
async def test_a_name_option_or_value_that_there_is_not_is_refused(model: str, message: str):
    with pytest.raises(InvalidInput, match=message):
        await open_policy(PolicySpec(model=model))


def test_every_bundled_environment_has_its_script():
    assert list(bundled_scripts()) == ["teams", "games", "math", "rag", "web", "osworld", "python", "greetings"]


def test_scripts_do_not_understand_what_is_not_theirs():
    for script in bundled_scripts().values():
        for messages in ((user("Tell me a story."),), COUNTING, (), (system(""), user(""))):
            assert not script.understands(messages, ())
