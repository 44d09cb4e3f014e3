"""The scorer that asks a model."""

from collections.abc import Sequence

import pytest

from outrider.core.chat import Message, Role, ToolSpec, assistant
from outrider.core.errors import ContextOverflow, PolicyUnusable, ScoreError
from outrider.core.task import Task
from outrider.env.scoring import ScorerConfig
from outrider.env.scoring.judge import JudgeScorer, verdict_in
from outrider.policy import Completion, Sampling, Usage

TASK = Task(task_id="t", question="What is the capital of France?", answer=["Paris", "City of Light"])


class FixedReplies:
    """A policy that says what it was given, one reply a call, or raises it."""

    def __init__(self, *replies: str | Exception) -> None:
        self.replies = list(replies)
        self.asked: list[Sequence[Message]] = []
        self.n_closed = 0

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        self.asked.append(messages)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return Completion(message=assistant(reply), usage=Usage(prompt_tokens=100, completion_tokens=10))

    async def check(self) -> None: ...

    async def close(self) -> None:
        self.n_closed += 1


def judge_of(policy: FixedReplies, **config: object) -> JudgeScorer:
    async def open_judge() -> FixedReplies:
        return policy

    return JudgeScorer(ScorerConfig(**config), open_judge)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("It says the same.\nVERDICT: CORRECT", True),
        ("VERDICT: INCORRECT", False),
        ("**VERDICT: CORRECT**\n", True),
        ("VERDICT: CORRECT\n\nVERDICT: CORRECT", True),
        ("VERDICT: CORRECT\nVERDICT: INCORRECT", None),
        ("VERDICT: CORRECT, I think", None),
        ("VERDICT: CORRECT\nbut I am not sure", None),
        ("verdict: correct", None),
        ("It is CORRECT", None),
        ("The verdict is VERDICT: CORRECT", None),
        ("VERDICT: PARTLY CORRECT", None),
        ("", None),
    ],
)
def test_only_a_clear_verdict_counts(reply: str, verdict: bool | None):
    assert verdict_in(reply) is verdict


async def test_a_verdict_becomes_the_reward_and_its_cost_a_metric():
    policy = FixedReplies("Same city.\nVERDICT: CORRECT")
    score = await judge_of(policy).score("Paris, of course", TASK)
    assert score.reward == 1.0
    assert score.metrics == {"judge_prompt_tokens": 100.0, "judge_completion_tokens": 10.0}
    assert "Same city" in score.explanation
    shown = policy.asked[0][1].content
    for text in ("capital of France", "<expected>Paris</expected>", "<expected>City of Light", "Paris, of course"):
        assert text in shown


async def test_what_the_judge_goes_by_can_be_added_to():
    policy = FixedReplies("VERDICT: INCORRECT")
    score = await judge_of(policy, judge_instructions="Spelling counts.").score("Pariss", TASK)
    assert score.reward == 0.0
    assert policy.asked[0][0].role is Role.SYSTEM
    assert policy.asked[0][0].content.endswith("Spelling counts.")


async def test_an_unclear_verdict_is_asked_for_again_and_all_calls_are_paid_for():
    policy = FixedReplies("Hm.", "", "VERDICT: INCORRECT")
    score = await judge_of(policy).score("London", TASK)
    assert score.reward == 0.0
    assert score.metrics["judge_prompt_tokens"] == 300.0
    assert [message.role for message in policy.asked[2]] == ["system", "user", "assistant", "user", "assistant", "user"]


async def test_a_judge_that_never_gives_a_verdict_fails_the_scoring():
    with pytest.raises(ScoreError, match="no clear verdict on task 't' in 2 replies; the last was 'Well'"):
        await judge_of(FixedReplies("Hm", "Well"), judge_retries=1).score("London", TASK)


async def test_a_judge_that_fails_is_a_failure_of_scoring_unless_the_run_must_stop():
    with pytest.raises(ScoreError, match="the judge failed: too long"):
        await judge_of(FixedReplies(ContextOverflow("too long"))).score("London", TASK)
    with pytest.raises(PolicyUnusable):
        await judge_of(FixedReplies(PolicyUnusable("wrong key"))).score("London", TASK)


async def test_an_empty_answer_is_wrong_without_asking():
    policy = FixedReplies()
    assert (await judge_of(policy).score("  ", TASK)).reward == 0.0
    assert not policy.asked


async def test_the_judge_is_closed_if_it_was_opened():
    policy = FixedReplies("VERDICT: CORRECT")
    scorer = judge_of(policy)
    await scorer.close()
    assert policy.n_closed == 0
    await scorer.score("Paris", TASK)
    await scorer.close()
    await scorer.close()
    assert policy.n_closed == 1
