"""A task: what is asked, as benchmark files give it and environments take it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.decoding import convert
from outrider.core.errors import InvalidInput


class Task(Struct, frozen=True, kw_only=True):
    """One thing to do. `answer` is what a scorer compares with; `metadata` holds what else the environment needs."""

    task_id: str
    question: str = ""
    answer: Any = None
    metadata: Mapping[str, Any] = {}

    @classmethod
    def of(cls, input: Any, *, task_id: str) -> "Task":
        """The task in a rollout's `input`: a task that was enqueued as such, or any other value as the question."""
        if not isinstance(input, Mapping):
            return cls(task_id=task_id, question="" if input is None else str(input))
        try:
            return convert({**input, "task_id": str(input.get("task_id", task_id))}, cls)
        except msgspec.ValidationError as exc:
            raise InvalidInput(f"task {task_id!r}: {exc}") from exc

    def as_input(self) -> dict[str, Any]:
        """The form in which a rollout carries it."""
        return {
            "task_id": self.task_id,
            "question": self.question,
            "answer": self.answer,
            "metadata": dict(self.metadata),
        }


class AnswerKind(StrEnum):
    """How the answer of a question with choices names the right one."""

    LETTER = "letter"
    """By its letter, or by the label that the item gives it."""

    INDEX = "index"
    """By its place, counted from 0."""

    NUMBER = "number"
    """By its place, counted from 1."""

    TEXT = "text"
