"""Benchmark files: from whatever a file calls its columns to tasks with an id, a question and an answer.

Each field is found by the first of its names in `FIELDS` that the item has; case, spaces and dashes do not matter. What
is not id, question or answer goes to the task's metadata under the name the file gives it. An answer that ends in a
line `#### 42`, as those of GSM8K do, becomes the part behind the mark, for that is what scorers compare with; the whole
of it is kept in the metadata as `worked_answer`. An answer in the form of SQuAD or TriviaQA becomes the list of the
texts it accepts; its own form stays in the metadata. A worked solution that ends in a box, as those of MATH do, becomes
what is in the box. Items of the forms in `evaluate.forms` become what those say.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core import wire
from outrider.core.errors import InvalidInput
from outrider.core.task import AnswerKind, Task
from outrider.env.scoring.extraction import last_boxed
from outrider.evaluate.forms import Answers, Form, form_of
from outrider.evaluate.source import STANDARD_INPUT, Placed, decode, decode_file, json_values, read_bytes, shown
from outrider.evaluate.table import HUB, csv_rows, dataset_rows, is_saved_dataset, parquet_rows

FIELDS: Mapping[str, tuple[str, ...]] = {
    "id": (
        "id",
        "task_id",
        "question_id",
        "problem_id",
        "instance_id",
        "example_id",
        "sample_id",
        "unique_id",
        "record_id",
        "qid",
        "uid",
        "uuid",
        "_id",
    ),
    "question": (
        "question",
        "prompt",
        "problem",
        "problem_statement",
        "query",
        "instruction",
        "goal",
        "task",
        "input",
        "messages",
        "text",
        "question_stem",
        "ctx",
        "sentence",
    ),
    "answer": (
        "answer",
        "answers",
        "expected_answer",
        "correct_answer",
        "final_answer",
        "target",
        "targets",
        "expected",
        "ground_truth",
        "gold",
        "reference",
        "references",
        "label",
        "solution",
        "output",
    ),
}
"""The names under which files give a field; where an item has several, the first of the row is meant."""

CONTAINERS = ("items", "data", "examples", "tasks", "questions", "problems", "instances", "rows")
"""The names under which a JSON object may hold the list of its items."""

_GROUP_IDS = ("example_id",)
"""Names of ids that may stand for several items: RACE has one for each article."""

MESSAGES = "messages"
"""Where the metadata keeps the messages that a question was made of."""

WORKED_ANSWER = "worked_answer"
_FINAL_ANSWER = re.compile(r"^####[ \t]*(\S[^\n]*?)\s*\Z", re.MULTILINE)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_DIGEST_BYTES = 5
_SUFFIXES = frozenset({".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz"})
_N_NAMED = 3


class Reading(Struct, frozen=True, kw_only=True):
    """How items are read. Not `by_form`, fields such as `choices` and `test` are nothing but metadata.

    `shuffle_choices` puts the choices of each question into an order that follows from `seed` and the question.
    `answers_are` says how answers name the right choice, where an item leaves that open.
    """

    by_form: bool = True
    shuffle_choices: bool = False
    seed: int = 0
    answers_are: AnswerKind | None = None


def read_benchmark(
    source: str, *, limit: int | None = None, fields: Mapping[str, str] | None = None, reading: Reading | None = None
) -> list[Task]:
    """The tasks in a benchmark file, at most the first `limit`, which are then the only ones looked at.

    `source`: JSON lines, a JSON list or object, CSV, TSV (these also packed by gzip), Parquet; `-` for JSON on standard
    input; `hf:NAME[/CONFIG][:SPLIT]` or the folder of a saved one for a Hugging Face dataset. `fields` names the column
    of an id, question or answer that is called otherwise. `InvalidInput` points at what is wrong. Blocks meanwhile.
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit is {limit}; give 1 or more")
    names = _names(fields or {})
    missing = {"id", "answer"} & set(fields or {})
    places: dict[str, str] = {}
    groups = Counter[str]()
    tasks = []
    for number, (place, item) in enumerate(islice(_items(source, names), limit), 1):
        task = _task(item, place, number, names, groups=groups, reading=reading or Reading())
        if task.task_id in places:
            raise InvalidInput(
                f"{place} has the id {task.task_id!r} of {places[task.task_id]}; each id must be there once"
            )
        places[task.task_id] = place
        tasks.append(task)
        missing -= {field for field in missing if _find(item, names[field]) is not None}
    if not tasks:
        raise InvalidInput(f"{shown(source)} holds no task")
    for field in sorted(missing):
        raise InvalidInput(f"{shown(source)}: no item has the {field} field {(fields or {})[field]!r}")
    return tasks


def _names(chosen: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    wrong = sorted(set(chosen) - set(FIELDS))
    if wrong:
        raise InvalidInput(f"there is no field {wrong[0]!r} to name; there are {', '.join(FIELDS)}")
    return {field: (_normal(chosen[field]),) if field in chosen else names for field, names in FIELDS.items()}


def _items(source: str, names: Mapping[str, Sequence[str]]) -> Iterator[Placed]:
    if source.startswith(HUB) or is_saved_dataset(source):
        return dataset_rows(source)
    suffix = Path(source.removesuffix(".gz")).suffix.lower()
    if source != STANDARD_INPUT and Path(source).is_dir():
        raise InvalidInput(f"{source} is a folder, and no dataset was saved in it; give a file{_files_in(source)}")
    if suffix == ".parquet":
        return parquet_rows(source)
    data = read_bytes(source)
    if suffix in (".csv", ".tsv"):
        return csv_rows(source, data)
    return _json_items(source, data, names, is_one_value=suffix == ".json")


def _files_in(folder: str) -> str:
    """Some files of the folder that could be meant, as the end of a message."""
    found = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in _SUFFIXES)[:_N_NAMED]
    return f", such as {', '.join(map(str, found))}" if found else ""


def _json_items(
    source: str, data: bytes, names: Mapping[str, Sequence[str]], *, is_one_value: bool
) -> Iterator[Placed]:
    """JSON lines, a list, or an object with a list in it. A `.json` file may still turn out to hold JSON lines."""
    if data.lstrip().startswith(b"{"):
        try:
            whole = decode(data)
        except ValueError as exc:
            if is_one_value and "trailing characters" not in str(exc):
                decode_file(source, data)
        else:
            return _of_object(source, whole, names)
    return json_values(source, data)


def _of_object(source: str, whole: dict[str, Any], names: Mapping[str, Sequence[str]]) -> Iterator[Placed]:
    """The items in the one object of a file: in its list, each under its id, or the object itself."""
    if _find(whole, names["question"]) is None:
        held = next((whole[key] for key in CONTAINERS if isinstance(whole.get(key), list)), None)
        if held is not None:
            yield from ((f"{shown(source)}, item {number}", item) for number, item in enumerate(held, 1))
            return
        if whole and all(isinstance(item, dict) and _find(item, names["question"]) for item in whole.values()):
            yield from ((f"{shown(source)}, item {key!r}", {"id": key, **item}) for key, item in whole.items())
            return
    yield f"{shown(source)}, line 1", whole


def _task(
    item: Any,
    place: str,
    number: int,
    names: Mapping[str, Sequence[str]],
    *,
    groups: Counter[str],
    reading: Reading,
) -> Task:
    """The task in an item. `groups` counts the items before it that share an id of `_GROUP_IDS`."""
    if not isinstance(item, dict):
        raise InvalidInput(f"{place}: an item must be an object with a question, not {_kind(item)}")
    if reading.by_form:
        item = _unfolded(item)
    asked = _find(item, names["question"])
    if asked is None:
        has = f"the fields {', '.join(map(str, item))}" if item else "no fields"
        raise InvalidInput(
            f"{place}: no question; it has {has}. A question is called {', '.join(names['question'])}; "
            "--question-field names another"
        )
    question, messages = _question(item[asked], f"{place}, field {asked!r}")
    rest = {key: value for key, value in item.items() if key != asked}
    if messages is not None:
        rest[asked if MESSAGES in rest else MESSAGES] = messages
    form = _form(rest, question, place, names, reading)
    rest = {**{key: value for key, value in rest.items() if key not in form.used}, **form.metadata}
    is_chosen = names["id"] is not FIELDS["id"]
    named = _find(item, names["id"]) if form.id is None or is_chosen else None
    rest.pop(named, None)
    answer = form.answer if form.has_answer else _answer(rest, names["answer"], place)
    value = form.id if named is None else item[named]
    task_id = _made_id(item, number, place) if value is None else _id(value, place)
    if named is not None and _normal(named) in _GROUP_IDS:
        groups[task_id] += 1
        task_id = task_id if groups[task_id] == 1 else f"{task_id}-{groups[task_id]}"
    asked_in_full = f"{question if form.question is None else form.question}{form.addition}"
    task = Task(task_id=task_id, question=asked_in_full, answer=answer, metadata=rest)
    try:
        wire.encode(task.as_input())
    except InvalidInput as exc:
        raise InvalidInput(f"{place}: {exc}") from exc
    return task


def _unfolded(item: dict[str, Any]) -> dict[str, Any]:
    """The item with the parts of its question beside each other, where that is an object with a `stem` (ARC)."""
    inner = item.get("question")
    if not isinstance(inner, dict) or not isinstance(inner.get("stem"), str) or "choices" not in inner:
        return item
    return {**item, **inner, "question": inner["stem"]}


def _form(
    rest: Mapping[str, Any], question: str, place: str, names: Mapping[str, Sequence[str]], reading: Reading
) -> Form:
    if not reading.by_form:
        return Form()
    fields: dict[str, tuple[str, Any]] = {}
    for key, value in rest.items():
        if not _is_empty(value):
            fields.setdefault(_normal(key), (key, value))
    named = None if names["answer"] is FIELDS["answer"] else names["answer"][0]
    return form_of(
        fields,
        question,
        place,
        answers=Answers(field=named, kind=reading.answers_are),
        seed=reading.seed,
        shuffle_choices=reading.shuffle_choices,
    )


def _answer(rest: dict[str, Any], names: Sequence[str], place: str) -> Any:
    """The answer, taken out of `rest`; what is left out of it is kept there."""
    key = _find(rest, names)
    if key is None:
        return None
    answer = rest.pop(key)
    if isinstance(answer, dict) and (accepted := _accepted(answer)):
        rest[key] = answer
        return accepted
    if isinstance(answer, str) and (final := _final_answer(answer, f"{place}: {key}")):
        rest[WORKED_ANSWER] = answer
        return final
    return answer


def _final_answer(worked: str, what: str) -> str:
    """What a worked answer comes to, behind `####` or in its last box; empty if it has neither."""
    if marked := _FINAL_ANSWER.search(worked):
        return marked[1]
    if _BOX.search(worked) is None:
        return ""
    if boxed := last_boxed(worked):
        return boxed
    raise InvalidInput(
        f"{what} has a box from which no answer can be read; close its braces, or name the field with the answer "
        "by --answer-field"
    )


def _accepted(answer: Mapping[str, Any]) -> list[str]:
    """The texts in an answer as SQuAD (`text`) and TriviaQA (`value`, `aliases`) write it: any of them will do."""
    found: list[Any] = []
    for key in ("text", "value", "aliases"):
        value = answer.get(key, [])
        found += value if isinstance(value, list) else [value]
    return list(dict.fromkeys(text for text in found if isinstance(text, str) and text))


def _find(item: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The key of `item` that comes first in `names` and holds something."""
    keys: dict[str, str] = {}
    for key, value in item.items():
        if not _is_empty(value):
            keys.setdefault(_normal(key), key)
    return next((keys[name] for name in names if name in keys), None)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list) and not value)


def _normal(key: str) -> str:
    return key.strip().lower().replace(" ", "_").replace("-", "_")


def _id(value: Any, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput(f"{place}: the id is {_kind(value)}; give text or a number")
    return _clean(str(value), f"{place}: the id")


def _made_id(item: dict[str, Any], number: int, place: str) -> str:
    """Stable as long as the item and its position are: reading the file again gives the same id."""
    try:
        content = msgspec.json.encode(item, order="deterministic")
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidInput(f"{place}: {exc}") from exc
    return f"{number}-{blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()}"


def _question(value: Any, place: str) -> tuple[str, list[Any] | None]:
    """The text of a question, and the messages it was made of."""
    if isinstance(value, str):
        return _clean(value, f"{place}: the text"), None
    if not isinstance(value, list):
        raise InvalidInput(f"{place} is {_kind(value)}; a question is text or a list of messages")
    spoken = [(role, text) for role, text in (_said(message, place) for message in value) if text]
    if not spoken:
        raise InvalidInput(f"{place}: none of the messages has a text")
    is_plain = all(role == "system" for role, _ in spoken[:-1])
    lines = [text if is_plain else f"{role}: {text}" for role, text in spoken]
    return _clean("\n\n".join(lines), f"{place}: the text"), value


def _said(message: Any, place: str) -> tuple[str, str]:
    """Role and text of a message in the form of OpenAI's API."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidInput(f'{place} is a list, but not of messages; write {{"role": …, "content": …}}')
    content = message.get("content") or ""
    if isinstance(content, str):
        return message["role"], content
    if not isinstance(content, list):
        raise InvalidInput(f"{place}: the content of a message is {_kind(content)}; give text or a list of parts")
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return message["role"], "\n".join(text for text in texts if isinstance(text, str))


def _clean(text: str, what: str) -> str:
    if "\0" in text:
        raise InvalidInput(f"{what} has a NUL character")
    return text


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
