"""Python tasks: what counts as a submission, the forms of tests, and what the agent is told. Nothing is run."""

import msgspec
import pytest

from outrider.core.chat import ToolCall, assistant
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.python import INSTRUCTIONS, PythonEnvironments, shown
from outrider.env.registry import bundled_tasks, environments_of
from outrider.env.sandbox import KillReason, Limits, Outcome
from outrider.env.sandbox.trial import CallTest, CodeTest, FunctionTest
from outrider.env.scoring.python import InputOutput, PythonTestsScorer, program_in, read_tests, unusable


def task(**metadata: object) -> Task:
    return Task(task_id="t", question="Write `f`.", metadata=metadata)


@pytest.mark.parametrize(
    ("said", "program"),
    [
        ("```python\na = 1\n```", "a = 1"),
        ("first\n```python\na = 1\n```\nthen\n```python\nb = 2\n```\nend", "b = 2"),
        ("```python\na = 1\n```\n```text\noutput\n```\n```\nplain\n```", "a = 1"),
        ("```\nplain\n```\n```bash\nls\n```", "plain"),
        ("~~~py\na = 1\n~~~", "a = 1"),
        ("````Python\na = '```'\n```\n````", "a = '```'\n```"),
        ("  ```python title=x\n  if a:\n    b\n\n  ```", "if a:\n  b\n"),
        ("```python\nnot closed", "not closed"),
        ("```python\n```", ""),
        ("no block, a = 1", None),
        ("```bash\nls\n```", None),
    ],
)
def test_the_last_block_of_python_is_the_submission(said, program):
    assert program_in(said) == program


def test_a_message_of_nothing_but_backticks_takes_no_time():
    assert program_in("`" * 1_000_000) == ""
    assert program_in("\n".join("`" * n for n in range(1000))) is not None


@pytest.mark.parametrize(
    ("program", "why"), [("", "no program"), (" \n", "no program"), ("x" * 2_000_000, "characters")]
)
def test_what_cannot_be_a_program_is_not_tried(program, why):
    assert why in unusable(program)
    assert unusable("x = 1") == ""


def test_a_list_of_asserts_is_one_test_each():
    tests = read_tests(task(tests=["assert f(1)", "x = 2\nassert f(x)"], setup="import math"))
    assert tests.setup == "import math"
    assert tests.tests == (CodeTest(code="assert f(1)"), CodeTest(code="x = 2\nassert f(x)"))


def test_the_functions_of_a_test_program_are_its_tests():
    program = "def test_a(): pass\ndef helper(): pass\ndef check(candidate): pass\ndef test_b(): pass"
    tests = read_tests(task(tests=program, entry_point="f"))
    check = FunctionTest(name="check", takes_entry_point=True)
    assert tests.tests == (FunctionTest(name="test_a"), FunctionTest(name="test_b"), check)
    assert program in tests.setup


def test_a_test_program_without_functions_is_one_test():
    assert read_tests(task(tests="assert f() == 1\nassert g() == 2")).tests == (
        CodeTest(code="assert f() == 1\nassert g() == 2"),
    )


def test_pairs_are_input_and_output_or_calls():
    assert read_tests(task(tests=[{"output": "1"}, {"input": "2", "output": "3"}])) == (
        InputOutput(output="1"),
        InputOutput(input="2", output="3"),
    )
    calls = read_tests(task(tests=[{"args": [1], "result": 2}, {"kwargs": {"x": 1}, "result": None}], entry_point="f"))
    assert calls.tests == (CallTest(args=(1,), result=2), CallTest(kwargs={"x": 1}, result=None))


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"tests": None},
        {"tests": []},
        {"tests": ""},
        {"tests": 5},
        {"tests": ["assert f("]},
        {"tests": ["assert f()", 5]},
        {"tests": "def test_a(:"},
        {"tests": "def check(candidate): pass"},
        {"tests": [{"result": 1}]},
        {"tests": [{"result": 1}, {"args": [1]}], "entry_point": "f"},
        {"tests": [{"result": 1, "argument": 2}], "entry_point": "f"},
        {"tests": [{"output": 5}]},
        {"tests": [{"output": "5", "in": ""}]},
        {"tests": [{"input": "5"}]},
        {"tests": ["assert 1"], "setup": "import ("},
        {"tests": ["assert 1"], "entry_point": 5},
        {"tests": ["assert '\0'"]},
    ],
)
def test_tests_that_cannot_be_used_are_refused_by_the_name_of_their_task(metadata):
    says = r"'t': metadata\.tests" if metadata.get("tests") else "'t' has no tests; mode py needs `tests`"
    with pytest.raises(InvalidInput, match=says):
        PythonTestsScorer().check_task(task(**metadata))
    with pytest.raises(InvalidInput, match=says):
        PythonEnvironments().make(task(**metadata))


async def test_the_first_submission_ends_the_episode():
    environment = PythonEnvironments().make(task(tests=["assert f()"]))
    opening = await environment.reset(seed=3)
    assert [message.content for message in opening] == [INSTRUCTIONS, "Write `f`."]
    assert [tool.name for tool in environment.tools] == ["run_python", "submit"]
    calls = tuple(ToolCall(id=str(n), name="submit", arguments='{"code": "x"}') for n in range(2))
    step = await environment.step(assistant(tool_calls=calls))
    assert step.terminated
    assert [message.content for message in step.observation] == [
        "submitted",
        "error: a program was submitted already; only the first counts",
    ]


@pytest.mark.parametrize(
    ("name", "arguments"), [("run", "{}"), ("run_python", "{}"), ("submit", '{"code": 5}'), ("submit", "{not json")]
)
async def test_a_malformed_call_is_answered_and_does_not_end_the_episode(name, arguments):
    environment = PythonEnvironments().make(task(tests=["assert f()"]))
    step = await environment.step(assistant(tool_calls=(ToolCall(id="1", name=name, arguments=arguments),)))
    assert not step.terminated
    assert step.observation[0].content.startswith("error: ")


@pytest.mark.parametrize("said", ["", "I give up.", "```bash\nls\n```"])
async def test_a_last_message_without_a_program_scores_zero(said):
    environment = PythonEnvironments().make(task(tests=["assert True"]))
    assert (await environment.step(assistant(said))).terminated
    score = await environment.score()
    assert score is not None
    assert (score.reward, score.explanation) == (0.0, "no program was submitted")


async def test_an_episode_that_was_cut_off_scores_zero():
    score = await PythonEnvironments().make(task(tests=["assert True"])).score()
    assert score is not None
    assert (score.reward, score.metrics["pass_fraction"]) == (0.0, 0.0)


def test_output_is_shown_with_its_ends():
    outcome = Outcome(exit_code=1, stdout=b"a" * 500 + b"\xff" + b"z" * 500, stderr=b"oops\n", mechanism="bubblewrap")
    text = shown(outcome, 200, Limits())
    assert text.startswith("exit code 1\nstdout:\n" + "a" * 100)
    assert "… 801 characters left out …" in text
    assert text.endswith("z" * 100 + "\nstderr:\noops")


def test_what_was_cut_and_why_it_was_killed_is_told():
    outcome = Outcome(
        signal=9, killed_reason=KillReason.OUTPUT, stdout=b"x" * 10, stdout_truncated=True, mechanism="bubblewrap"
    )
    assert shown(outcome, 1000, Limits(output_bytes=10)) == (
        "killed: output, at most 10 bytes allowed\nstdout (only the first 10 bytes were read):\nxxxxxxxxxx"
    )
    plain = shown(Outcome(exit_code=0, mechanism="subprocess (bubblewrap is not installed)"), 1000, Limits())
    assert plain == "exit code 0\nmechanism: subprocess (bubblewrap is not installed)"


def test_a_configuration_is_checked():
    environments_of("py", {"sandbox": "subprocess", "limits": {"wall_seconds": 3}, "partial": True})
    for wrong in ({"sandbox": "docker"}, {"limits": {"wall": 3}}, {"max_test_seconds": 0}, {"n_slots": 0}):
        with pytest.raises(InvalidInput, match="configuration of py"):
            environments_of("py", wrong)


def test_the_bundled_tasks_can_be_scored():
    tasks = bundled_tasks("py")
    assert len({task.task_id for task in tasks}) == 15
    for each in tasks:
        assert "`" in each.question
        read_tests(each)
    assert msgspec.json.decode(msgspec.json.encode(tasks), type=list[Task]) == tasks
