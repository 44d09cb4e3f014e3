import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from guessing import (
    Bisecting,
    CountingGame,
    Failing,
    Games,
    GuessingGame,
    Lines,
    Watched,
    call,
    memory,
    play,
    result_of,
    scripted,
)
from outrider import Context, Result, Runner
from outrider.agent import ChatAgent, EpisodeKit, StopReason
from outrider.core.chat import Message, ToolSpec, assistant, user
from outrider.core.errors import Boundary, ContextOverflow, InvalidInput, PolicyError
from outrider.core.event import EventKind
from outrider.core.task import Task
from outrider.core.turn import RESET, step_of, turn_of, turns_of
from outrider.env import Observation, Score, Step
from outrider.policy import ChatPolicy, Completion, Sampling, Tokens, Usage


async def asking(task: Any, ctx: Context) -> None:
    await ctx.policy.complete(ctx.opening)


async def test_turns_and_steps_are_recorded_and_unfold_to_what_the_model_was_shown():
    policy = Watched(scripted())
    played = await play(policy, seed=4)

    turns = turns_of(played.events)
    assert [turn.request for turn in turns] == policy.requests
    assert len(turns) > 2
    assert all(len(turn.record.added) == 0 for turn in turns), "only what is new is recorded"
    steps = played.of(EventKind.STEP)
    assert [step.name for step in steps] == [RESET] + [""] * len(turns)
    assert step_of(steps[0]).observation == policy.requests[0]
    assert step_of(steps[-1]).terminated
    assert step_of(steps[-1]).info == {"n_guesses": len(turns)}
    assert policy.tools == [Games(GuessingGame).make(Task(task_id="")).tools] * len(turns)


async def test_a_turn_holds_all_that_the_policy_told():
    completion = Completion(
        message=assistant("7"),
        usage=Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1),
        tokens=Tokens(prompt_ids=b"\0" * 4, completion_ids=b"\1" * 4, logprobs=b"\2" * 4),
        model="m",
        policy_version=5,
        n_retries=2,
    )

    class Fixed(Watched):
        async def complete(self, messages: Sequence[Message], **_: Any) -> Completion:
            return completion

    played = await play(Fixed(scripted()), asking)
    [event] = played.of(EventKind.TURN)
    record = turn_of(event)
    assert (record.kept, record.added, record.reply) == (2, (), completion.message)
    assert record.tokens == {"prompt_ids": b"\0" * 4, "completion_ids": b"\1" * 4, "logprobs": b"\2" * 4}
    assert (record.model, record.policy_version, record.n_retries) == ("m", 5, 2)
    metrics = result_of(played)["metrics"]
    assert metrics.items() >= {
        ("turns", 1.0),
        ("prompt_tokens", 3.0),
        ("completion_tokens", 2.0),
        ("cached_tokens", 1.0),
        ("retries", 2.0),
        ("guesses", 0.0),
    }
    assert metrics["model_seconds"] >= 0
    assert metrics["env_seconds"] >= 0


async def test_calls_made_at_once_unfold_in_the_order_in_which_they_ended():
    policy = Watched(scripted(Lines("a", "b")))

    async def branching(task: Any, ctx: Context) -> float:
        async with asyncio.TaskGroup() as group:
            for text in "xyz":
                group.create_task(ctx.policy.complete((*ctx.opening, user(text))))
        await ctx.policy.complete(ctx.opening)
        return 1.0

    played = await play(policy, branching)
    assert sorted(map(repr, policy.requests)) == sorted(repr(turn.request) for turn in turns_of(played.events))


async def test_the_policy_gets_the_rollout_as_session_and_the_sampling_of_the_run():
    policy = Watched(scripted(Lines("7")))

    async def agent(task: Any, ctx: Context) -> None:
        await ctx.policy.complete(ctx.opening)
        await ctx.policy.complete(ctx.opening, sampling=Sampling(max_tokens=5, temperature=0.0), session="other")

    played = await play(policy, agent, sampling=Sampling(temperature=0.7, top_p=0.9))
    assert policy.sessions == [played.rollout.rollout_id, "other"]
    assert policy.samplings == [
        Sampling(temperature=0.7, top_p=0.9),
        Sampling(temperature=0.0, top_p=0.9, max_tokens=5),
    ]


async def seeds(rollout_id: str, seed: int | None, sampling: Sampling | None = None) -> list[int | None]:
    policy = Watched(scripted(Lines("7")))
    await play(policy, ChatAgent(max_turns=3), rollout_id=rollout_id, seed=seed, sampling=sampling)
    return [sampling.seed for sampling in policy.samplings if sampling is not None]


async def test_each_turn_has_a_seed_of_its_own_that_comes_from_the_rollout():
    drawn = await seeds("a", 3)
    assert drawn == await seeds("a", 3)
    assert len({*drawn, *await seeds("b", 3), *await seeds("a", 4)}) == 9
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in drawn)
    assert await seeds("a", None) == [None] * 3
    assert await seeds("a", 3, Sampling(seed=11)) == [11] * 3


async def test_seeds_and_session_are_those_of_the_sample_when_a_run_is_made_again():
    made = []
    for rollout_id, sample in (("run-1/t:0", 0), ("run-2/t:0", 0), ("run-2/t:1", 1)):
        policy = Watched(scripted(Lines("7")))
        metadata = {"run": rollout_id[:5], "task_id": "t", "sample": sample}
        await play(policy, asking, rollout_id=rollout_id, seed=3, metadata=metadata)
        made.append((policy.sessions, policy.samplings))
    assert made[0] == made[1] != made[2]
    assert made[0][0] == ["t:0"]


async def test_the_score_of_the_environment_is_the_result():
    played = await play(scripted(), seed=4)
    assert (played.rollout.status, played.rollout.reward) == ("succeeded", 1.0)
    result = result_of(played)
    assert isinstance(result["output"], int)
    assert result["metrics"]["guesses"] == result["metrics"]["turns"]


async def test_without_a_score_the_rewards_of_the_steps_are_summed():
    played = await play(scripted(), tag="counting", task={"metadata": {"limit": 4}})
    assert played.rollout.reward == 4.0


async def episode_result(agent: Any, tag: str = "guessing", policy: ChatPolicy | None = None, **request: Any) -> Result:
    """The result as the episode gives it to the worker."""
    results: list[Result] = []
    games = {"guessing": Games(GuessingGame), "counting": Games(CountingGame)}
    kit = EpisodeKit(policy=policy or scripted(), environments=games, agent=agent)

    def episodes(ctx: Context) -> Any:
        episode = kit.episodes(ctx)
        score = episode.score

        async def watched(ctx: Context, result: Result) -> Result:
            results.append(await score(ctx, result))
            return results[-1]

        episode.score = watched  # type: ignore[method-assign]
        return episode

    async with memory() as store:
        rollout = await Runner(store, episodes=episodes).step({"question": ""}, tag=tag, **request)
        assert rollout.failure is None, rollout.failure
    return results[0]


async def test_an_agent_that_returns_a_text_has_given_its_final_answer():
    played = await play(scripted(), lambda task, ctx: "forty", tag="guessing")
    step = step_of(played.of(EventKind.STEP)[-1])
    assert step.info == {"answer": "forty"}
    assert played.rollout.reward == 0.0
    result = await episode_result(lambda task, ctx: "1", tag="counting")
    assert (result.reward, result.output, result.stop_reason) == (1.0, "1", "answered")


async def test_a_text_after_the_end_is_kept_as_output_and_not_played():
    async def agent(task: Any, ctx: Context) -> str:
        while not (await ctx.env.step(assistant("1"))).truncated:
            pass
        return "done"

    result = await episode_result(agent, tag="counting")
    assert (result.reward, result.output, result.stop_reason) == (1.0, "done", "truncated")


@pytest.mark.parametrize(
    ("answer", "reward", "output"),
    [
        (0.25, 0.25, None),
        (True, 1.0, None),
        (Result(reward=0.5, output="mine"), 0.5, "mine"),
        (Result(output="mine"), 0.0, "mine"),
        (None, 0.0, None),
    ],
)
async def test_what_an_agent_returns_decides(answer: Any, reward: float, output: Any):
    result = await episode_result(lambda task, ctx: answer)
    assert (result.reward, result.output, result.stop_reason) == (reward, output, "answered")


async def test_an_agents_metrics_stand_beside_those_of_the_episode():
    result = await episode_result(lambda task, ctx: Result(metrics={"plans": 3.0}))
    assert result.metrics.items() >= {("plans", 3.0), ("turns", 0.0), ("guesses", 0.0)}
    assert result.explanation.startswith("the number was")


async def test_what_an_agent_must_not_return_is_its_failure():
    played = await play(scripted(), lambda task, ctx: [1, 2])
    assert played.rollout.failure is not None
    assert played.rollout.failure.boundary is Boundary.AGENT
    assert "returned list" in played.rollout.failure.message


@pytest.mark.parametrize(
    ("tag", "lines", "turns", "reason"),
    [
        ("guessing", (), 20, StopReason.TERMINATED),
        ("counting", ("1",), 20, StopReason.TRUNCATED),
        ("counting", ("1",), 2, StopReason.MAX_TURNS),
    ],
)
async def test_why_it_stopped_is_known(tag: str, lines: tuple[str, ...], turns: int, reason: StopReason):
    policy = scripted(Lines(*lines)) if lines else scripted()
    assert (await episode_result(ChatAgent(max_turns=turns), tag, policy)).stop_reason == reason


async def test_a_conversation_too_long_for_the_model_is_scored():
    async def own(task: Any, ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.policy.complete(ctx.opening))

    for agent in (ChatAgent(), asking, own):
        result = await episode_result(agent, policy=Failing(ContextOverflow("too long")))
        assert (result.reward, result.stop_reason) == (0.0, "context")


async def wrapping(task: Any, ctx: Context) -> None:
    try:
        await ctx.policy.complete(ctx.opening)
    except Exception as exc:
        raise RuntimeError("my agent failed") from exc


async def hiding(task: Any, ctx: Context) -> None:
    try:
        await ctx.policy.complete(ctx.opening)
    except PolicyError:
        raise RuntimeError("my agent failed") from None


async def grouping(task: Any, ctx: Context) -> None:
    async with asyncio.TaskGroup() as outer:
        outer.create_task(asyncio.wait_for(asking(task, ctx), 10))


@pytest.mark.parametrize("agent", [asking, wrapping, hiding, grouping, ChatAgent()])
@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), PolicyError("oops")])
async def test_a_failure_of_the_policy_is_its_own_whatever_code_it_passes_through(agent: Any, error: Exception):
    played = await play(Failing(error), agent)
    failure = played.rollout.failure
    assert failure is not None
    assert (failure.boundary, failure.stage, failure.kind) == (
        Boundary.POLICY,
        "policy.complete",
        type(error).__name__,
    )
    assert "oops" in failure.message


async def test_a_failure_that_the_agent_has_dealt_with_is_none():
    async def agent(task: Any, ctx: Context) -> float:
        try:
            await ctx.policy.complete(ctx.opening)
        except PolicyError:
            return 0.5
        return 0.0

    assert (await play(Failing(PolicyError("oops")), agent)).rollout.reward == 0.5


async def test_a_failure_of_the_agent_is_its_own():
    async def agent(task: Any, ctx: Context) -> None:
        await ctx.policy.complete(ctx.opening)
        raise KeyError("mine")

    failure = (await play(scripted(), agent)).rollout.failure
    assert failure is not None
    assert (failure.boundary, failure.kind) == (Boundary.AGENT, "KeyError")


class Breaking(GuessingGame):
    """Breaks where it is told to."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._place = task.question
        self._break("make")

    def _break(self, place: str) -> None:
        if self._place == place:
            raise ZeroDivisionError(place)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        self._break("tools")
        return super().tools

    async def reset(self, seed: int | None = None) -> Observation:
        self._break("reset")
        return await super().reset(seed)

    async def step(self, action: Message) -> Step:
        self._break("step")
        step = await super().step(action)
        if self._place == "text":
            return step._replace(observation="right")  # type: ignore[arg-type]
        if self._place == "number":
            return step._replace(reward="much")  # type: ignore[arg-type]
        if self._place == "info":
            return step._replace(info={"when": object()})
        return ("right", 1.0) if self._place == "shape" else step  # type: ignore[return-value]

    async def score(self) -> Score:
        self._break("score")
        return await super().score()

    async def close(self) -> None:
        await super().close()
        self._break("close")


@pytest.mark.parametrize(
    ("place", "boundary", "stage"),
    [
        ("make", Boundary.ENV, "env.make"),
        ("reset", Boundary.ENV, "env.reset"),
        ("tools", Boundary.ENV, "env.tools"),
        ("step", Boundary.ENV, "env.step"),
        ("text", Boundary.ENV, "env.step"),
        ("number", Boundary.ENV, "env.step"),
        ("info", Boundary.ENV, "env.step"),
        ("shape", Boundary.ENV, "env.step"),
        ("score", Boundary.SCORE, "env.score"),
    ],
)
async def test_a_failure_of_the_environment_is_its_own(place: str, boundary: Boundary, stage: str):
    games = Games(Breaking)
    played = await play(scripted(Bisecting(), Lines("7")), environments={"g": games}, tag="g", task={"question": place})
    failure = played.rollout.failure
    assert failure is not None
    assert (failure.boundary, failure.stage) == (boundary, stage)
    assert all(game.closed for game in games.made)


async def test_a_failure_to_close_changes_no_result():
    played = await play(
        scripted(Lines(assistant("", (call("guess", '{"number": 1}'),)))),
        ChatAgent(max_turns=1),
        environments={"g": Games(Breaking)},
        tag="g",
        task={"question": "close"},
    )
    assert played.rollout.status == "succeeded"


async def test_an_environment_is_closed_once_and_the_policy_is_not():
    games = Games(GuessingGame)
    policy = Watched(scripted())

    async def agent(task: Any, ctx: Context) -> None:
        await ctx.env.close()
        await ctx.policy.close()
        await ctx.policy.check()
        assert not games.made[0].closed

    assert (await play(policy, agent, environments={"g": games}, tag="g")).rollout.status == "succeeded"
    assert games.made[0].closed
    assert not policy.closed


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda ctx: ctx.env.reset(1), "see ctx.opening"),
        (lambda ctx: ctx.env.score(), "when the agent is done"),
    ],
)
async def test_what_is_the_episodes_is_not_the_agents(act: Any, message: str):
    async def agent(task: Any, ctx: Context) -> None:
        await act(ctx)

    failure = (await play(scripted(), agent)).rollout.failure
    assert failure is not None
    assert failure.boundary is Boundary.AGENT
    assert message in failure.message


async def test_a_step_after_the_end_is_the_agents_mistake():
    async def agent(task: Any, ctx: Context) -> None:
        while True:
            await ctx.env.step(assistant("1"))

    failure = (await play(scripted(), agent, tag="counting")).rollout.failure
    assert failure is not None
    assert failure.boundary is Boundary.AGENT
    assert "has ended" in failure.message


async def test_the_environment_is_the_one_of_the_tag():
    played = await play(scripted(), tag="chess")
    failure = played.rollout.failure
    assert failure is not None
    assert failure.boundary is Boundary.ENV
    assert "no environment for the tag 'chess'; there are counting, guessing" in failure.message


async def test_without_a_tag_the_only_environment_is_meant():
    assert (await play(scripted(), environments={"g": Games(GuessingGame)}, tag=None)).rollout.reward == 1.0
    assert (await play(scripted(), tag=None)).rollout.failure is not None


async def test_a_task_of_the_wrong_form_is_not_the_agents_failure():
    failure = (await play(scripted(), task={"question": 7})).rollout.failure
    assert failure is not None
    assert failure.boundary is Boundary.ENV
    assert "question" in failure.message


async def test_outside_of_an_episode_policy_and_environment_say_how_to_get_them():
    async def agent(task: Any, ctx: Context) -> float:
        for missing in ("policy", "env", "opening"):
            with pytest.raises(Exception, match=r"has no (policy|environment); run the agent with `outrider run`"):
                getattr(ctx, missing)
        assert ctx.task == Task(task_id=ctx.rollout_id, question="plain")
        return 1.0

    async with memory() as store:
        assert (await Runner(store, agent).step("plain")).failure is None


async def test_the_task_is_typed_in_the_context_and_plain_as_the_argument():
    async def agent(task: Any, ctx: Context) -> float:
        assert task == {"task_id": "t", "question": "Which?", "answer": 3}
        assert ctx.task == Task(task_id="t", question="Which?", answer=3)
        assert ctx.opening[1] == user("Which?")
        return 1.0

    played = await play(scripted(), agent, task={"task_id": "t", "question": "Which?", "answer": 3})
    assert played.rollout.failure is None


async def test_half_characters_are_mended_before_anyone_sees_them():
    class Broken(CountingGame):
        async def step(self, action: Message) -> Step:
            return Step((user("file \udc80"),), truncated=action.content == "2")

    seen: list[str] = []

    async def agent(task: Any, ctx: Context) -> None:
        completion = await ctx.policy.complete((*ctx.opening, user("cut \ud83d")))
        seen.append(completion.message.content)
        seen.append((await ctx.env.step(completion.message)).observation[0].content)
        await ctx.policy.complete((*ctx.opening, completion.message))

    played = await play(scripted(Lines("one \ud800")), agent, environments={"g": Games(Broken)}, tag="g")
    assert played.rollout.failure is None
    assert seen == ["one ?", "file ?"]
    assert turns_of(played.events)[0].request[-1].content == "cut ?"


async def test_an_agent_must_take_a_task_and_a_context():
    with pytest.raises(InvalidInput, match="agent\\(task, ctx\\)"):
        EpisodeKit(policy=scripted(), environments={}, agent=lambda task: 1.0)  # type: ignore[arg-type,misc]


async def test_a_cancelled_attempt_closes_its_environment():
    games = Games(GuessingGame)
    reached = asyncio.Event()

    async def agent(task: Any, ctx: Context) -> None:
        reached.set()
        await asyncio.Event().wait()

    kit = EpisodeKit(policy=scripted(), environments={"g": games}, agent=agent)
    async with memory() as store:
        runner = asyncio.ensure_future(Runner(store, episodes=kit.episodes).step({}, tag="g"))
        await asyncio.wait_for(reached.wait(), 10)
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
    assert games.made[0].closed


async def test_an_environment_may_compute_with_other_numbers():
    class Numbers(CountingGame):
        async def step(self, action: Message) -> Step:
            from decimal import Decimal

            return Step([user("ok")], Decimal("0.5"), 0, 1)  # type: ignore[arg-type]

    class Plain(Numbers):
        async def step(self, action: Message) -> Any:
            return tuple(await super().step(action))

    for kind in (Numbers, Plain):
        played = await play(scripted(Lines("x")), environments={"g": Games(kind)}, tag="g")
        assert (played.rollout.failure, played.rollout.reward) == (None, 0.5)
