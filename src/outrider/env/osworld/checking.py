"""Whether tasks can be run and scored here: found out before any of them is begun."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from outrider.core.decoding import convert
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.osworld.files import LocalFiles
from outrider.env.osworld.getters import GETTERS, SomeFiles
from outrider.env.osworld.metrics import FILE, METRICS, Expected
from outrider.env.osworld.setup import STEPS, Download, UploadFile
from outrider.env.osworld.task import Check, Getter, SetupStep, osworld_task

_MOST_IDS = 20


def check_tasks(tasks: Iterable[Task], files: LocalFiles | None = None) -> None:
    """Raise `InvalidInput` with all that cannot be done, and the tasks that ask for it.

    With `files`, the files that tasks name must be among them.
    """
    wrong: dict[str, list[str]] = defaultdict(list)
    for task in tasks:
        for problem in dict.fromkeys(_problems(task, files)):
            wrong[problem].append(task.task_id)
    if wrong:
        lines = [f"- {problem}: {_listed(ids)}" for problem, ids in wrong.items()]
        raise InvalidInput("\n".join(["these tasks cannot be run here:", *lines]))


def _listed(ids: list[str]) -> str:
    more = f" and {len(ids) - _MOST_IDS} more" if len(ids) > _MOST_IDS else ""
    return ("tasks " if len(ids) > 1 else "task ") + ", ".join(ids[:_MOST_IDS]) + more


def _problems(task: Task, files: LocalFiles | None) -> Iterator[str]:
    try:
        read = osworld_task(task)
    except InvalidInput as exc:
        yield str(exc).removeprefix(f"task {task.task_id!r}: ")
        return
    for step in (*read.config, *read.evaluator.postconfig):
        yield from _step_problems(step, files)
    for check in read.evaluator.checks:
        yield from _check_problems(check, files)


def _step_problems(step: SetupStep, files: LocalFiles | None) -> Iterator[str]:
    kind = STEPS.get(step.type)
    if kind is None:
        yield f"unknown setup type {step.type!r}"
        return
    try:
        parameters = convert(dict(step.parameters), kind.parameters)
    except msgspec.ValidationError as exc:
        yield f"setup {step.type}: {exc}"
        return
    if isinstance(parameters, Download):
        yield from _missing(((file.url, file.path) for file in parameters.files), files)
    if isinstance(parameters, UploadFile):
        yield from _missing(((file.local_path, file.path) for file in parameters.files), files)


def _check_problems(check: Check, files: LocalFiles | None) -> Iterator[str]:
    yield from _getter_problems(check.result, files)
    if check.expected is not None:
        yield from _getter_problems(check.expected, files)
    metric = METRICS.get(check.func)
    if metric is None:
        yield f"unknown metric {check.func!r}"
        return
    try:
        convert(dict(check.options), metric.options)
    except msgspec.ValidationError as exc:
        yield f"options of {check.func}: {exc}"
    yield from _expected_problems(check)


def _expected_problems(check: Check) -> Iterator[str]:
    expects = METRICS[check.func].expects
    if check.expected is None:
        yield f"{check.func} has nothing that is expected"
    elif isinstance(expects, Expected):
        if expects is FILE and check.expected.type == "rule":
            yield f"{check.func} compares with a file, not with a rule"
    elif check.expected.type != "rule":
        yield f"{check.func} compares with a rule, not with {check.expected.type}"
    else:
        try:
            convert(check.expected.settings.get("rules"), expects)
        except msgspec.ValidationError as exc:
            yield f"rules of {check.func}: {exc}"


def _getter_problems(getter: Getter, files: LocalFiles | None) -> Iterator[str]:
    kind = GETTERS.get(getter.type)
    if kind is None:
        yield f"unknown getter {getter.type!r}"
        return
    try:
        settings = convert(dict(getter.settings), kind.settings)
    except msgspec.ValidationError as exc:
        yield f"getter {getter.type}: {exc}"
        return
    if getter.type == "cloud_file" and isinstance(settings, SomeFiles):
        yield from _missing(zip(settings.paths, settings.names, strict=True), files)


def _missing(named: Iterable[tuple[str, str]], files: LocalFiles | None) -> Iterator[str]:
    for address, saved_as in named:
        if files is not None and files.find(address, saved_as=saved_as) is None:
            yield f"no local file stands for {address!r}"
