"""Benchmark files: from whatever a file calls its columns to tasks with an id, a question and an answer.

Each field is found by the first of its names in `FIELDS` that the item has; case, spaces and dashes do not matter. What
is not id, question or answer goes to the task's metadata under the name the file gives it. An answer that ends in a
line `#### 42`, as those of GSM8K do, becomes the part behind the mark, for that is what scorers compare with; the whole
of it is kept in the metadata as `worked_answer`. An answer in the form of SQuAD or TriviaQA becomes the list of the
texts it accepts; its own form stays in the metadata.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from outrider.core import wire
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
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

MESSAGES = "messages"
"""Where the metadata keeps the messages that a question was made of."""

WORKED_ANSWER = "worked_answer"
_FINAL_ANSWER = re.compile(r"^####[ \t]*(\S[^\n]*?)\s*\Z", re.MULTILINE)
_DIGEST_BYTES = 5


def read_benchmark(source: str, *, limit: int | None = None, fields: Mapping[str, str] | None = None) -> list[Task]:
    """The tasks in a benchmark file, at most the first `limit`, which are then the only ones looked at.

    `source`: JSON lines, a JSON list or object, CSV, TSV (these also packed by gzip), Parquet; `-` for JSON on standard
    input; `hf:NAME[/CONFIG][:SPLIT]` or the folder of a saved one for a Hugging Face dataset. `fields` names the column
    of an id, question or answer that is called otherwise. `InvalidInput` points at what is wrong. Blocks meanwhile.
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit is {limit}; give 1 or more")
    names = _names(fields or {})
    places: dict[str, str] = {}
    tasks = []
    for number, (place, item) in enumerate(islice(_items(source, names), limit), 1):
        task = _task(item, place, number, names)
        if task.task_id in places:
            raise InvalidInput(
                f"{place} has the id {task.task_id!r} of {places[task.task_id]}; each id must be there once"
            )
        places[task.task_id] = place
        tasks.append(task)
    if not tasks:
        raise InvalidInput(f"{shown(source)} holds no task")
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
        raise InvalidInput(f"{source} is a folder, and no dataset was saved in it; give a file")
    if suffix == ".parquet":
        return parquet_rows(source)
    data = read_bytes(source)
    if suffix in (".csv", ".tsv"):
        return csv_rows(source, data)
    return _json_items(source, data, names, is_one_value=suffix == ".json")


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
            held = next((whole[key] for key in CONTAINERS if isinstance(whole.get(key), list)), None)
            if held is not None and _find(whole, names["question"]) is None:
                return ((f"{shown(source)}, item {number}", item) for number, item in enumerate(held, 1))
    return json_values(source, data)


def _task(item: Any, place: str, number: int, names: Mapping[str, Sequence[str]]) -> Task:
    if not isinstance(item, dict):
        raise InvalidInput(f"{place}: an item must be an object with a question, not {_kind(item)}")
    rest = dict(item)
    taken = {field: key for field in FIELDS if (key := _find(item, names[field])) is not None}
    values = {field: rest.pop(key) for field, key in taken.items()}
    if "question" not in values:
        has = f"the fields {', '.join(map(str, item))}" if item else "no fields"
        raise InvalidInput(f"{place}: no question; it has {has}. A question is called {', '.join(names['question'])}")
    question, messages = _question(values["question"], f"{place}, field {taken['question']!r}")
    if messages is not None:
        rest[taken["question"] if MESSAGES in rest else MESSAGES] = messages
    answer = values.get("answer")
    if isinstance(answer, dict) and (accepted := _accepted(answer)):
        rest[taken["answer"]], answer = answer, accepted
    if isinstance(answer, str) and (final := _FINAL_ANSWER.search(answer)):
        rest[WORKED_ANSWER], answer = answer, final[1]
    task_id = _id(values["id"], place) if "id" in values else _made_id(item, number, place)
    task = Task(task_id=task_id, question=question, answer=answer, metadata=rest)
    try:
        wire.encode(task.as_input())
    except InvalidInput as exc:
        raise InvalidInput(f"{place}: {exc}") from exc
    return task


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
        if value is not None and value not in ("", []):
            keys.setdefault(_normal(key), key)
    return next((keys[name] for name in names if name in keys), None)


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
