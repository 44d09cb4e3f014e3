"""Numbers as people write them."""

import time
from fractions import Fraction

import pytest

from outrider.env.scoring.numbers import last_number, readings, whole_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-3.5", Fraction(-7, 2)),
        ("\u22127", -7),
        ("1,234,567.50", Fraction("1234567.5")),
        ("1{,}000", 1000),
        ("$1,234", 1234),
        ("-$5", -5),
        ("$-5", -5),
        ("\u20ac 12", 12),
        ("3/4", Fraction(3, 4)),
        ("1 1/2", Fraction(3, 2)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        ("1e3", 1000),
        ("1.5 \u00d7 10^3", 1500),
        (r"1.5\times 10^{-3}", Fraction(3, 2000)),
        ("2^10", 1024),
        ("2^-1", Fraction(1, 2)),
        ("12 apples", 12),
        ("12 km/h", 12),
        ("42km", 42),
        ("5 cm^2", 5),
        (r"5\text{ cm}", 5),
        (".5", Fraction(1, 2)),
    ],
)
def test_a_text_that_is_a_number_is_read_exactly(text: str, value: Fraction):
    number = whole_number(text)
    assert number is not None
    assert number.value == value
    assert not number.percent


@pytest.mark.parametrize(
    "text", ["", "x", "5x", "12ab", "1/0", "0^0", "1,2", "9" * 500, "1e999999", "9^9999", "1 2 3", "a 5", "5 and 6"]
)
def test_what_is_no_number_is_not_read_as_one(text: str):
    assert whole_number(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("so 1,234 apples cost $3.50 each.", Fraction(7, 2)),
        ("5-3", 3),
        ("x = -3", -3),
        ("first 1/2, then 3/4", Fraction(3, 4)),
        ("10 or 1e999999", 10),
        ("it is 50 percent", 50),
    ],
)
def test_the_last_number_of_a_text_is_found(text: str, value: Fraction):
    number = last_number(text)
    assert number is not None
    assert number.value == value


def test_a_text_without_a_number_has_no_last_one():
    assert last_number("none at all") is None


def test_a_percentage_can_be_meant_in_two_ways_beside_a_bare_number():
    percent, bare = whole_number("25%"), whole_number("0.25")
    assert percent is not None
    assert bare is not None
    assert any(one == other for one, other in readings(percent, bare))
    assert readings(percent, percent) == [(25, 25)]


@pytest.mark.parametrize("unit", ["1", "1 ", "1,", "-", "$ ", "1/", "e", "9^", ".", "1e5 "])
def test_a_megabyte_of_anything_is_read_in_a_moment(unit: str):
    text = unit * (1_000_000 // len(unit))
    began = time.process_time()
    whole_number(text)
    last_number(text)
    assert time.process_time() - began < 5.0
