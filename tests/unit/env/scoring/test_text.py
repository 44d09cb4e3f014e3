"""Scorers that compare words."""

import time

import pytest

from outrider.core.errors import InvalidInput, ScoreError
from outrider.core.task import Task
from outrider.env.scoring import ScorerConfig, scorer_of
from outrider.env.scoring.text import likeness, normalised, token_f1


def task(answer: object) -> Task:
    return Task(task_id="t", question="?", answer=answer)


async def reward(name: str, answer: str, expected: object, **config: float) -> float:
    return (await scorer_of(name, ScorerConfig(**config)).score(answer, task(expected))).reward


@pytest.mark.parametrize(
    ("given", "expected", "is_right"),
    [
        ("Paris", "paris", True),
        ("The Eiffel Tower!", "eiffel tower", True),
        ("Answer: the Long Ear.", "Long Ear", True),
        ("I looked it up.\nAnswer: Paris", "Paris", True),
        ("London", "Paris", False),
        ("", "Paris", False),
        ("11", ["11", "eleven"], True),
        ("Eleven", ["11", "eleven"], True),
        ("twelve", ["11", "eleven"], False),
        ("-5", "5", False),
        ("3.5", "35", False),
        ("1,000", "1000", True),
        ("4", 4, True),
        ("4", 4.0, True),
        ("Caf\u00e9", "Cafe\u0301", True),
        ("?", "!", False),
    ],
)
async def test_exact_match_looks_past_case_punctuation_and_articles(given: str, expected: object, is_right: bool):
    assert await reward("exact_match", given, expected) == float(is_right)


async def test_f1_counts_the_words_in_common_of_the_best_answer():
    assert await reward("f1", "the red house", "red house") == 1.0
    assert await reward("f1", "red car", "red house") == 0.5
    assert await reward("f1", "red car", ["blue boat", "a red car"]) == 1.0
    assert await reward("f1", "nothing of it", "red house") == 0.0


def test_f1_counts_a_repeated_word_as_often_as_both_have_it():
    assert token_f1("a a b", "a c") == pytest.approx(0.4)


async def test_contains_looks_for_whole_words_in_all_that_was_said():
    assert await reward("contains", "I think it is Paris.\nBut who knows?", "paris") == 1.0
    assert await reward("contains", "comparison", "paris") == 0.0


async def test_the_other_measures_are_metrics_whichever_is_the_reward():
    score = await scorer_of("contains", ScorerConfig()).score("It was Ada Lovelace", task("Ada Lovelace"))
    assert score.reward == 1.0
    assert score.metrics == {"exact_match": 0.0, "f1": pytest.approx(2 / 3), "contains": 1.0}


async def test_with_a_threshold_a_measure_becomes_yes_or_no():
    assert await reward("f1", "red car", "red house", threshold=0.5) == 1.0
    assert await reward("f1", "red car", "red house", threshold=0.6) == 0.0
    assert await reward("similarity", "colour", "color", threshold=0.9) == 1.0


async def test_similarity_is_one_for_equal_texts_and_falls_with_every_difference():
    assert await reward("similarity", "the colour", "colour") == 1.0
    near, far = await reward("similarity", "colour", "color"), await reward("similarity", "clr", "color")
    assert 0.0 < far < near < 1.0
    assert await reward("similarity", "xyz", "color") == 0.0


def test_likeness_is_twice_the_longest_common_subsequence_by_both_lengths():
    assert likeness("abcbdab", "bdcaba") == 2 * 4 / 13
    assert likeness("", "") == 1.0
    assert likeness("a", "") == 0.0


async def test_long_texts_are_compared_in_bounded_time():
    began = time.process_time()
    assert await reward("similarity", "ab" * 500_000, "ba" * 500_000) > 0.9
    assert time.process_time() - began < 10.0


def test_what_is_only_punctuation_keeps_it():
    assert normalised("C++") == "c"
    assert normalised("?!") == "?!"
    assert normalised("the") == "the"


@pytest.mark.parametrize("name", ["exact_match", "f1", "contains", "similarity", "numeric", "math"])
@pytest.mark.parametrize("missing", [None, "", [], [None], "  "])
async def test_a_task_without_an_answer_is_refused_before_and_a_failure_after(name: str, missing: object):
    scorer = scorer_of(name, ScorerConfig())
    with pytest.raises(InvalidInput, match="task 't' has no answer"):
        scorer.check_task(task(missing))
    with pytest.raises(ScoreError, match="task 't' has no answer"):
        await scorer.score("5", task(missing))


def test_an_answer_that_is_no_text_is_refused():
    with pytest.raises(InvalidInput, match="not dict"):
        scorer_of("f1", ScorerConfig()).check_task(task({"a": 1}))
