"""The script for Python tasks: what it says at each turn. Nothing is run."""

import json
import random

import pytest

from outrider.core.chat import Message, ToolSpec, assistant, system, tool_result, user
from outrider.policy.scripted.python import PROGRAMS, PythonScript

TOOLS = tuple(ToolSpec(name=name, description="", parameters={}) for name in ("run_python", "submit"))
ASKED = (system("Solve the task."), user("Write a function `flatten(nested)` that flattens lists."))


def code(message: Message) -> str:
    (call,) = message.tool_calls
    return json.loads(call.arguments)["code"]


def test_it_understands_conversations_about_python_only():
    script = PythonScript()
    assert script.understands(ASKED, TOOLS)
    assert script.understands((system("Answer with one ```python block."), user("…")), ())
    assert not script.understands(ASKED, ())
    assert not script.understands(ASKED, (ToolSpec(name="search", description="", parameters={}),))


def test_it_tries_its_program_reads_the_output_and_submits():
    script = PythonScript()
    first = script.solve(ASKED, TOOLS)
    assert first.tool_calls[0].name == "run_python"
    assert "print(flatten(" in code(first)
    ran = tool_result(first.tool_calls[0], "exit code 0\nstdout:\n[1, 2, 3]")
    second = script.solve((*ASKED, first, ran), TOOLS)
    assert second.tool_calls[0].name == "submit"
    assert "print(" not in code(second)
    assert "def flatten" in code(second)


@pytest.mark.parametrize(
    "output", ["exit code 1\nstderr:\n[1, 2, 3]", "exit code 0\nstdout:\n[1]", "killed: wall time"]
)
def test_it_does_not_submit_what_did_not_work(output):
    script = PythonScript()
    first = script.solve(ASKED, TOOLS)
    second = script.solve((*ASKED, first, tool_result(first.tool_calls[0], output)), TOOLS)
    assert not second.tool_calls
    assert output in second.content


def test_without_tools_it_answers_with_a_block():
    reply = PythonScript().solve((system("… one ```python block"), ASKED[1]), ())
    assert reply == assistant(f"```python\n{PROGRAMS['flatten'].source}\n```")


def test_what_it_has_not_learnt_it_says():
    reply = PythonScript().solve((ASKED[0], user("Write a function `halts(program)`.")), TOOLS)
    assert not reply.tool_calls
    assert "```" not in reply.content


def test_a_guess_keeps_the_form_and_depends_on_the_seed_alone():
    script = PythonScript()
    guesses = [script.guess(ASKED, TOOLS, random.Random(seed)) for seed in range(30)]
    assert guesses == [script.guess(ASKED, TOOLS, random.Random(seed)) for seed in range(30)]
    assert {guess.tool_calls[0].name for guess in guesses} == {"run_python", "submit"}
    for guess in guesses:
        compile(code(guess), "guess", "exec")
        assert "def flatten(" in code(guess)
    program = (ASKED[0], user("Write a program `caesar` that reads text."))
    assert code(script.guess(program, TOOLS, random.Random(1))).startswith("print(")


def test_after_a_trial_a_guess_is_handed_in():
    script = PythonScript()
    ran = (*ASKED, assistant(), tool_result(script.solve(ASKED, TOOLS).tool_calls[0], "exit code 0"))
    assert {script.guess(ran, TOOLS, random.Random(seed)).tool_calls[0].name for seed in range(20)} == {"submit"}
