"""A submission and its tests, each in a sandbox of its own, with nothing between them but questions and answers.

Invariants:
- The submission never sees the tests, only the calls they make; its process gives no verdict.
- A submission that ends, hangs or is killed during one test fails that test; the others run beside a fresh process.
- Every test gets exactly one verdict.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct, structs

from outrider.core.decoding import from_json
from outrider.core.errors import EnvError
from outrider.env.sandbox import inside
from outrider.env.sandbox.inside.examiner import ENDED
from outrider.env.sandbox.program import Limits, Outcome, Program
from outrider.env.sandbox.sandbox import Sandbox

_PARTS: Mapping[str, bytes] = MappingProxyType(
    {
        f"outrider/env/sandbox/inside/{name}.py": (Path(inside.__file__).parent / f"{name}.py").read_bytes()
        for name in ("exchange", "candidate", "examiner", "remote")
    }
)
"""What runs in both processes, in folders as it is imported."""

_VERDICT_BYTES = 4096
_SUBMISSION, _TESTS = "submission.py", "tests.json"

_CANDIDATE = f"""
import sys
from outrider.env.sandbox.inside.candidate import main
with open({_SUBMISSION!r}, "rb") as file:
    source = file.read()
main(int(sys.argv[1]), int(sys.argv[2]), source)
"""

_EXAMINER = f"""
import sys
from outrider.env.sandbox.inside.examiner import main
with open({_TESTS!r}) as file:
    tests = file.read()
main(int(sys.argv[1]), int(sys.argv[2]), tests)
"""


class CodeTest(Struct, frozen=True, kw_only=True, tag_field="form", tag="code"):
    """Passes if it raises nothing, as an assert does."""

    code: str


class FunctionTest(Struct, frozen=True, kw_only=True, tag_field="form", tag="function"):
    """A function that the setup defines. Passes if it raises nothing."""

    name: str
    takes_entry_point: bool = False


class CallTest(Struct, frozen=True, kw_only=True, tag_field="form", tag="call"):
    """Passes if the entry point returns `result`. Tuples count as lists."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    result: Any


class Examination(Struct, frozen=True, kw_only=True):
    """Tests that share a namespace. `setup` is run first; it may define what tests use, or the tests themselves."""

    entry_point: str
    setup: str
    tests: tuple[CodeTest | FunctionTest | CallTest, ...]


class Verdict(Struct, frozen=True, kw_only=True):
    """Whether a test was passed, and if not, why."""

    passed: bool
    reason: str = ""


class _Told(Struct, frozen=True):
    """One line of the tests' process."""

    loaded: bool = False
    unusable: str | None = None
    test: str | None = None
    passed: bool = False
    reason: str | None = None


async def examine(
    sandbox: Sandbox, submission: str, examination: Examination, *, limits: Limits, seconds: float
) -> list[Verdict]:
    """The verdicts on all tests, in their order. Each may take `limits.wall_seconds`, all together `seconds`.

    Raises `EnvError` if the tests could not be run.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    verdicts: dict[int, Verdict] = {}
    while open_tests := [number for number in range(len(examination.tests)) if number not in verdicts]:
        left = deadline - loop.time()
        if left <= 0:
            late = Verdict(passed=False, reason=f"not run: the {seconds:g} s for all tests are over")
            verdicts.update(dict.fromkeys(open_tests, late))
            break
        room = max(limits.output_bytes, _VERDICT_BYTES * (len(open_tests) + 1))
        shared = structs.replace(limits, wall_seconds=left, cpu_seconds=left, output_bytes=room)
        tests = _tests(examination, open_tests, min(limits.wall_seconds, left))
        ends = await sandbox.run_beside(*_programs(submission, tests), shared)
        verdicts.update(_verdicts(open_tests, *ends))
    return [verdicts[number] for number in range(len(examination.tests))]


def _tests(examination: Examination, numbers: list[int], seconds: float) -> bytes:
    given = {
        "entry_point": examination.entry_point,
        "setup": examination.setup,
        "seconds": seconds,
        "tests": {str(number): examination.tests[number] for number in numbers},
    }
    return msgspec.json.encode(given)


def _programs(submission: str, tests: bytes) -> tuple[Program, Program]:
    """The process of the tests, and that of the submission."""
    source = submission.encode(errors="surrogatepass")
    return (
        Program(source=_EXAMINER, files={**_PARTS, _TESTS: tests}),
        Program(source=_CANDIDATE, files={**_PARTS, _SUBMISSION: source}),
    )


def _verdicts(numbers: list[int], tests_end: Outcome, submission_end: Outcome) -> dict[int, Verdict]:
    """Verdicts on the first of the given tests, at least one: as many as the submission's process lasted for."""
    whole_lines = [line for line in tests_end.stdout.splitlines(keepends=True) if line.endswith(b"\n")]
    told = [from_json(line, _Told) for line in whole_lines]
    if not told and not tests_end.timed_out:
        said = tests_end.stderr.decode(errors="replace").strip()
        raise EnvError(f"the process of the tests failed ({tests_end.ending}): {said}", stage="sandbox")
    if told and told[0].unusable is not None:
        failed = Verdict(passed=False, reason=_explained(told[0].unusable, submission_end))
        return dict.fromkeys(numbers, failed)
    verdicts = {
        int(line.test): Verdict(passed=line.passed, reason=_explained(line.reason or "", submission_end))
        for line in told
        if line.test is not None
    }
    if tests_end.exit_code != 0 and len(verdicts) < len(numbers):
        verdicts[numbers[len(verdicts)]] = Verdict(passed=False, reason=f"the test did not end ({tests_end.ending})")
    return verdicts


def _explained(reason: str, submission_end: Outcome) -> str:
    """Why a test failed; where the submission's process ended of itself, also how."""
    if reason != ENDED:
        return reason
    last_words = submission_end.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
    return f"{ENDED} ({submission_end.ending}){': ' if last_words else ''}{last_words}"
