"""The math environments: a question, a calculator, and an answer that is compared by what it means."""

from msgspec import Struct

from outrider.core.task import Task
from outrider.env.calculator import calculator
from outrider.env.protocol import Environment, Environments
from outrider.env.question import QuestionEnvironment
from outrider.env.scoring import FORM_FIELDS, ScorerConfig, scorer_by_form
from outrider.env.scoring.instructions import has_instructions

INSTRUCTIONS = (
    "Solve the problem step by step. {tools}"
    "Then give the final answer, alone and in its simplest form, in \\boxed{{}}: \\boxed{{42}}, "
    "\\boxed{{\\frac{{3}}{{4}}}}, \\boxed{{x^2 + 1}}, \\boxed{{\\{{1, 2\\}}}}."
)
_CALCULATOR = "Use the calculator for arithmetic. "


class MathConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`instructions` takes the place of the usual system message; `scorer_config` is what the scorer is told.

    Without a `scorer`, choices and instructions to follow are scored by their form, other answers by `math`.
    """

    scorer: str | None = None
    scorer_config: ScorerConfig = ScorerConfig()
    instructions: str | None = None
    calculator: bool = True


class MathEnvironments(Environments):
    """Questions with one right answer. The episodes of a worker share the scorer and its processes."""

    Config = MathConfig
    task_fields = FORM_FIELDS

    def __init__(self, config: MathConfig) -> None:
        self._scorer = scorer_by_form(config.scorer, config.scorer_config, usual="math")
        self._tools = (calculator(),) if config.calculator else ()
        usual = INSTRUCTIONS.format(tools=_CALCULATOR if config.calculator else "")
        self._instructions = usual if config.instructions is None else config.instructions
        self._plain = config.instructions or ""

    def make(self, task: Task) -> Environment:
        """Refuses a task whose answers could not be scored, before a model works on it."""
        self._scorer.check_task(task)
        if has_instructions(task):  # its reply is all that counts, so it is asked for nothing else
            return QuestionEnvironment(task, instructions=self._plain, tools=(), scorer=self._scorer)
        return QuestionEnvironment(task, instructions=self._instructions, tools=self._tools, scorer=self._scorer)

    async def check(self) -> None:
        await self._scorer.check()

    async def close(self) -> None:
        await self._scorer.close()
