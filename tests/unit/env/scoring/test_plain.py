"""Formulas compared as text and numbers."""

import pytest

from outrider.env.scoring.plain import ends_with_number, equal_at_sight, formula_in, tidied
from outrider.env.scoring.symbolic import to_latex


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        ("42", "42"),
        ("x + 1", "x+1"),
        (r"\frac{1}{2}", r"\dfrac{1}{2}"),
        ("1/2", r"\frac12"),
        ("1/2", "0.5"),
        ("1/3", "0.333333"),
        ("1/6", "0.166667"),
        ("50%", "0.5"),
        (r"50\%", "50"),
        ("1,000", "1000"),
        (r"\$5", "5"),
        ("5", "x = 5"),
        ("x = 5", "5"),
        ("1 1/2", "3/2"),
        (r"\left(1, 2\right)", "(1,2)"),
        ("$x^2$", r"\(x^2\)"),
        ("12 cm", "12"),
        (r"\text{blue}", "Blue"),
        ("no", "No."),
    ],
)
def test_what_only_looks_different_is_equal_at_sight(expected: str, given: str):
    assert equal_at_sight(tidied(expected), tidied(given)) is True


@pytest.mark.parametrize(
    ("expected", "given"),
    [("42", "41"), ("1/3", "0.33"), ("1e-9", "2e-9"), ("1 1/2", "11/2"), ("no", "on"), ("blue", "red"), ("5", "-5")],
)
def test_other_numbers_and_words_are_different_at_sight(expected: str, given: str):
    assert equal_at_sight(tidied(expected), tidied(given)) is False


@pytest.mark.parametrize(
    ("expected", "given"), [("x+1", "1+x"), ("5", "2+3"), ("5", "5x"), ("12ab", "12"), ("A", "(A)")]
)
def test_what_needs_thought_is_left_undecided(expected: str, given: str):
    assert equal_at_sight(tidied(expected), tidied(given)) is None


@pytest.mark.parametrize(
    ("prose", "formula"),
    [
        ("So we get x + 1 as the sum", "x + 1"),
        ("Therefore x^2", "x^2"),
        ("42 because it is 6 times 7", "42"),
        ("sin(x) + 1", "sin(x) + 1"),
        ("x = 1 or x = 2", "x = 1 or x = 2"),
        ("x + 1", "x + 1"),
        ("nothing at all", "nothing at all"),
    ],
)
def test_the_first_formula_of_a_sentence_is_found(prose: str, formula: str):
    assert formula_in(prose) == formula


def test_the_last_number_of_a_sentence_counts_unless_there_are_variables():
    assert ends_with_number("I had 3 apples, now there are 42", "42")
    assert not ends_with_number("the total is 5x", "5")
    assert not ends_with_number("42", "42")


@pytest.mark.parametrize(
    ("typed", "latex"),
    [
        ("x**2", "x^2"),
        ("x**12", "x^{12}"),
        ("2**(n+1)", "2^{n+1}"),
        ("2pi", r"2\pi "),
        ("sqrt(2)", "sqrt(2)"),
        ("√2", r"\sqrt{2}"),
        ("x <= 5", r"x \leq  5"),
        ("(-inf, 5)", r"(-\infty , 5)"),
        ("sin x", r"\sin x"),
        (r"\sin x", r"\sin x"),
        (r"\pi", r"\pi"),
        ("90°", r"90^\circ "),
    ],
)
def test_what_people_type_becomes_latex(typed: str, latex: str):
    assert to_latex(typed) == latex
