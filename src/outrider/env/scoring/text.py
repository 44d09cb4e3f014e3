"""Scorers that compare words: exact match, token F1, contains; and likeness of spelling."""

import asyncio
import re
import unicodedata
from collections import Counter
from enum import StrEnum

from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.scoring.config import ScorerConfig
from outrider.env.scoring.expected import expected_answers, expected_when_scoring
from outrider.env.scoring.extraction import extract_answer
from outrider.env.scoring.protocol import Scorer

_ARTICLES = frozenset({"a", "an", "the"})
_DROPPED = re.compile(r"(?!(?<=\d)\.\d)(?!(?<!\w)-\.?\d)[^\w\s]|_")
"""Punctuation, but for a decimal point and a minus sign: -3.5 is not 35."""

LONGEST_COMPARED = 20_000
"""Characters that likeness looks at."""

_QUICK = 1_000_000
"""How many pairs of characters are compared on the event loop: about a millisecond."""


class Measure(StrEnum):
    """What the words of an answer can be rewarded for. All three are reported as metrics, whichever is the reward."""

    EXACT_MATCH = "exact_match"
    F1 = "f1"
    CONTAINS = "contains"


class TextScorer(Scorer):
    """Compares words as SQuAD does: case, punctuation and articles do not count, the best of several answers does."""

    def __init__(self, measure: Measure, config: ScorerConfig) -> None:
        self._measure = measure
        self._threshold = config.threshold

    async def score(self, answer: str, task: Task) -> Score:
        expected = [normalised(text) for text in expected_when_scoring(task)]
        extracted = extract_answer(answer).text
        given = normalised(extracted)
        whole = given if extracted == answer else normalised(answer)
        metrics = {
            Measure.EXACT_MATCH.value: float(given in expected),
            Measure.F1.value: max(token_f1(text, given) for text in expected),
            Measure.CONTAINS.value: float(any(f" {text} " in f" {whole} " for text in expected)),
        }
        return Score(reward=rewarded(metrics[self._measure], self._threshold), output=extracted, metrics=metrics)

    def check_task(self, task: Task) -> None:
        expected_answers(task)


class SimilarityScorer(Scorer):
    """How much of two texts is the same, in the same order: twice the longest common subsequence by both lengths."""

    def __init__(self, config: ScorerConfig) -> None:
        self._threshold = config.threshold

    async def score(self, answer: str, task: Task) -> Score:
        extracted = extract_answer(answer).text
        given = normalised(extracted)[:LONGEST_COMPARED]
        best = 0.0
        for text in expected_when_scoring(task):
            expected = normalised(text)[:LONGEST_COMPARED]
            if len(expected) * len(given) <= _QUICK:
                best = max(best, likeness(expected, given))
            else:
                best = max(best, await asyncio.to_thread(likeness, expected, given))
        return Score(reward=rewarded(best, self._threshold), output=extracted, metrics={"similarity": best})

    def check_task(self, task: Task) -> None:
        expected_answers(task)


def rewarded(measure: float, threshold: float | None) -> float:
    return measure if threshold is None else float(measure >= threshold)


def normalised(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces. What consists of nothing else is left as it is."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).replace("\u2212", "-")
    text = text.casefold()
    words = [word for word in _DROPPED.sub("", text).split() if word not in _ARTICLES]
    return " ".join(words) or text.strip()


def token_f1(expected: str, given: str) -> float:
    """The harmonic mean of precision and recall of the words given; both texts are normalised."""
    if expected == given:
        return 1.0
    expected_words, given_words = expected.split(), given.split()
    n_common = (Counter(expected_words) & Counter(given_words)).total()
    return 2 * n_common / (len(expected_words) + len(given_words)) if n_common else 0.0


def likeness(one: str, other: str) -> float:
    """From 0 to 1. The common subsequence is found bit-parallel (Hyyrö 2004): one big-integer step a character."""
    if not one and not other:
        return 1.0
    places: dict[str, int] = {}
    for index, character in enumerate(one):
        places[character] = places.get(character, 0) | (1 << index)
    everything = (1 << len(one)) - 1
    unmatched = everything
    for character in other:
        matching = unmatched & places.get(character, 0)
        unmatched = (unmatched + matching) | (unmatched - matching)
        unmatched &= everything
    n_common = len(one) - unmatched.bit_count()
    return 2 * n_common / (len(one) + len(other))
