"""The published forms of benchmarks, read as they are: lettered choices, tests of a program, instructions to follow.

A form says which fields of an item it has used and what the task has in their place:

- *Choices* (MMLU, MMLU-Pro, GPQA, ARC, HellaSwag, …) end the question, each behind its letter. The answer is a letter,
  and `metadata.choices` holds the texts by letter.
- *Tests* (HumanEval, MBPP) go to `metadata.tests`, `entry_point`, `setup` and `prelude`, where mode `py` reads them.
- *Instructions* (IFEval) stay as they are; an item with them needs no answer.
"""

import ast
import random
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput
from outrider.core.task import AnswerKind
from outrider.env.scoring.choice import CHOICES
from outrider.env.scoring.instructions import INSTRUCTION_IDS

Fields = Mapping[str, tuple[str, Any]]
"""The fields of an item that hold something: key and value, by normalised name."""

MIN_CHOICES, MAX_CHOICES = 2, len(string.ascii_uppercase)

_PASSAGES = ("article", "passage", "context", "premise")
"""What a question with choices is about."""

_LISTED = ("choices", "options", "endings")
_KEYS = ("answerkey", "answer_key", "correct_option", "correct_choice", "answer_letter", "answer_idx", "answer_index")
"""Names of the right choice that no other answer has."""

_ANSWERS = (
    "answer", "answers", "correct_answer", "expected_answer", "final_answer", "target", "expected", "ground_truth",
    "label", "gold", "cop", "correct", "solution",
)  # fmt: skip
_WRONG = re.compile(r"(?:incorrect_answer|distractor)_?\d+")
_NUMBERED = re.compile(r"(?:option|choice|ending|answer|sol)_?(?P<label>\d+|[a-j])|op(?P<letter>[a-d])|(?P<bare>[a-j])")
_OF_ALL = re.compile(r"\b(?:of|all|none) (?:of )?(?:the )?(?:above|these)\b", re.IGNORECASE)
"""A choice that speaks of all others, such as "None of the above"."""

_OF_LETTERS = re.compile(r"\bboth \(?[a-j]\)? and\b", re.IGNORECASE)
"""A choice that speaks of others by their letters."""

_TESTS = ("test_list", "test", "test_cases")


_KIND_TEXTS = {
    AnswerKind.LETTER: "letter",
    AnswerKind.TEXT: "text",
    AnswerKind.INDEX: "index (from 0)",
    AnswerKind.NUMBER: "number (from 1)",
}


class Answers(Struct, frozen=True, kw_only=True):
    """Which choices are right: by which field, and named how. What is None is found out from the item."""

    field: str | None = None
    kind: AnswerKind | None = None


class Form(Struct, frozen=True, kw_only=True):
    """What a published form makes of an item. `used` are the keys that have been taken up.

    `question` is put in the place of the item's own, `addition` behind it. `has_answer`: `answer` is all there is.
    """

    used: frozenset[str] = frozenset()
    id: Any = None
    question: str | None = None
    addition: str = ""
    has_answer: bool = False
    answer: Any = None
    metadata: Mapping[str, Any] = {}


def form_of(
    fields: Fields,
    question: str,
    place: str,
    *,
    answers: Answers,
    seed: int = 0,
    shuffle_choices: bool = False,
) -> Form:
    """The published form that an item has; an empty one if it has none. `question` is what would be asked without.

    With `shuffle_choices` they are put into an order that follows from the seed and the question, as they are in any
    case where the form itself puts the right one first.
    """
    return (
        _instructions(fields, place)
        or _tests(fields, question, place)
        or _choices(fields, question, place, answers, seed, shuffle_choices=shuffle_choices)
        or Form()
    )


def _instructions(fields: Fields, place: str) -> Form | None:
    """IFEval: `instruction_id_list` and `kwargs`, which Hugging Face fills up with nulls. Its ids are called `key`."""
    key, listed = fields.get(INSTRUCTION_IDS, ("", None))
    ids = _decoded(listed)
    if not isinstance(ids, list):
        return None
    given = _decoded(fields.get("kwargs", ("", None))[1]) or [{}] * len(ids)
    fits = isinstance(given, list) and len(given) == len(ids)
    if not fits or not all(each is None or isinstance(each, dict) for each in given):
        raise InvalidInput(f"{place}: {key} names {len(ids)} instructions; kwargs must be a list of as many objects")
    arguments = [{name: value for name, value in (each or {}).items() if value is not None} for each in given]
    used = {name for known in (INSTRUCTION_IDS, "kwargs", "key") if (name := fields.get(known, ("", 0))[0])}
    metadata = {INSTRUCTION_IDS: list(ids), "kwargs": arguments}
    return Form(used=frozenset(used), id=fields.get("key", ("", None))[1], has_answer=True, metadata=metadata)


def _tests(fields: Fields, question: str, place: str) -> Form | None:
    """HumanEval: a test program, and a prompt that begins the solution. MBPP: asserts, which the question shows."""
    key, tests = next((fields[name] for name in _TESTS if name in fields), ("", None))
    if tests is None or "tests" in fields or not ("entry_point" in fields or key.lower().endswith("test_list")):
        return None
    used, metadata = {key}, {"tests": _decoded(tests)}
    prepared = []
    for name in ("test_imports", "test_setup_code"):
        if name in fields:
            used.add(fields[name][0])
            code = _decoded(fields[name][1])
            prepared.append("\n".join(map(str, code)) if isinstance(code, list) else str(code))
    if prepared:
        metadata["setup"] = "\n".join(prepared)
    if "entry_point" in fields:
        if prelude := _prelude(question, str(fields["entry_point"][1])):
            metadata["prelude"] = prelude
        return Form(used=frozenset(used), has_answer=True, metadata=metadata)
    if not isinstance(metadata["tests"], list):
        raise InvalidInput(f"{place}: {key} must be a list of asserts")
    shown = "\n".join(map(str, metadata["tests"]))
    addition = "" if shown in question else f"\n\nYour code should pass these tests:\n\n{shown}"
    return Form(used=frozenset(used), addition=addition, has_answer=True, metadata=metadata)


def _prelude(prompt: str, entry_point: str) -> str:
    """The imports and functions that a prompt gives before the function to write, which solutions may leave out."""
    before, found, _ = prompt.partition(f"def {entry_point}(")
    before = before.removesuffix("async ")
    try:
        ast.parse(before)
    except (SyntaxError, ValueError):
        return ""
    return before.strip() if found else ""


def _choices(
    fields: Fields, question: str, place: str, answers: Answers, seed: int, *, shuffle_choices: bool
) -> Form | None:
    named = (*_KEYS, *_ANSWERS) if answers.field is None else (answers.field,)
    listed = _listed(fields) or _spread(fields, named)
    if listed is None:
        return None
    used, labels, texts, right = listed
    if not MIN_CHOICES <= len(texts) <= MAX_CHOICES:
        raise InvalidInput(f"{place}: {len(texts)} choices; there may be {MIN_CHOICES} to {MAX_CHOICES}")
    texts = _bare(texts)
    is_first = right is not None
    if right is None:
        found = [fields[name] for name in named if name in fields]
        right = _named_right(found, labels, texts, place, kind=answers.kind, used=used)
    letters = string.ascii_uppercase[: len(texts)]
    is_shown = all(
        re.search(rf"\b{letter}[).:]\s*{re.escape(text)}", question)
        for letter, text in zip(letters, texts, strict=True)
    )
    order = list(range(len(texts)))
    if (shuffle_choices or is_first) and not is_shown:
        order = _shuffled(texts, random.Random(f"{seed}\n{question}"), is_first=is_first)
    choices = {letter: texts[i] for letter, i in zip(letters, order, strict=True)}
    lines = "\n".join(f"{letter}. {text}" for letter, text in choices.items())
    passage_key, passage = next((fields[name] for name in _PASSAGES if name in fields), ("", None))
    is_apart = isinstance(passage, str) and passage not in question
    return Form(
        used=frozenset({*used, passage_key}),
        question=f"{passage}\n\n{question}" if is_apart else None,
        addition="" if is_shown else f"\n\n{lines}\n\nThe answer is the letter of the right choice.",
        has_answer=True,
        answer=None if right is None else letters[order.index(right)],
        metadata={CHOICES: choices},
    )


def _shuffled(texts: Sequence[str], rng: random.Random, *, is_first: bool) -> list[int]:
    """The places of the choices in an order that is drawn. Those that speak of all others come last.

    Choices whose order means something, for one of them speaks of others, keep it; where the right one `is_first` in
    the data, it means nothing.
    """
    of_all = [place for place, text in enumerate(texts) if _OF_ALL.search(text)]
    others = [place for place in range(len(texts)) if place not in of_all]
    if not is_first and (of_all or any(map(_OF_LETTERS.search, texts))):
        return list(range(len(texts)))
    rng.shuffle(others)
    return [*others, *of_all]


_Listed = tuple[set[str], list[str], list[str], int | None]
"""The keys that were used, the choices' own labels, if any, their texts, and which is right, if that is known."""


def _listed(fields: Fields) -> _Listed | None:
    """Choices in one field: a list of texts, of objects with label and text, or an object of either kind."""
    key, value = fields.get("mc1_targets", ("", None))
    if isinstance(value, dict) and value.get("labels", []).count(1) == 1:  # TruthfulQA
        return {key}, [], _texts(value["choices"]), value["labels"].index(1)
    for name in _LISTED:
        key, value = fields.get(name, ("", None))
        match _decoded(value):
            case {"text": list(texts), "label": list(labels)} if len(texts) == len(labels):
                return {key}, [str(label) for label in labels], _texts(texts), None
            case dict(by_label) if _are_labels(list(by_label)):
                return {key}, list(by_label), _texts(by_label.values()), None
            case [{"text": _, "label": _}, *_] as pairs:
                return {key}, [str(pair.get("label")) for pair in pairs], _texts(p.get("text") for p in pairs), None
            case [str() | int() | float(), *_] as texts:
                return {key}, [], _texts(texts), None
    return None


def _spread(fields: Fields, answers: Sequence[str]) -> _Listed | None:
    """Choices in fields of their own: A to D as in tables of MMLU, or one right answer and wrong ones (GPQA, SciQ)."""
    wrong = sorted(name for name in fields if _WRONG.fullmatch(name))
    if wrong and "correct_answer" in fields:
        keys, texts = zip(*(fields[name] for name in ("correct_answer", *wrong)), strict=True)
        return set(keys), [], _texts(texts), 0
    found = {}
    for name in fields:
        if match := _NUMBERED.fullmatch(name):
            found[name] = match["label"] or match["letter"] or match["bare"]
    first = next(iter(found.values()), "")
    start = {"a": "abcdefghij", "0": "0123456789", "1": "123456789"}.get(first, "")
    if len(found) < MIN_CHOICES or not start or list(found.values()) != list(start[: len(found)]):
        return None
    if not any(name in fields for name in answers):
        return None
    labels = list(found.values())
    if next(iter(found)).startswith("answer") and first == "a":  # Social IQA counts answerA, answerB and so on from 1
        labels = [str(number) for number in range(1, len(found) + 1)]
    elif first.isdecimal() and not next(iter(found)).startswith("option"):  # PIQA, COPA, SWAG count from 0
        labels = []
    return {fields[name][0] for name in found}, labels, _texts(fields[name][1] for name in found), None


def _named_right(
    named: Sequence[tuple[str, Any]],
    labels: Sequence[str],
    texts: Sequence[str],
    place: str,
    *,
    kind: AnswerKind | None,
    used: set[str],
) -> int | None:
    """The choice that the item calls right; where several fields do, they must agree. Adds those to `used`."""
    right = None
    for key, value in named:
        try:
            found = _right(value, labels, texts, f"{place}: {key}", kind)
        except InvalidInput:
            if right is None:
                raise
            continue  # it may be an explanation
        used.add(key)
        if right not in (None, found):
            raise InvalidInput(f"{place}: {key} is {value!r:.60}, and another field names another choice")
        right = found
    return right


def _right(value: Any, labels: Sequence[str], texts: Sequence[str], what: str, kind: AnswerKind | None) -> int:
    """Which choice `value` names: in the way that `kind` says, or by its label or letter, its text, or its index."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidInput(f"{what} is {value!r:.60}; give the letter, the index or the text of one choice")
    said, n = str(value).strip(), len(texts)
    number = int(said) if said.isdecimal() and len(said) <= len(str(MAX_CHOICES)) else -1
    places = {
        AnswerKind.LETTER: _by_letter(said, labels, n),
        AnswerKind.TEXT: _place(_folded(said), [_folded(text) for text in texts]),
        AnswerKind.INDEX: number if 0 <= number < n else None,
        AnswerKind.NUMBER: number - 1 if 0 < number <= n else None,
    }
    possible = [kind] if kind is not None else _kinds(value, labels)
    found = {one: where for one in possible if (where := places[one]) is not None}
    if not found:
        names = ", ".join(_KIND_TEXTS[one] for one in possible)
        raise InvalidInput(f"{what} is {value!r:.60}, and none of {n} choices has this {names}")
    first, right = next(iter(found.items()))
    for other, where in found.items():
        if where != right:
            raise InvalidInput(
                f"{what} is {value!r:.60}, the {first} of one choice and the {other} of another; say which is meant: "
                f"--answers-are {first} or --answers-are {other}"
            )
    return right


def _kinds(value: int | str, labels: Sequence[str]) -> list[AnswerKind]:
    """How the answer may name a choice: a number is no text, and the digits of labels are not counted from 0."""
    is_labelled = any(label.isdecimal() for label in labels)
    kinds = (AnswerKind.LETTER, AnswerKind.TEXT, AnswerKind.INDEX)
    without = {AnswerKind.TEXT: isinstance(value, int), AnswerKind.INDEX: is_labelled}
    return [kind for kind in kinds if not without.get(kind)]


def _by_letter(value: str, labels: Sequence[str], n: int) -> int | None:
    """The choice of this label, or of this letter, where labels are numbers or there are none."""
    letter = value.strip("().: \n\t").upper()
    found = _place(letter, [label.upper() for label in labels])
    return _place(letter, string.ascii_uppercase[:n]) if found is None else found


def _place(wanted: str, among: Sequence[str]) -> int | None:
    return next((i for i, each in enumerate(among) if each == wanted), None)


def _are_labels(keys: Sequence[Any]) -> bool:
    """Whether they are A, B, C, … or 1, 2, 3 and so on."""
    texts = [str(key).upper() for key in keys]
    return len(texts) >= MIN_CHOICES and texts in (
        list(string.ascii_uppercase[: len(texts)]),
        [str(number) for number in range(1, len(texts) + 1)],
    )


def _bare(texts: list[str]) -> list[str]:
    """The texts without letters of their own: `(A) Paris`, `B. Rome`, `C)21`."""
    found = [re.match(r"\(?([A-Z])(?:\)\s*|[.:]\s+)(?=\S)", text) for text in texts]
    if all(match and match[1] == letter for match, letter in zip(found, string.ascii_uppercase, strict=False)):
        return [text[match.end() :] for text, match in zip(texts, found, strict=True) if match]
    return texts


def _texts(values: Any) -> list[str]:
    return [str(value).strip() for value in values]


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _decoded(value: Any) -> Any:
    """Lists and objects that a table holds as text, in JSON or as Python prints them."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return from_json(value.encode(errors="replace"))
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value
