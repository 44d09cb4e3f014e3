"""The scorer of instructions to follow, as IFEval gives them: ids such as `length_constraints:number_words`.

A task names them in `metadata.instruction_id_list`, and what each is told in `metadata.kwargs`, a list as long. Each is
checked by a rule, without a model. *Strict* looks at the reply as it is; *loose* also at what is left without its first
or last line and without emphasis, as a model may put a sentence around what it was asked for.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from outrider.core.errors import InvalidInput, ScoreError
from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.scoring.config import ScorerConfig
from outrider.env.scoring.languages import LANGUAGES, is_in_language
from outrider.env.scoring.protocol import Scorer

INSTRUCTION_IDS = "instruction_id_list"
ARGUMENTS = "kwargs"

Arguments = Mapping[str, Any]
Rule = Callable[[str, Arguments], bool]

_N_EXPLAINED = 10


def has_instructions(task: Task) -> bool:
    return isinstance(task.metadata.get(INSTRUCTION_IDS), Sequence)


class InstructionsScorer(Scorer):
    """1 if the reply follows all instructions of its task. The shares that it follows are metrics, strict and loose."""

    def __init__(self, config: ScorerConfig) -> None: ...

    async def score(self, answer: str, task: Task) -> Score:
        try:
            instructions = _instructions_of(task)
        except InvalidInput as exc:
            raise ScoreError(str(exc), stage="score") from exc
        strict = [_follows(answer, name, arguments) for name, arguments in instructions]
        loose = [
            any(_follows(variant, name, arguments) for variant in _variants(answer)) for name, arguments in instructions
        ]
        missed = [name for (name, _), followed in zip(instructions, strict, strict=True) if not followed]
        return Score(
            reward=float(all(strict)),
            output=answer,
            metrics={
                "instructions_strict": sum(strict) / len(strict),
                "all_loose": float(all(loose)),
                "instructions_loose": sum(loose) / len(loose),
            },
            explanation=f"not followed: {', '.join(missed[:_N_EXPLAINED])}" if missed else "",
        )

    def check_task(self, task: Task) -> None:
        """Each rule is tried on a short text: one that lacks an argument is found before a model works on it."""
        for name, arguments in _instructions_of(task):
            try:
                RULES[name]("A word.", arguments)
            except (KeyError, TypeError, ValueError) as exc:
                what = f"needs {exc}" if isinstance(exc, KeyError) else str(exc)
                raise InvalidInput(f"task {task.task_id!r}: {name} cannot be checked: {what}") from exc


def _instructions_of(task: Task) -> list[tuple[str, Arguments]]:
    names, given = task.metadata.get(INSTRUCTION_IDS), task.metadata.get(ARGUMENTS)
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        raise InvalidInput(f"task {task.task_id!r} names no instructions in metadata.{INSTRUCTION_IDS}")
    arguments = given if isinstance(given, Sequence) and len(given) == len(names) else [{}] * len(names)
    for name in names:
        if name not in RULES:
            near = get_close_matches(str(name), RULES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RULES)}"
            raise InvalidInput(f"task {task.task_id!r}: there is no instruction {name!r}; {hint}")
    return [(name, each or {}) for name, each in zip(names, arguments, strict=True)]


def _follows(reply: str, name: str, arguments: Arguments) -> bool:
    return bool(reply.strip()) and RULES[name](reply, arguments)


def _variants(reply: str) -> Iterator[str]:
    lines = reply.split("\n")
    for part in (lines, lines[1:], lines[:-1], lines[1:-1]):
        text = "\n".join(part).strip()
        yield text
        yield text.replace("*", "")


def _relates(n: int, relation: str | None, wanted: int) -> bool:
    match relation:
        case "less than":
            return n < wanted
        case None | "at least":
            return n >= wanted
        case _:
            raise ValueError(f"the relation is {relation!r}; it is 'less than' or 'at least'")


def _occurrences(text: str, word: str) -> int:
    return len(re.findall(re.escape(word), text, flags=re.IGNORECASE))


def _n_words(text: str) -> int:
    return len(re.findall(r"\w+", text))


_ABBREVIATIONS = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|Capt|Lt|Mt|Inc|Ltd|Jr|Sr|Co|vs|etc|e\.g|i\.e|a\.m|p\.m|[A-Z])\.|(?<=\d)\.(?=\d)"
)
_SENTENCE_END = re.compile(r"[.!?]+[\"\u201d'\u2019)\]]*(?=\s|$)")


def _n_sentences(text: str) -> int:
    """Ends of sentences; dots of abbreviations and numbers are none. What follows the last end is one more."""
    plain = _ABBREVIATIONS.sub(lambda found: found[0].replace(".", "·"), text)
    parts = [part for part in _SENTENCE_END.split(plain) if part.strip()]
    return len(parts)


def _paragraphs(text: str, separator: str) -> list[str] | None:
    """The parts between separators; those at the ends may be empty, one in the middle may not: then None."""
    parts = re.split(separator, text)
    inner = [part for i, part in enumerate(parts) if part.strip() or i not in (0, len(parts) - 1)]
    return inner if all(part.strip() for part in inner) else None


def _nth_paragraph(reply: str, given: Arguments) -> bool:
    paragraphs = [part for part in re.split(r"\n\n", reply) if part.strip()]
    nth = int(given["nth_paragraph"])
    if len(paragraphs) != int(given["num_paragraphs"]) or nth > len(paragraphs):
        return False
    first = (paragraphs[nth - 1].split() or [""])[0].strip("'\"").lower()
    return re.split(r"[.,?!'\"]", first)[0] == str(given["first_word"]).lower()


def _paragraph_count(reply: str, given: Arguments) -> bool:
    paragraphs = _paragraphs(reply, r"\s?\*\*\*\s?")
    return paragraphs is not None and len(paragraphs) == int(given["num_paragraphs"])


def _postscript(reply: str, given: Arguments) -> bool:
    marker = str(given["postscript_marker"])
    usual = {"P.P.S": r"\s*p\.\s?p\.\s?s", "P.S.": r"\s*p\.\s?s\."}.get(marker, r"\s*" + re.escape(marker.lower()))
    return re.search(usual, reply.lower()) is not None


def _highlights(reply: str, given: Arguments) -> bool:
    found = [text for text in re.findall(r"\*[^\n*]*\*", reply) if text.strip("*").strip()]
    found += [
        text for text in re.findall(r"\*\*[^\n*]*\*\*", reply) if text.removeprefix("**").removesuffix("**").strip()
    ]
    return len(found) >= int(given["num_highlights"])


def _sections(reply: str, given: Arguments) -> bool:
    word = re.escape(str(given["section_spliter"]).strip())
    return len(re.findall(rf"\s?{word}\s?\d+\s?", reply)) >= int(given["num_sections"])


def _is_json(reply: str) -> bool:
    text = reply.strip()
    for opening in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(opening)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _two_responses(reply: str) -> bool:
    parts = _paragraphs(reply, r"\*{6}")
    return parts is not None and len(parts) == 2 and parts[0].strip() != parts[1].strip()  # noqa: PLR2004 two


def _is_letter_frequent(reply: str, given: Arguments) -> bool:
    letter = str(given["letter"]).strip().lower()
    if len(letter) != 1:
        raise ValueError(f"the letter is {letter!r}")
    return _relates(reply.lower().count(letter), given.get("let_relation"), int(given["let_frequency"]))


def _n_capital_words(reply: str) -> int:
    return sum(1 for word in re.findall(r"\w+(?:['\u2019-]\w+)*", reply) if word.isupper())


def _speaks(reply: str, given: Arguments) -> bool:
    language = str(given["language"])
    if language not in LANGUAGES:
        raise ValueError(f"the language is {language!r}; those known are {', '.join(LANGUAGES)}")
    return is_in_language(reply, language)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "keywords:existence": lambda reply, given: all(_occurrences(reply, word) for word in given["keywords"]),
        "keywords:frequency": lambda reply, given: _relates(
            _occurrences(reply, given["keyword"]), given.get("relation"), int(given["frequency"])
        ),
        "keywords:forbidden_words": lambda reply, given: (
            not any(re.search(rf"\b{re.escape(word)}\b", reply, re.IGNORECASE) for word in given["forbidden_words"])
        ),
        "keywords:letter_frequency": _is_letter_frequent,
        "language:response_language": _speaks,
        "length_constraints:number_sentences": lambda reply, given: _relates(
            _n_sentences(reply), given.get("relation"), int(given["num_sentences"])
        ),
        "length_constraints:number_paragraphs": _paragraph_count,
        "length_constraints:number_words": lambda reply, given: _relates(
            _n_words(reply), given.get("relation"), int(given["num_words"])
        ),
        "length_constraints:nth_paragraph_first_word": _nth_paragraph,
        "detectable_content:number_placeholders": lambda reply, given: (
            len(re.findall(r"\[.*?\]", reply)) >= int(given["num_placeholders"])
        ),
        "detectable_content:postscript": _postscript,
        "detectable_format:number_bullet_lists": lambda reply, given: (
            len(re.findall(r"^\s*(?:\*[^*]|-).*$", reply, re.MULTILINE)) == int(given["num_bullets"])
        ),
        "detectable_format:constrained_response": lambda reply, _: any(
            f"My answer is {answer}." in reply for answer in ("yes", "no", "maybe")
        ),
        "detectable_format:number_highlighted_sections": _highlights,
        "detectable_format:multiple_sections": _sections,
        "detectable_format:json_format": lambda reply, _: _is_json(reply),
        "detectable_format:title": lambda reply, _: any(
            title.strip("<> ") for title in re.findall(r"<<[^\n]+>>", reply)
        ),
        "combination:two_responses": lambda reply, _: _two_responses(reply),
        "combination:repeat_prompt": lambda reply, given: (
            reply.strip().lower().startswith(given["prompt_to_repeat"].strip().lower())
        ),
        "startend:end_checker": lambda reply, given: (
            reply.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower())
        ),
        "startend:quotation": lambda reply, _: re.fullmatch(r'\s*".+"\s*', reply, re.DOTALL) is not None,
        "change_case:capital_word_frequency": lambda reply, given: _relates(
            _n_capital_words(reply), given.get("capital_relation"), int(given["capital_frequency"])
        ),
        "change_case:english_capital": lambda reply, _: reply.isupper(),
        "change_case:english_lowercase": lambda reply, _: reply.islower(),
        "punctuation:no_comma": lambda reply, _: "," not in reply,
    }
)
"""The 25 instructions of IFEval by id. A rule raises `KeyError` or `ValueError` if its arguments cannot be used."""
