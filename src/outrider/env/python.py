"""Python tasks: the agent writes a program, may try it, and submits it; the task's tests decide."""

from typing import Annotated

from msgspec import Meta, Struct

from outrider.core.bounds import MAX_COUNT, Within
from outrider.core.chat import Message, ToolSpec, system, user
from outrider.core.errors import ToolRefusal
from outrider.core.task import Task
from outrider.env.machine_python import MachinePython
from outrider.env.protocol import Environment, Environments, Needs, Observation, Score, Step
from outrider.env.sandbox import KillReason, Limits, Outcome, Sandbox
from outrider.env.sandbox.program import MIB
from outrider.env.scoring.python import PythonTestsConfig, PythonTestsScorer, Setting, program_in, unusable
from outrider.env.tools import answer_calls, tool
from outrider.pool.provider import Ability
from outrider.pool.source import Machine

RUN, SUBMIT = "run_python", "submit"

INSTRUCTIONS = """\
Solve the task by writing a Python program. Use the standard library only; there is no network.
Try your code with the tool run_python: each call is a fresh program, and you see what it prints.
Hand in the whole program with the tool submit, or as your final message in one ```python block.
It is tested as it stands: define exactly what the task names, read and print only if the task says so."""

FILES_STAY = "Files that a program leaves in its folder are there for the next one, but not when it is tested."
"""What is added to our own instructions if there is a machine."""


class PythonConfig(PythonTestsConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`output_characters` is how much of each stream of a program the agent is shown."""

    instructions: str = INSTRUCTIONS
    output_characters: Annotated[int, Within(100, MAX_COUNT)] = 8_000


class RunPython(Struct, frozen=True, kw_only=True):
    """What `run_python` takes."""

    code: Annotated[str, Meta(description="a whole Python program")]
    stdin: Annotated[str, Meta(description="what it reads on standard input")] = ""


class Submit(Struct, frozen=True, kw_only=True):
    """What `submit` takes."""

    code: Annotated[str, Meta(description="the whole program to be tested")]


class PythonEnvironment(Environment):
    """One task. The episode ends with the first submission.

    On a machine, the agent's programs are tried there. The tests never are: nobody on the machine can read them.
    """

    def __init__(self, task: Task, config: PythonConfig, sandbox: Sandbox, scorer: PythonTestsScorer) -> None:
        self._task = task
        self._config = config
        self._sandbox = sandbox
        self._scorer = scorer
        self._machine_python: MachinePython | None = None
        self._submission: str | None = None
        self._n_calls = 0
        self._n_errors = 0
        self._tools = (
            tool(RUN, "Run a Python program and see what it prints.", RunPython, self._run),
            tool(SUBMIT, "Hand in the program and end the task.", Submit, self._submit),
        )

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(each.spec for each in self._tools)

    def board(self, machine: Machine) -> None:
        self._machine_python = MachinePython(machine, self._config.limits)

    async def reset(self, seed: int | None = None) -> Observation:  # noqa: ARG002 a task has no randomness
        instructions = self._config.instructions
        if self._machine_python is not None and instructions == INSTRUCTIONS:
            instructions = f"{instructions}\n{FILES_STAY}"
        asked = user(self._task.question)
        return (system(instructions), asked) if instructions else (asked,)

    async def step(self, action: Message) -> Step:
        if not action.tool_calls:
            self._submission = program_in(action.content) or ""
            return Step(terminated=True)
        answers, n_errors = await answer_calls(action.tool_calls, self._tools)
        self._n_calls += len(answers)
        self._n_errors += n_errors
        return Step(answers, terminated=self._submission is not None)

    async def score(self) -> Score:
        score = await self._scorer.score_program(self._submission or "", self._task)
        metrics = {**score.metrics, "tool_calls": float(self._n_calls), "tool_errors": float(self._n_errors)}
        return Score(reward=score.reward, output=score.output, metrics=metrics, explanation=score.explanation)

    async def close(self) -> None: ...

    async def _run(self, arguments: RunPython) -> str:
        if refusal := unusable(arguments.code):
            raise ToolRefusal(refusal)
        stdin = arguments.stdin.encode(errors="replace")
        limits = self._config.limits
        if self._machine_python is not None:
            outcome = await self._machine_python.run(arguments.code, stdin)
        else:
            outcome = await self._sandbox.run(arguments.code, stdin=stdin, limits=limits, unbuffered=True)
        return shown(outcome, self._config.output_characters, limits)

    async def _submit(self, arguments: Submit) -> str:
        if self._submission is not None:
            raise ToolRefusal("a program was submitted already; only the first counts")
        self._submission = arguments.code
        return "submitted"


class PythonEnvironments(Environments):
    """The sandbox is shared: it bounds how many programs of all episodes run at once."""

    Config = PythonConfig
    task_fields = frozenset({"tests", *Setting.__struct_fields__})

    def __init__(self, config: PythonConfig | None = None) -> None:
        self._config = config or PythonConfig()
        self._sandbox = Sandbox(self._config.sandbox, n_slots=self._config.n_slots)
        self._scorer = PythonTestsScorer(self._config, sandbox=self._sandbox)

    @property
    def needs(self) -> Needs:
        return Needs(abilities=frozenset({Ability.COMMANDS}), optional=True)

    def make(self, task: Task) -> Environment:
        self._scorer.check_task(task)
        return PythonEnvironment(task, self._config, self._sandbox, self._scorer)

    async def close(self) -> None: ...

    async def check(self) -> None:
        await self._sandbox.check()


def shown(outcome: Outcome, max_characters: int, limits: Limits) -> str:
    """What the agent sees of a run: how it ended and what it wrote, the middle of long output left out."""
    parts = [_ending(outcome, limits)]
    for name, content, truncated in (
        ("stdout", outcome.stdout, outcome.stdout_truncated),
        ("stderr", outcome.stderr, outcome.stderr_truncated),
    ):
        if content:
            note = f" (only the first {len(content)} bytes were read)" if truncated else ""
            parts.append(f"{name}{note}:\n{_cut(content.decode(errors='replace').rstrip(), max_characters)}")
    if outcome.mechanism and not outcome.mechanism.startswith("bubblewrap"):
        parts.append(f"mechanism: {outcome.mechanism}")
    return "\n".join(parts)


def _ending(outcome: Outcome, limits: Limits) -> str:
    allowed = {
        KillReason.WALL_TIME: f"{limits.wall_seconds:g} s",
        KillReason.CPU_TIME: f"{limits.cpu_seconds:g} s",
        KillReason.MEMORY: f"{limits.memory_bytes // MIB} MiB",
        KillReason.FILES: f"{limits.n_files}",
        KillReason.PROCESSES: f"{limits.n_processes}",
        KillReason.OUTPUT: f"{limits.output_bytes} bytes",
    }
    limit = allowed.get(outcome.killed_reason) if outcome.killed_reason else None
    return f"{outcome.ending}, at most {limit} allowed" if limit else outcome.ending


def _cut(text: str, max_characters: int) -> str:
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
