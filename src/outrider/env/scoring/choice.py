"""The scorer of multiple choice: which lettered choice an answer names."""

import re
from collections.abc import Mapping, Sequence

from outrider.core.errors import InvalidInput, ScoreError
from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.scoring.config import ScorerConfig
from outrider.env.scoring.extraction import extract_answer
from outrider.env.scoring.protocol import Scorer

CHOICES = "choices"
"""Where a task's metadata holds the texts of its choices by their letters."""

_LOOKS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|rm|bf|mbox)\b|[*_`${}\\]")
"""What only changes how a letter looks."""

_LETTER = r"\(?(?P<letter>[A-Za-z])\)?"
_WHOLE = re.compile(
    rf"(?:(?:the )?(?:answer|option|choice|letter)\s*(?:is|:)?\s*)?{_LETTER}\s*[).:,;-]*", re.IGNORECASE
)
_CAPITAL = r"(?:\((?P<bracketed>[A-Za-z])\)|(?P<letter>[A-Z])(?![\w'\u2019]))"
_WITH_TEXT = re.compile(
    r"(?i:option |choice )?(?:\((?P<bracketed>[A-Z])\)|(?P<letter>[A-Z])(?:[).:]|\s+[-\u2013\u2014]))\s*\S.*", re.DOTALL
)
_SAID = (
    re.compile(
        rf"(?i:\banswer\b[\s:]*(?:(?:is|would be|should be|must be)\b)?[\s:]*(?:option\b|choice\b)?\s*){_CAPITAL}"
    ),
    re.compile(
        rf"(?:{_CAPITAL})[).:,]?\s+(?i:(?:is|seems|looks)\s+(?:the\s+)?(?:most\s+)?"
        r"(?:correct|right|best|accurate|appropriate)\b)"
    ),
    re.compile(
        r"(?i:\b(?:choose|select|pick|go with|correct (?:option|choice)(?: is)?)[\s:]+(?:option\b|choice\b)?\s*)"
        rf"{_CAPITAL}"
    ),
)
"""Ways to name a choice in the middle of a text, those that leave the least doubt first."""

_ALONE = re.compile(rf"(?<![\w'\u2019]){_CAPITAL}")
_THOUGHT = "</think>"


class ChoiceScorer(Scorer):
    """1 if the answer names the right choice: by its letter, however that is marked, or by its text."""

    def __init__(self, config: ScorerConfig) -> None: ...

    async def score(self, answer: str, task: Task) -> Score:
        try:
            choices, right = _choices_of(task)
        except InvalidInput as exc:
            raise ScoreError(str(exc), stage="score") from exc
        named = named_choice(answer, choices)
        if named is None:
            return Score(reward=0.0, output=answer[-200:].strip(), explanation="the answer names none of the choices")
        return Score(reward=float(named == right), output=named)

    def check_task(self, task: Task) -> None:
        _choices_of(task)


def _choices_of(task: Task) -> tuple[Mapping[str, str], str]:
    """The choices, and the letter of the right one."""
    choices = task.metadata.get(CHOICES)
    if not isinstance(choices, Mapping) or not all(isinstance(text, str) for text in choices.values()):
        raise InvalidInput(f"task {task.task_id!r} has no choices; metadata.{CHOICES} holds their texts by letter")
    if task.answer is None:
        raise InvalidInput(f"task {task.task_id!r} does not say which choice is right; name it in the field `answer`")
    if task.answer not in choices:
        raise InvalidInput(f"task {task.task_id!r}: the answer {task.answer!r:.60} is none of {', '.join(choices)}")
    return choices, task.answer


def named_choice(said: str, choices: Mapping[str, str]) -> str | None:
    """The letter of the choice that is named last and most clearly; None: none is, or several are."""
    said = said.rpartition(_THOUGHT)[2]
    extracted = extract_answer(said)
    answer = _plain(extracted.text)
    found = _as_letter(answer, choices) or _as_text(extracted.text, choices)
    if found is None and extracted.marked:
        found = _only_letter(answer, choices) or _only_text(answer, choices)
    if found is None:
        plain = _plain(said)
        found = next((letter for pattern in _SAID if (letter := _last(pattern, plain, choices))), None)
    return found or _only_letter(answer, choices) or _only_text(answer, choices)


def _plain(text: str) -> str:
    return _LOOKS.sub("", text).strip()


def _as_letter(answer: str, choices: Mapping[str, str]) -> str | None:
    """The letter that the answer begins with or consists of."""
    if (match := _WHOLE.fullmatch(answer)) and (letter := match["letter"].upper()) in choices:
        return letter
    if (match := _WITH_TEXT.fullmatch(answer)) and (letter := match["bracketed"] or match["letter"]) in choices:
        return letter
    return None


def _as_text(answer: str, choices: Mapping[str, str]) -> str | None:
    """The choice whose text the answer is."""
    wanted = {_folded(answer), _folded(_plain(answer))}
    found = [letter for letter, text in choices.items() if wanted & {_folded(text), _folded(_plain(text))}]
    return found[0] if len(found) == 1 else None


def _last(pattern: re.Pattern[str], text: str, choices: Mapping[str, str]) -> str | None:
    letters = [letter for match in pattern.finditer(text) if (letter := _letter(match).upper()) in choices]
    return letters[-1] if letters else None


def _only_letter(text: str, choices: Mapping[str, str]) -> str | None:
    """The one letter that stands alone. `I`, and `A` before a word, are words of English."""
    matches = [match for match in _ALONE.finditer(text) if not _is_word(match, text)]
    found = {letter for match in matches if (letter := _letter(match)) in choices}
    return found.pop() if len(found) == 1 else None


def _only_text(answer: str, choices: Mapping[str, str]) -> str | None:
    said = f" {_words(answer)} "
    found = [letter for letter, text in choices.items() if (words := _words(text)) and f" {words} " in said]
    return found[0] if len(found) == 1 else None


def _is_word(match: re.Match[str], text: str) -> bool:
    follows = re.match(r" ([^\W\d_]+)", text[match.end() :])
    return match["letter"] in ("A", "I") and follows is not None and follows[1] not in ("and", "or")


def _letter(match: re.Match[str]) -> str:
    groups: Sequence[str | None] = match.groups()
    return next(group for group in groups if group)


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _folded(text: str) -> str:
    return " ".join(text.split()).strip(" .").casefold()
