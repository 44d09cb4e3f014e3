"""What a task says the answer is: one text, or several of which any will do."""

from typing import Any

from outrider.core.errors import InvalidInput, ScoreError
from outrider.core.task import Task


def expected_answers(task: Task) -> tuple[str, ...]:
    """The accepted answers as text. Raises `InvalidInput` if there is none."""
    given = task.answer if isinstance(task.answer, list | tuple) else [task.answer]
    answers = tuple(text for value in given if (text := _text_of(value, task.task_id)))
    if not answers:
        hint = "; it has tests, which mode py runs" if task.metadata.get("tests") else ""
        raise InvalidInput(
            f"task {task.task_id!r} has no answer to compare with; give it one in the field `answer`{hint}"
        )
    return answers


def expected_when_scoring(task: Task) -> tuple[str, ...]:
    """The same in the middle of an attempt, where a task that cannot be scored is a failure of scoring."""
    try:
        return expected_answers(task)
    except InvalidInput as exc:
        raise ScoreError(str(exc), stage="score") from exc


def _text_of(value: Any, task_id: str) -> str:
    match value:
        case None:
            return ""
        case str():
            return value.strip()
        case float() if value.is_integer():
            return str(int(value))
        case bool() | int() | float():
            return str(value)
        case _:
            kind = type(value).__name__
            raise InvalidInput(f"task {task_id!r}: an answer must be text or a number, or a list of such, not {kind}")
