"""Where the answer stands in a text."""

import time

import pytest

from outrider.env.scoring.extraction import extract_answer


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (r"So \boxed{42}.", "42"),
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed {7}", "7"),
        (r"\fbox{yes}", "yes"),
        (r"so $\boxed 2$ it is", "2"),
        (r"\[x = \boxed\frac{1}{2}.\]", r"\frac{1}{2}"),
        (r"$\boxed\text{the answer}$", r"\text{the answer}"),
        (r"$\boxed -\frac12 \sqrt{3}$", r"-\frac12 \sqrt{3}"),
        (r"It is \boxed 42, and so is this.", "42"),
        (r"$\boxed{1}$, no, $\boxed 2$", "2"),
        (r"\boxed{\fbox 2}", "2"),
        ("${\\boxed 3}$", "3"),
        (r"\boxed A.", "A"),
        (r"Use \boxed for it. The answer is 5", "5"),
        (r"Use a \boxed, not a box. The answer is 5", "5"),
        (r"The answer is 5. \boxed\frac{1", r"5. \boxed\frac{1"),
        (r"\boxed{3} but \boxed{}", "3"),
        (r"\boxed{3} but \boxed{4", "3"),
        (r"<answer>5</answer> \boxed{6}", "6"),
        ("<answer> Paris </answer>", "Paris"),
        ("<ANSWER>a</ANSWER> no: <answer>b</answer>", "b"),
        ("<answer>42", "42"),
        ("<answer>The answer is 42.</answer>", "42"),
        ("The answer is 42.", "42"),
        ("the final answer is: **42**", "42"),
        ("**Answer:** 42", "42"),
        ("**Final Answer**: 42", "42"),
        ("Answer:\n\n  x + 1\n", "x + 1"),
        ("My first answer is 1.\nMy final answer is 2.", "2"),
        ("Let me think.\nIt is\nParis.", "Paris"),
        ("Paris", "Paris"),
        ("  *Paris* ", "Paris"),
        ("3.5", "3.5"),
        ("and so on...", "and so on..."),
        ("", ""),
        ("\n\n", ""),
        ("<answer></answer>", "<answer></answer>"),
        ("no answers here", "no answers here"),
    ],
)
def test_an_answer_is_found_by_its_mark_or_at_the_end(said: str, answer: str):
    assert extract_answer(said).text == answer


@pytest.mark.parametrize(
    ("said", "marked"), [(r"\boxed{1}", True), ("<answer>1", True), ("Answer: 1", False), ("1", False)]
)
def test_boxes_and_tags_mark_where_an_answer_ends(said: str, marked: bool):
    assert extract_answer(said).marked is marked


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "{",
        "}",
        "<answer>",
        "answer is ",
        "answer ",
        " ",
        "*",
        "\\",
        "\\boxed{a}",
        "\n",
        "answer:*_ ",
        "\\boxed 1 ",
        "\\boxed a ",
        "\\fbox-{",
        "\\boxed\\x }",
    ],
)
def test_a_megabyte_of_anything_is_read_in_a_moment(unit: str):
    said = unit * (1_000_000 // len(unit))
    began = time.process_time()
    extract_answer(said)
    assert time.process_time() - began < 5.0
