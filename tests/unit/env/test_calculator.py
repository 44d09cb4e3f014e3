"""The calculator: exact, bounded, and no way into Python."""

import math
import time
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.chat import ToolCall
from outrider.core.errors import ToolRefusal
from outrider.env.calculator import LONGEST, calculate, calculator, shown
from outrider.env.tools import answer_calls


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("0.1 + 0.2", "0.3"),
        ("1/3 + 1/6", "0.5"),
        ("1/3", "0.333333333333333 (= 1/3)"),
        ("2**10", "1024"),
        ("2^10", "1024"),
        ("-2**2", "-4"),
        ("7 // 2", "3"),
        ("-7 % 3", "2"),
        ("6 \u00d7 7 \u00f7 2", "21"),
        ("sqrt(16)", "4"),
        ("sqrt(9/4)", "1.5"),
        ("sqrt(2)", "1.4142135623731"),
        ("2**-3", "0.125"),
        ("8**(1/3)", "2"),
        ("log(8, 2)", "3"),
        ("log10(1000)", "3"),
        ("ln(e)", "1"),
        ("sin(pi/6)", "0.5"),
        ("factorial(20)", "2432902008176640000"),
        ("comb(10, 3)", "120"),
        ("perm(5, 2)", "20"),
        ("gcd(12, 18) + lcm(4, 6)", "18"),
        ("max(1, 2.5, 2) - min(3, 1/2)", "2"),
        ("round(2.567, 1)", "2.6"),
        ("floor(-2.5) + ceil(2.1)", "0"),
        ("abs(-3)", "3"),
        ("SQRT(4) + PI - pi", "2"),
        ("1e3", "1000"),
        ("10**600 / 3", f"3.33333333333333e+599 (= {10**600}/3)"),
        ("1.1**3000", "1.50679952517335e+124"),
        ("1**99999999999", "1"),
        ("0**0", "1"),
    ],
)
def test_arithmetic_is_worked_out(expression: str, result: str):
    assert shown(calculate(expression)) == result


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1/0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0**-1", "division by zero"),
        ("sqrt(-1)", "no real result"),
        ("(-8)**(1/3)", "no real result"),
        ("log(0)", "no real result"),
        ("factorial(-1)", "no real result"),
        ("factorial(2.5)", "whole numbers"),
        ("9**9**9**9", "too large"),
        ("2**4096", "too large"),
        ("factorial(1000)", "too large"),
        ("factorial(10**9)", "1000 is the most"),
        ("comb(10**6, 5)", "1000 is the most"),
        ("1e999", "too large"),
        ("exp(1000)", "too large"),
        ("10**200 * 10**200 * 1.5**2000 * 10.0**900 * 10**400", "too large"),
        ("round(1, 10**9)", "too large"),
        ("x + 1", "there is no 'x'"),
        ("foo(1)", "there is no function 'foo'"),
        ("sin()", "sin takes 1 numbers, not 0"),
        ("sin(1, 2)", "sin takes 1 numbers, not 2"),
        ("1,000", "1000, not 1,000"),
        ("2pi", "2*pi, not 2pi"),
        ("3(4)", "only numbers"),
        ("1 if 2 else 3", "only numbers"),
        ("1 and 2", "only numbers"),
        ("not 1", "only numbers"),
        ("True", "only numbers"),
        ("__import__('os')", "cannot read"),
        ("(1).real", "cannot read"),
        ("[1, 2]", "cannot read"),
        ("lambda: 1", "cannot read"),
        ("1if 2else 3", "cannot read"),
        ("0x10", "cannot read"),
        ("5!", "cannot read"),
        ("a:=1", "cannot read"),
        ("", "cannot read"),
        ("1 +", "cannot read"),
        ("\ud800", "cannot read"),
        ("1\x00", "cannot read"),
        ("(" * 300 + "1" + ")" * 300, "cannot read"),
        ("-" * 900 + "1", "nested"),
        ("1" * (LONGEST + 1), f"{LONGEST} are allowed"),
    ],
)
def test_what_cannot_be_worked_out_is_refused_with_the_reason(expression: str, reason: str):
    with pytest.raises(ToolRefusal, match=reason.replace("*", r"\*")):
        calculate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "+".join(["factorial(300)"] * 60),
        "*".join(["9**1000"] * 100),
        "**".join(["9"] * 300),
        "comb(1000, 500)**1000",
        "9" * 999,
        "/".join(["1.1"] * 240),
        "lcm(" + ",".join(str(10**7 + i) for i in range(100)) + ")",
    ],
)
def test_the_worst_expressions_take_no_time(expression: str):
    began = time.process_time()
    with suppress(ToolRefusal):
        shown(calculate(expression))
    assert time.process_time() - began < 1.0


@given(
    st.recursive(
        st.integers(0, 50).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        max_leaves=12,
    )
)
def test_fractions_come_out_exactly_as_python_counts_them(expression: str):
    exact = "".join(
        f"F({word})" if word.isdigit() else word for word in expression.replace("(", "( ").replace(")", " )").split(" ")
    )
    try:
        expected = eval(exact, {"F": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ToolRefusal):
            calculate(expression)
    else:
        assert calculate(expression) == expected


@given(st.text(max_size=60))
def test_any_text_is_worked_out_or_refused(expression: str):
    try:
        value = calculate(expression)
    except ToolRefusal:
        return
    assert math.isfinite(value)
    assert shown(value)


async def test_a_model_calls_it_as_a_tool_and_reads_what_was_wrong():
    calls = [
        ToolCall(id="1", name="calculator", arguments='{"expression": "6 * 7"}'),
        ToolCall(id="2", name="calculator", arguments='{"expression": "6 *"}'),
        ToolCall(id="3", name="calculator", arguments='{"sum": "6 * 7"}'),
    ]
    answers, n_errors = await answer_calls(calls, [calculator()])
    assert answers[0].content == "42"
    assert answers[1].content.startswith("error: cannot read the expression '6 *'")
    assert "error: the arguments of calculator cannot be used" in answers[2].content
    assert n_errors == 2
