"""The script that solves math problems, from the text alone."""

import random

import msgspec
import pytest

from outrider.core.chat import Message, ToolSpec, system, tool_result, user
from outrider.env.calculator import calculate, shown
from outrider.env.scoring.extraction import extract_answer
from outrider.policy.scripted.math import MathScript

CALCULATOR = ToolSpec(name="calculator", description="", parameters={})
SCRIPT = MathScript()


def opening(question: str) -> list[Message]:
    return [system(r"Answer in \boxed{}."), user(question)]


def solved(question: str) -> str:
    """What the script answers once the calculator has told it what it asked."""
    messages = opening(question)
    for _ in range(3):
        reply = SCRIPT.solve(messages, [CALCULATOR])
        if not reply.tool_calls:
            return extract_answer(reply.content).text
        messages.append(reply)
        for call in reply.tool_calls:
            expression = msgspec.json.decode(call.arguments)["expression"]
            messages.append(tool_result(call, shown(calculate(expression))))
    raise AssertionError("the script does not come to an end")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Ada buys 7 plums at 2 dollars each. How many dollars does she pay?", "14"),
        ("A bus travels 90 kilometres in 2 hours. At the same speed, how many kilometres in 3 hours?", "135"),
        ("What is 2/7 + 3/5, as a fraction?", r"\frac{31}{35}"),
        ("What is 20% of 35?", "7"),
        ("Solve for z: 7z - 2 = 3(z + 4).", "3.5"),
        ("Find x and y with 3x + y = 9 and x - 2y = 3. Answer as (x, y).", "(3, 0)"),
        ("Find all real solutions of 2x^2 - 3x - 2 = 0.", r"\{-0.5, 2\}"),
        ("Find all real solutions of x^2 - 3 = 0.", r"\{\frac{0 - \sqrt{12}}{2}, \frac{0 + \sqrt{12}}{2}\}"),
        ("For which x is 5 - 2x > 1?", r"(-\infty, 2)"),
        ("In how many ways can 2 of 6 cards be chosen?", "15"),
        ("In how many ways can 2 of 6 cards be ranked?", "30"),
        ("In how many ways can the letters of the word NOON be arranged?", "6"),
        ("Expand (x - 1)(x + 1)(x + 2).", "x^3 + 2x^2 - x - 2"),
        ("Expand (a + b)^2.", "a^2 + 2ab + b^2"),
        ("Simplify x/2 + x/3.", r"\frac{5}{6}x"),
        ("Simplify (x^3 - 8)/(x - 2).", "x^2 + 2x + 4"),
        ("Simplify x - x.", "0"),
        ("What is the derivative of y^3 + y with respect to y?", "3y^2 + 1"),
    ],
)
def test_problems_it_was_not_made_for_are_solved_too(question: str, answer: str):
    assert solved(question) == answer


def test_arithmetic_is_left_to_the_calculator():
    reply = SCRIPT.solve(opening("What is 15% of 240?"), [CALCULATOR])
    assert [call.name for call in reply.tool_calls] == ["calculator"]
    assert msgspec.json.decode(reply.tool_calls[0].arguments) == {"expression": "(15 / 100) * (240)"}


def test_without_a_calculator_the_answer_is_the_calculation():
    reply = SCRIPT.solve(opening("What is 15% of 240?"), [])
    assert reply.content == r"Final Answer: \boxed{((15 / 100) * (240))}"


@pytest.mark.parametrize(
    "question",
    [
        "",
        "Why?",
        "Expand x^y.",
        "Expand x^999999999.",
        "Expand ((((.",
        "Simplify 1/0.",
        "Simplify (x)/(y - y).",
        "In how many ways can 999999 of 9999999 books be chosen?",
        "Solve for x: = .",
        "What is the derivative of with respect to x?",
    ],
)
def test_what_it_does_not_understand_it_says_so_or_asks_nonsense_but_goes_on(question: str):
    messages = opening(question)
    reply = SCRIPT.solve(messages, [CALCULATOR])
    for call in reply.tool_calls:
        messages += [reply, tool_result(call, "error: cannot read the expression")]
        assert "boxed" in SCRIPT.solve(messages, [CALCULATOR]).content


def test_it_understands_a_calculator_and_a_box_and_nothing_else():
    assert SCRIPT.understands(opening("?"), [CALCULATOR])
    assert SCRIPT.understands(opening("?"), [])
    assert not SCRIPT.understands([system("Play."), user("go")], [])
    assert not SCRIPT.understands(opening("?"), [ToolSpec(name="search", description="", parameters={})])


def test_a_guess_keeps_to_the_form_and_follows_the_seed():
    replies = [SCRIPT.guess(opening("What is 1 + 1?"), [CALCULATOR], random.Random(seed)).content for seed in (1, 1, 2)]
    assert replies[0] == replies[1] != replies[2]
    assert extract_answer(replies[0]).marked
