"""Multiple choice: the letter is found however models write it, and nothing is guessed where none is named."""

import pytest

from outrider.core.errors import InvalidInput, ScoreError
from outrider.core.task import Task
from outrider.env.scoring import ScorerConfig, scorer_of
from outrider.env.scoring.choice import named_choice

CHOICES = {"A": "Paris", "B": "Rome", "C": "New York", "D": "$x^2$", "I": "Lima"}


@pytest.mark.parametrize(
    "said",
    [
        "B",
        "b",
        "(B)",
        "B.",
        "**B**",
        "B. Rome",
        "B) Rome",
        "(B) Rome",
        "B: Rome",
        "Rome",
        "rome.",
        "Option B",
        "Answer: B",
        "Answer: (b)",
        "The answer is B",
        "The answer is (B).",
        "The correct answer is **B**.",
        "The best answer is: **(B) Rome**",
        "**Answer:** B",
        "\\boxed{B}",
        "$\\boxed{\\text{B}}$",
        "\\boxed{\\textbf{(B)}}",
        "\\boxed{\\mathrm{B}}",
        "\\boxed{Rome}",
        "\\boxed{B. Rome}",
        "The product is \\boxed{17}, so the answer is (B).",
        "<answer>B</answer>",
        "<answer>(B) Rome</answer>",
        "The answer is B because A is in France and C in America.",
        "So the answer must be B.\nI hope this helps.",
        "A is wrong, and so is C. Option B is correct.",
        "(B) is the right one.",
        "I would choose B, as Rome is in Italy.",
        "Let me think. A seems likely.\n\nThe answer is B",
        "The answer is Rome, of course",
        "Therefore it is Rome.",
        "<think>The answer is A. No, wait.</think>B",
        "A, C and D are in other countries.\nFinal answer: B",
        "Answer: B\n\nExplanation: the option A is in France.",
    ],
)
def test_a_choice_is_found_by_its_letter_or_its_text(said: str):
    assert named_choice(said, CHOICES) == "B"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "I do not know.",
        "It is a city.",
        "The answer is a capital in Europe.",
        "A or B",
        "Both Paris and Rome",
        "\\boxed{A, B}",
        "\\boxed{E}",
        "E",
        "As an assistant I cannot choose.",
        "I think it depends.",
    ],
)
def test_nothing_is_guessed_where_no_choice_is_named_or_several_are(said: str):
    assert named_choice(said, CHOICES) is None


@pytest.mark.parametrize(
    ("said", "letter"), [("\\boxed{x^2}", "D"), ("I", "I"), ("\\boxed{New  York}", "C"), ("A", "A")]
)
def test_texts_are_compared_by_their_looks(said: str, letter: str):
    assert named_choice(said, CHOICES) == letter


async def test_the_right_letter_earns_the_reward():
    scorer = scorer_of("choice", ScorerConfig())
    task = Task(task_id="t", question="?", answer="B", metadata={"choices": CHOICES})
    scorer.check_task(task)
    right, wrong, none = [await scorer.score(said, task) for said in ("(B)", "(A)", "hm")]
    assert (right.reward, right.output, wrong.reward, wrong.output) == (1.0, "B", 0.0, "A")
    assert (none.reward, none.explanation) == (0.0, "the answer names none of the choices")


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Task(task_id="t", answer="B"), "task 't' has no choices"),
        (Task(task_id="t", metadata={"choices": CHOICES}), "does not say which choice is right"),
        (Task(task_id="t", answer="E", metadata={"choices": CHOICES}), "the answer 'E' is none of A, B, C, D, I"),
    ],
)
async def test_a_task_without_choices_or_a_right_one_is_refused(task: Task, says: str):
    scorer = scorer_of("choice", ScorerConfig())
    with pytest.raises(InvalidInput, match=says):
        scorer.check_task(task)
    with pytest.raises(ScoreError, match=says):
        await scorer.score("B", task)
