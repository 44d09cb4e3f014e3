"""OSWorld's task files, as they stand, and what they say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from outrider.core.decoding import convert
from outrider.core.errors import InvalidInput
from outrider.core.task import Task

INFEASIBLE = "infeasible"
"""The `func` of a task that cannot be done."""


class SetupStep(Struct, frozen=True, kw_only=True):
    """One thing to do before the agent begins, or before its work is looked at."""

    type: str
    parameters: Mapping[str, Any] = {}


class Getter(Struct, frozen=True, kw_only=True):
    """Where a value comes from. `settings` is all that the task says of it."""

    type: str
    settings: Mapping[str, Any]


class Check(Struct, frozen=True, kw_only=True):
    """One metric, what it looks at, and what it compares with, if with anything."""

    func: str
    result: Getter
    expected: Getter | None = None
    options: Mapping[str, Any] = {}


class Evaluator(Struct, frozen=True, kw_only=True):
    """How the task is scored. Without checks it is one that cannot be done."""

    checks: tuple[Check, ...]
    conj: Literal["and", "or"]
    postconfig: tuple[SetupStep, ...]


class OsworldTask(Struct, frozen=True, kw_only=True):
    """What an episode needs of a task."""

    config: tuple[SetupStep, ...]
    evaluator: Evaluator


class _Evaluator(Struct, frozen=True, kw_only=True):
    func: str | tuple[str, ...]
    result: dict[str, Any] | tuple[dict[str, Any], ...] | None = None
    expected: dict[str, Any] | tuple[dict[str, Any] | None, ...] | None = None
    options: dict[str, Any] | tuple[dict[str, Any] | None, ...] | None = None
    conj: Literal["and", "or"] = "and"
    postconfig: tuple[SetupStep, ...] = ()


class _Metadata(Struct, frozen=True, kw_only=True):
    config: tuple[SetupStep, ...] = ()
    evaluator: _Evaluator


def task_of(data: Any, *, where: str = "the task") -> Task:
    """The task in the JSON of an OSWorld file. `where` names it in errors."""
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{where}: a task is a JSON object with id, instruction, config and evaluator")
    for name in ("id", "instruction"):
        if not isinstance(data.get(name), str) or not data[name].strip():
            raise InvalidInput(f"{where}: {name!r} is missing or not a text")
    rest = {key: value for key, value in data.items() if key not in ("id", "instruction")}
    return Task(task_id=data["id"], question=data["instruction"], metadata=rest)


def load_tasks(path: Path) -> tuple[Task, ...]:
    """The task in a file, or those in all JSON files of a folder and the folders in it."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    if not files:
        raise InvalidInput(f"{path} has no task: there is no .json file in it")
    tasks: dict[str, Task] = {}
    for file in files:
        try:
            data = json.loads(file.read_bytes())
        except OSError as exc:
            raise InvalidInput(f"{file} cannot be read: {exc.strerror}") from exc
        except (ValueError, RecursionError) as exc:
            raise InvalidInput(f"{file} is not JSON: {exc}") from exc
        task = task_of(data, where=str(file))
        if task.task_id in tasks:
            raise InvalidInput(f"{file}: task {task.task_id!r} is there twice")
        tasks[task.task_id] = task
    return tuple(tasks.values())


def osworld_task(task: Task) -> OsworldTask:
    """What the task's metadata says. Raises `InvalidInput` if it does not have OSWorld's form."""
    try:
        read = convert(dict(task.metadata), _Metadata)
        evaluator = Evaluator(
            checks=_checks(read.evaluator), conj=read.evaluator.conj, postconfig=read.evaluator.postconfig
        )
    except (msgspec.ValidationError, InvalidInput) as exc:
        raise InvalidInput(f"task {task.task_id!r}: {exc}") from exc
    return OsworldTask(config=read.config, evaluator=evaluator)


def _checks(written: _Evaluator) -> tuple[Check, ...]:
    if written.func == INFEASIBLE:
        return ()
    if isinstance(written.func, str):
        if not isinstance(written.result, Mapping):
            raise InvalidInput("evaluator.result must be an object, as evaluator.func is one function")
        if isinstance(written.expected, tuple) or isinstance(written.options, tuple):
            raise InvalidInput("evaluator.expected and .options must be objects, as evaluator.func is one function")
        return (_check(written.func, written.result, written.expected, written.options),)
    n_checks = len(written.func)
    if n_checks == 0:
        raise InvalidInput("evaluator.func is an empty list, so nothing would be scored")
    columns = [_column(written, name, n_checks) for name in ("result", "expected", "options")]
    return tuple(_check(func, *row) for func, *row in zip(written.func, *columns, strict=True))


def _column(written: _Evaluator, name: str, n_checks: int) -> tuple[Mapping[str, Any] | None, ...]:
    found = getattr(written, name)
    if found is None and name != "result":
        return (None,) * n_checks
    if not isinstance(found, tuple) or len(found) != n_checks:
        raise InvalidInput(f"evaluator.{name} must be a list of {n_checks}, as evaluator.func is")
    return found


def _check(
    func: str,
    result: Mapping[str, Any] | None,
    expected: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None,
) -> Check:
    if result is None:
        raise InvalidInput(f"evaluator.func {func!r} has no result")
    return Check(
        func=func,
        result=_getter(result),
        expected=_getter(expected) if expected else None,
        options=options or {},
    )


def _getter(written: Mapping[str, Any]) -> Getter:
    if not isinstance(written.get("type"), str):
        raise InvalidInput("a result or expected of evaluator has no type")
    return Getter(type=written["type"], settings={key: value for key, value in written.items() if key != "type"})
