"""What a rollout may say of its own in its metadata, and what is counted of an attempt."""

import asyncio
from typing import Any

import pytest

from guessing import Games, GuessingGame, Watched, memory, play, scripted
from outrider import Context
from outrider.agent import EpisodeKit
from outrider.agent.limits import TurnLimits
from outrider.agent.recorder import Recorder
from outrider.agent.spending import Spending
from outrider.core.chat import assistant
from outrider.core.clock import SystemClock
from outrider.core.errors import AgentError, Boundary
from outrider.core.event import EventKind
from outrider.core.ledger import PIN_KEY, SAMPLING_KEY
from outrider.policy import Completion, Sampling, Usage


async def asking(task: Any, ctx: Context) -> None:
    await ctx.policy.complete(ctx.opening)


async def test_a_rollout_s_own_sampling_goes_before_that_of_the_worker():
    policy = Watched(scripted())
    own = {"temperature": 0.0, "max_tokens": 7}
    await play(policy, asking, sampling=Sampling(temperature=1.0, top_p=0.5), metadata={SAMPLING_KEY: own})
    [sampling] = policy.samplings
    assert sampling == Sampling(temperature=0.0, top_p=0.5, max_tokens=7)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({SAMPLING_KEY: {"temprature": 1.0, "heat": 2}}, "sampling has no heat, temprature; there are temperature"),
        ({SAMPLING_KEY: {"temperature": "hot"}}, "Expected `float"),
        ({SAMPLING_KEY: 3}, "give names and values"),
        ({PIN_KEY: "two"}, "give the number of a version"),
    ],
)
async def test_what_cannot_be_meant_is_a_failure_that_names_it(metadata: dict[str, Any], message: str):
    policy = Watched(scripted())
    played = await play(policy, asking, metadata=metadata)
    assert played.rollout.failure is not None
    assert played.rollout.failure.boundary is Boundary.AGENT
    assert message in played.rollout.failure.message
    assert policy.requests == []


def test_spending_adds_up_and_keeps_the_first_and_the_last_version():
    spending = Spending()
    spending.reset(2.0)
    for version in (3, 4, 6):
        usage = Usage(prompt_tokens=10, completion_tokens=5)
        spending.turn(Completion(message=assistant(), usage=usage, policy_version=version), 0.5)
        spending.step(0.25)
    account = spending.account(
        n_bytes=99, held_seconds=1.5, metrics={"success": 1, "turns": 3.0, "nan": float("nan"), "text": "no"}
    )
    assert (account.n_turns, account.n_steps) == (3, 3)
    assert (account.prompt_tokens, account.completion_tokens) == (30, 15)
    assert (account.first_version, account.last_version) == (3, 6)
    assert (account.reset_seconds, account.held_seconds) == (2.0, 1.5)
    assert (account.model_seconds, account.env_seconds, account.n_bytes) == (1.5, 0.75, 99)
    assert account.metrics == {"success": 1.0}, "numbers only, and none that stands there already"
    assert spending.metrics["env_seconds"] == 2.75


def test_an_attempt_that_did_nothing_has_an_account_of_nothing():
    account = Spending().account(n_bytes=0, held_seconds=0.0, metrics={})
    assert account.first_version is None
    assert account.completion_tokens == 0


async def test_a_model_call_that_an_agent_leaves_behind_is_cut_off_with_the_attempt():
    began, left = asyncio.Event(), []

    class Slow(Watched):
        async def complete(self, *args: Any, **kwargs: Any) -> Completion:
            began.set()
            await asyncio.sleep(60)
            raise AssertionError

    async def careless(task: Any, ctx: Context) -> float:
        left.append(asyncio.create_task(asking(task, ctx)))
        await began.wait()
        return 1.0

    played = await play(Slow(scripted()), careless)

    assert played.rollout.reward == 1.0
    await asyncio.wait(left, timeout=5)
    assert left[0].cancelled()
    assert played.of(EventKind.TURN) == []


async def test_no_model_call_is_made_for_an_attempt_that_has_ended():
    contexts: list[Context] = []

    async def keeping(task: Any, ctx: Context) -> None:
        contexts.append(ctx)
        await asking(task, ctx)

    policy = Watched(scripted())
    await play(policy, keeping)
    with pytest.raises(AgentError, match="the attempt has ended"):
        await asking(None, contexts[0])
    assert len(policy.requests) == 1


async def test_a_turn_that_cannot_be_recorded_is_counted_all_the_same():
    async with memory() as store:
        claimed = await store.start_rollout({"question": ""}, worker_id=1)
        recorder = Recorder(store, claimed.rollout_id, claimed.attempt.attempt_id)
        ctx = Context(claimed, recorder, SystemClock(), limits=TurnLimits())
        policy = Watched(scripted())
        kit = EpisodeKit(policy=policy, environments={"": Games(GuessingGame)}, agent=asking)
        episode = kit.episodes(ctx)
        await episode.boot(ctx)
        await episode.setup(ctx)
        recorder.add = _refusing  # type: ignore[method-assign]
        with pytest.raises(Exception, match="disk"):
            await episode.act(ctx)
        account = ctx.spending.account(n_bytes=recorder.n_bytes, held_seconds=0.0, metrics={})
        assert account.n_turns == 1
        assert account.completion_tokens > 0
        assert account.n_bytes > 0


def _refusing(event: object) -> None:
    raise OSError("disk")
