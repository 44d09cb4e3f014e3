"""Agents on real stores, environments and servers, many at once."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from guessing import Bisecting, Games, GuessingGame, Lines, scripted
from leaks import no_leaks
from outrider import Context, Runner, Store, open_store
from outrider.agent import AgentFunction, ChatAgent, EpisodeKit, ReActAgent, agent_of
from outrider.core.chat import assistant, user
from outrider.core.errors import Boundary
from outrider.core.event import EventKind
from outrider.core.rollout import Rollout
from outrider.core.status import RolloutStatus
from outrider.core.turn import turns_of
from outrider.env import Environments
from outrider.env.registry import bundled_tasks, environments_of
from outrider.policy import ChatPolicy, PolicySpec, open_policy
from outrider.testing import ModelServer, eventually

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "agents"


async def run(
    store: Store,
    policy: ChatPolicy,
    environments: Mapping[str, Environments],
    agent: AgentFunction | None = None,
    *,
    n_workers: int = 2,
    at_once: int = 50,
) -> list[Rollout]:
    """Work through all that is enqueued, and close what it took."""
    kit = EpisodeKit(policy=policy, environments=environments, agent=agent or ChatAgent())
    ids = [rollout.rollout_id for rollout in await store.query_rollouts(limit=10_000)]
    runners = [
        Runner(store, episodes=kit.episodes, worker_id=i, max_env_num_per_worker=at_once) for i in range(n_workers)
    ]

    async def end() -> None:
        await store.wait_for_rollouts(ids, timeout=60)
        for runner in runners:
            runner.stop()

    try:
        async with asyncio.TaskGroup() as group:
            for runner in runners:
                group.create_task(runner.iter())
            group.create_task(end())
    finally:
        await policy.close()
        for one in environments.values():
            await one.close()
    return sorted(await store.query_rollouts(limit=10_000), key=lambda rollout: rollout.rollout_id)


async def replies(store: Store, rollout_id: str) -> list[Any]:
    return [event.data["reply"] for event in await store.query_events(rollout_id, kind=EventKind.TURN)]


async def lakes(store: Store, n: int, run: str = "run") -> None:
    for i, task in enumerate(bundled_tasks("FrozenLake", limit=n, seed=1)):
        await store.enqueue_rollout(
            task.as_input(),
            rollout_id=f"{run}/r{i:03}",
            tag="FrozenLake",
            seed=task.metadata["seed"],
            metadata={"run": run, "task_id": task.task_id, "sample": 0},
        )


async def test_the_solver_crosses_every_frozen_lake(store: Store):
    await lakes(store, 40)
    done = await run(
        store, await open_policy(PolicySpec(model="builtin:solver")), {"FrozenLake": environments_of("FrozenLake")}
    )
    assert Counter((rollout.status, rollout.reward) for rollout in done) == {(RolloutStatus.SUCCEEDED, 1.0): 40}


async def test_a_noisy_run_is_replayed_without_its_model(store: Store, tmp_path: Path):
    recording = str(tmp_path / "calls.jsonl")
    noisy = PolicySpec(model="builtin:noisy?p=0.5", record_to=recording)
    await lakes(store, 20)
    first = await run(store, await open_policy(noisy), {"FrozenLake": environments_of("FrozenLake")})
    assert len({rollout.reward for rollout in first}) > 1

    async with open_store(f"sqlite:///{tmp_path / 'again.db'}") as again:
        await lakes(again, 20, run="again")
        second = await run(
            again,
            await open_policy(PolicySpec(model=f"replay:{recording}")),
            {"FrozenLake": environments_of("FrozenLake")},
            n_workers=1,
            at_once=3,
        )
        assert [rollout.reward for rollout in second] == [rollout.reward for rollout in first]
        for one, other in zip(first, second, strict=True):
            assert one.rollout_id != other.rollout_id
            assert await replies(again, other.rollout_id) == await replies(store, one.rollout_id)


async def test_the_built_in_solver_answers_questions_with_the_calculator(store: Store):
    tasks = bundled_tasks("math", limit=5)
    for task in tasks:
        await store.enqueue_rollout(task.as_input(), tag="math")
    done = await run(store, await open_policy(PolicySpec(model="builtin:solver")), {"math": environments_of("math")})
    assert Counter((rollout.status, rollout.reward) for rollout in done) == {(RolloutStatus.SUCCEEDED, 1.0): 5}


async def test_hundreds_of_episodes_at_once_keep_their_conversations_apart(store: Store):
    for i in range(300):
        await store.enqueue_rollout({"question": f"Number {i}?"}, rollout_id=f"g{i}", tag="g", seed=i)
    done = await run(store, scripted(Bisecting()), {"g": Games(GuessingGame)}, at_once=150)
    assert Counter(rollout.reward for rollout in done) == {1.0: 300}
    for i in range(0, 300, 37):
        turns = turns_of(await store.query_events(f"g{i}"))
        assert turns[-1].request[1] == user(f"Number {i}?")
        assert len(turns[-1].request) == 2 * len(turns)


@pytest.mark.parametrize("agent", [ChatAgent(), ReActAgent()])
async def test_a_model_behind_http_plays_with_tools_and_in_words(
    store: Store, agent: AgentFunction, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for i in range(10):
        await store.enqueue_rollout({}, tag="g", seed=i)
    async with no_leaks(), ModelServer(scripted(Bisecting())) as server:
        policy = await open_policy(PolicySpec(model="test-model", base_urls=(server.base_url,)))
        done = await run(store, policy, {"g": Games(GuessingGame)}, agent)
    assert Counter((rollout.reward, rollout.failure) for rollout in done) == {(1.0, None): 10}


async def test_a_cancelled_rollout_stops_its_model_call_and_closes_its_environment(store: Store):
    rollout = await store.enqueue_rollout({}, tag="g")
    games = Games(GuessingGame)
    asked, ended = asyncio.Event(), asyncio.Event()

    async def agent(task: Any, ctx: Context) -> None:
        asked.set()
        try:
            await ctx.policy.complete(ctx.opening)
        finally:
            ended.set()

    kit = EpisodeKit(policy=scripted(Lines("7"), latency=600.0), environments={"g": games}, agent=agent)
    runner = Runner(store, episodes=kit.episodes)
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.iter())
        await asyncio.wait_for(asked.wait(), 10)
        await store.cancel_rollouts([rollout.rollout_id])
        await asyncio.wait_for(ended.wait(), 10)

        async def is_closed() -> bool:
            return bool(games.made[0].closed)

        await eventually(is_closed)
        runner.stop()
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    assert found.status == RolloutStatus.CANCELLED


async def test_what_happened_before_a_failure_is_kept(store: Store):
    class Falling(GuessingGame):
        async def step(self, action: Any) -> Any:
            raise OSError("the world fell over")

    await store.enqueue_rollout({}, rollout_id="f", tag="g")
    lines = Lines(assistant("one"))
    [rollout] = await run(store, scripted(lines), {"g": Games(Falling)})
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.stage) == (Boundary.ENV, "env.step")
    assert [event.kind for event in await store.query_events("f")] == [EventKind.STEP, EventKind.TURN]
    assert rollout.n_attempts == 3


@pytest.mark.parametrize("name", ["voting:vote", "second_thoughts:SecondThoughts"])
async def test_the_examples_run(store: Store, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    await lakes(store, 3)
    done = await run(
        store,
        await open_policy(PolicySpec(model="builtin:solver")),
        {"FrozenLake": environments_of("FrozenLake")},
        agent_of(name),
    )
    assert [rollout.failure for rollout in done] == [None] * 3
    [*_, result] = await store.query_events(done[0].rollout_id)
    assert result.data["metrics"]["turns"] > 1
