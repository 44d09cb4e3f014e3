"""A question with tools: the agent calls tools as it likes; its first message without a call is its answer."""

from collections.abc import Sequence

from outrider.core.chat import Message, ToolSpec, system, user
from outrider.core.task import Task
from outrider.env.protocol import Environment, Observation, Score, Step
from outrider.env.scoring import Scorer
from outrider.env.tools import Tool, answer_calls


class QuestionEnvironment(Environment):
    """The world of math, rag and web tasks. `instructions` is the system message, if any."""

    def __init__(self, task: Task, *, instructions: str, tools: Sequence[Tool], scorer: Scorer) -> None:
        self._task = task
        self._instructions = instructions
        self._tools = tuple(tools)
        self._scorer = scorer
        self._answer = ""
        self._n_calls = 0
        self._n_errors = 0

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools)

    async def reset(self, seed: int | None = None) -> Observation:  # noqa: ARG002 a question has no randomness
        asked = user(self._task.question)
        return (system(self._instructions), asked) if self._instructions else (asked,)

    async def step(self, action: Message) -> Step:
        if not action.tool_calls:
            self._answer = action.content
            return Step(terminated=True)
        answers, n_errors = await answer_calls(action.tool_calls, self._tools)
        self._n_calls += len(answers)
        self._n_errors += n_errors
        return Step(answers)

    async def score(self) -> Score:
        score = await self._scorer.score(self._answer, self._task)
        metrics = {**score.metrics, "tool_calls": float(self._n_calls), "tool_errors": float(self._n_errors)}
        return Score(reward=score.reward, output=score.output, metrics=metrics, explanation=score.explanation)

    async def close(self) -> None: ...
