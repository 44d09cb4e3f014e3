"""Tests decide: a program is scored by running it against the tests of its task, in a sandbox.

A task gives its tests in `metadata.tests`, in one of three forms:

- A list of asserts, as text: `["assert add(1, 2) == 3", …]`.
- A test program, as one text. Its functions `test_…` are the tests, and `check(candidate)`, which gets the entry point;
  if it has none of these, the program is one test. It may import the submission as `solution`.
- A list of pairs: `{"input": …, "output": …}` is what the program reads on standard input and must write on standard
  output; `{"args": […], "kwargs": {…}, "result": …}` is a call of the entry point and what it must return.

`metadata.entry_point` names the function that the submission must define, `metadata.setup` is code that is run before
the tests, `metadata.prelude` code that is put before the submission, which may leave out what the task began with.
"""

import ast
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.bounds import PositiveCount, PositiveSeconds, check_bounds
from outrider.core.decoding import convert
from outrider.core.errors import EnvError, InvalidInput, ScoreError
from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.sandbox import Limits, Sandbox, SandboxKind
from outrider.env.sandbox.program import MIB
from outrider.env.sandbox.trial import CallTest, CodeTest, Examination, FunctionTest, Verdict, examine
from outrider.env.scoring.protocol import Scorer

MAX_PROGRAM_CHARACTERS = MIB
_N_EXPLAINED = 5
_SHOWN_CHARACTERS = 100


class InputOutput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program reads, and what it must write. Spaces at the ends of lines and empty last lines do not count."""

    input: str = ""
    output: str


class Setting(Struct, frozen=True):
    """What stands beside the tests in a task's metadata."""

    entry_point: str = ""
    setup: str = ""
    prelude: str = ""

    def examination(self, *tests: CodeTest | CallTest) -> Examination:
        return Examination(entry_point=self.entry_point, setup=self.setup, tests=tests)


Tests = Examination | tuple[InputOutput, ...]


class PythonTestsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`limits` are those of one program, or of one test. `max_test_seconds` bounds all tests of a submission together.

    The reward is 1 if all tests pass and else 0, or with `partial` the part of them that passes.
    """

    sandbox: SandboxKind = SandboxKind.BUBBLEWRAP
    n_slots: PositiveCount | None = None
    limits: Limits = Limits()
    max_test_seconds: PositiveSeconds = 60.0
    partial: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)


class PythonTestsScorer(Scorer):
    """The answer is a program: the last block of Python in it, or all of it if there is no block."""

    Config = PythonTestsConfig

    def __init__(self, config: PythonTestsConfig | None = None, *, sandbox: Sandbox | None = None) -> None:
        self._config = config or PythonTestsConfig()
        self._sandbox = sandbox or Sandbox(self._config.sandbox, n_slots=self._config.n_slots)

    async def score(self, answer: str, task: Task) -> Score:
        program = program_in(answer)
        return await self.score_program(answer if program is None else program, task)

    async def score_program(self, program: str, task: Task) -> Score:
        """The same for a program that stands by itself."""
        try:
            tests = read_tests(task)
        except InvalidInput as exc:
            raise ScoreError(str(exc), stage="score") from exc
        if refusal := unusable(program):
            return Score(reward=0.0, output=program[:1000], metrics={"pass_fraction": 0.0}, explanation=refusal)
        if prelude := task.metadata.get("prelude"):
            program = f"{prelude}\n\n{program}"
        try:
            verdicts = await self._verdicts(program, tests)
            mechanism = await self._sandbox.mechanism()
        except EnvError as exc:
            raise ScoreError(str(exc), stage="score") from exc
        fraction = sum(verdict.passed for verdict in verdicts) / len(verdicts)
        reward = fraction if self._config.partial else float(fraction == 1.0)
        metrics = {"pass_fraction": fraction, "tests": float(len(verdicts))}
        return Score(reward=reward, output=program, metrics=metrics, explanation=_explanation(verdicts, mechanism))

    def check_task(self, task: Task) -> None:
        read_tests(task)

    async def check(self) -> None:
        await self._sandbox.check()

    async def close(self) -> None: ...

    async def _verdicts(self, program: str, tests: Tests) -> list[Verdict]:
        config = self._config
        if isinstance(tests, Examination):
            seconds = config.max_test_seconds
            return await examine(self._sandbox, program, tests, limits=config.limits, seconds=seconds)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + config.max_test_seconds
        verdicts = []
        for pair in tests:
            left = deadline - loop.time()
            if left > 0:
                verdicts.append(await self._compared(program, pair, left))
            else:
                reason = f"not run: the {config.max_test_seconds:g} s for all tests are over"
                verdicts.append(Verdict(passed=False, reason=reason))
        return verdicts

    async def _compared(self, program: str, pair: InputOutput, seconds: float) -> Verdict:
        """The comparison is made here: nothing in the sandbox knows what is expected."""
        limits = msgspec.structs.replace(
            self._config.limits, wall_seconds=min(seconds, self._config.limits.wall_seconds)
        )
        outcome = await self._sandbox.run(program, stdin=pair.input.encode(errors="replace"), limits=limits)
        if outcome.exit_code != 0:
            last_words = outcome.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
            return Verdict(passed=False, reason=f"{outcome.ending}{': ' if last_words else ''}{last_words}")
        written = _lines(outcome.stdout.decode(errors="replace"))
        if written == _lines(pair.output):
            return Verdict(passed=True)
        return Verdict(passed=False, reason=f"it wrote {_short(written)}, not {_short(_lines(pair.output))}")


def program_in(said: str) -> str | None:
    """The last block of Python in a message, or the last block that names no language; None: there is no block."""
    blocks = list(_blocks(said))
    for languages in ({"python", "python3", "py"}, {""}):
        if fitting := [code for language, code in blocks if language in languages]:
            return fitting[-1]
    return None


def _blocks(said: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block. The end of the message ends a block that is still open."""
    fence, language, indent, lines = "", "", 0, list[str]()
    for line in said.split("\n"):
        text = line.strip()
        if fence:
            if text.startswith(fence) and not text.strip(fence[0]):
                yield language, "\n".join(lines)
                fence = ""
            else:
                lines.append(line[indent:] if not line[:indent].strip() else line)
        elif text.startswith(("```", "~~~")):
            fence = text[: len(text) - len(text.lstrip(text[0]))]
            indent = len(line) - len(line.lstrip())
            language, lines = (text.removeprefix(fence).split() or [""])[0].casefold(), []
    if fence:
        yield language, "\n".join(lines)


def unusable(program: str) -> str:
    """Why a program is not even tried; empty if it is."""
    if not program.strip():
        return "no program was submitted"
    if len(program) > MAX_PROGRAM_CHARACTERS:
        return f"the program has {len(program)} characters; {MAX_PROGRAM_CHARACTERS} are allowed"
    return ""


def read_tests(task: Task) -> Tests:
    """The tests of a task. Raises `InvalidInput` if it has none, or none that can be used."""
    if not task.metadata.get("tests"):
        hint = "" if task.answer is None else "; it has an answer, which other modes score, such as math"
        raise InvalidInput(
            f"task {task.task_id!r} has no tests{hint}; mode py needs `tests`: a list of asserts, a test program, or a "
            "list of pairs"
        )
    try:
        setting = convert(dict(task.metadata), Setting)
        ast.parse(setting.setup)
        return _read(task.metadata.get("tests"), setting)
    except (ValueError, SyntaxError) as exc:
        raise InvalidInput(f"task {task.task_id!r}: metadata.tests cannot be used: {exc}") from exc


def _read(given: Any, setting: Setting) -> Tests:
    match given:
        case str() if given.strip():
            return _program(given, setting)
        case [str(), *_]:
            return setting.examination(*map(_assert, given))
        case [{"output": _}, *_]:
            return convert(given, tuple[InputOutput, ...])
        case [{"result": _}, *_] if setting.entry_point:
            return setting.examination(*map(_call, given))
        case [{"result": _}, *_]:
            raise ValueError("calls need metadata.entry_point")
        case _:
            raise ValueError("give a list of asserts, a test program, or a list of pairs")


def _assert(code: Any) -> CodeTest:
    ast.parse(convert(code, str))
    return CodeTest(code=code)


def _call(pair: Any) -> CallTest:
    if not isinstance(pair, Mapping) or "result" not in pair or not pair.keys() <= {"args", "kwargs", "result"}:
        raise ValueError(f"{pair!r:.80} is not a call: give args, kwargs and result")
    return CallTest(
        args=convert(pair.get("args", ()), tuple[Any, ...]),
        kwargs=convert(pair.get("kwargs", {}), dict[str, Any]),
        result=pair["result"],
    )


def _program(given: str, setting: Setting) -> Examination:
    functions = [node.name for node in ast.parse(given).body if isinstance(node, ast.FunctionDef)]
    tests = [FunctionTest(name=name) for name in functions if name.startswith("test_")]
    if "check" in functions:
        if not setting.entry_point:
            raise ValueError("check(candidate) needs metadata.entry_point")
        tests.append(FunctionTest(name="check", takes_entry_point=True))
    if not tests:
        return setting.examination(CodeTest(code=given))
    return Examination(entry_point=setting.entry_point, setup=f"{setting.setup}\n{given}", tests=tuple(tests))


def _explanation(verdicts: Sequence[Verdict], mechanism: str) -> str:
    failed = [(number, verdict.reason) for number, verdict in enumerate(verdicts, 1) if not verdict.passed]
    lines = [f"{len(verdicts) - len(failed)} of {len(verdicts)} tests passed"]
    lines += [f"test {number}: {reason}" for number, reason in failed[:_N_EXPLAINED]]
    if not mechanism.startswith("bubblewrap"):
        lines.append(f"mechanism: {mechanism}")
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _short(lines: list[str]) -> str:
    text = "\n".join(lines)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
