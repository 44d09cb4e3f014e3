"""Environments by tag: the built-in ones, those that installed packages announce, and a user's own `module:Class`."""

import random
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput
from outrider.core.loading import load, users_code
from outrider.core.settings import settings_of
from outrider.core.task import Task
from outrider.env.adapter import ClassEnvironments, check_arguments, needs_task
from outrider.env.protocol import Environments

ENTRY_POINTS = "outrider.environments"
"""The group in which a package announces environments: `tag = "module:Class"`."""

GYMNASIUM = "gymnasium:"
"""What begins the tag of an environment that gymnasium knows: `gymnasium:FrozenLake-v1`."""

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "FrozenLake": "outrider.env.games:FrozenLakeEnvironments",
        "SimpleSokoban": "outrider.env.games:SimpleSokobanEnvironments",
        "LargerSokoban": "outrider.env.games:LargerSokobanEnvironments",
        "SokobanDifferentGridVocab": "outrider.env.games:SokobanDifferentGridVocabEnvironments",
        "math": "outrider.env.math:MathEnvironments",
        "osworld": "outrider.env.osworld.environments:OsworldEnvironments",
        "py": "outrider.env.python:PythonEnvironments",
        "rag": "outrider.env.rag:RagEnvironments",
        "web": "outrider.env.web:WebEnvironments",
    }
)

BUNDLED = Path(__file__).parent / "bundled"
"""Where the tasks of built-in environments are, a file for each tag that has some."""

N_TASKS = 10
"""How many episodes an environment without tasks of its own plays if nobody says."""


def tags() -> list[str]:
    """The tags that have a name: built in, or announced by an installed package."""
    return sorted({*BUILT_IN, *_announced()})


def is_built_in(tag: str) -> bool:
    """Whether the environments of `tag` never block the event loop: ours, and those of gymnasium, which have threads.

    A user's own, or one of an installed package, may.
    """
    return tag in BUILT_IN or tag.startswith(GYMNASIUM)


def _announced() -> dict[str, str]:
    """What installed packages announce: tag and place."""
    from importlib.metadata import entry_points  # noqa: PLC0415 slow to import, and seldom needed

    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def environments_of(tag: str, config: Mapping[str, Any] | None = None) -> Environments:
    """The environments of `tag`, set up by `config`.

    A tag is one of `tags()`, `gymnasium:ID`, or `module:Class`: a class of environments, a subclass of `Environment`
    or of `gymnasium.Env`, or a plain class with `reset(seed)` and `step(text)`.
    """
    config = config or {}
    kind: Any = None if tag.startswith(GYMNASIUM) else _class_of(tag)
    if kind is None or _is_gymnasium(kind):
        from outrider.env.gymnasium import GymnasiumConfig, GymnasiumEnvironments  # noqa: PLC0415 seldom needed

        id = tag.removeprefix(GYMNASIUM) if kind is None else ""
        return GymnasiumEnvironments(settings_of(GymnasiumConfig, config, f"configuration of {tag}"), id=id, kind=kind)
    if not hasattr(kind, "make"):
        return ClassEnvironments(kind, name=tag, config=config)
    schema = getattr(kind, "Config", None)
    if schema is None:
        check_arguments(kind, tag, config)
    else:
        given = settings_of(schema, config, f"configuration of {tag}")
    with users_code(f"environment {tag!r}"):
        environments: Environments = kind(**config) if schema is None else kind(given)
    return environments


def task_fields(tag: str) -> frozenset[str] | None:
    """What the environments of `tag` read of a task's metadata; None: any of it."""
    found: frozenset[str] | None = None if tag.startswith(GYMNASIUM) else getattr(_class_of(tag), "task_fields", None)
    return found


def config_fields(tag: str) -> tuple[str, ...]:
    """The names of the settings of `tag`, if its class lists them."""
    found: tuple[str, ...] = getattr(getattr(_class_of(tag), "Config", None), "__struct_fields__", ())
    return found


def bundled_tasks(tag: str, *, limit: int | None = None, seed: int = 0) -> list[Task]:
    """The tasks that come with `tag`: those of its file, in their order, or episodes from seeds drawn from `seed`."""
    if not tag.startswith(GYMNASIUM):
        kind = _class_of(tag)
        if not hasattr(kind, "make") and needs_task(kind):
            raise InvalidInput(f"{tag} takes a task and brings none along: give it some with --data FILE")
    file = BUNDLED / f"{tag}.jsonl"
    if tag in BUILT_IN and file.is_file():
        lines = file.read_text(encoding="utf-8").splitlines()
        tasks = [_task(from_json(line)) for line in lines if line.strip()]
        return tasks[:limit]
    rng = random.Random(f"{tag} {seed}")
    seeds = [rng.getrandbits(31) for _ in range(N_TASKS if limit is None else limit)]
    name = tag.rpartition(":")[2]
    return [Task(task_id=f"{name}-{level}", metadata={"seed": level}) for level in seeds]


def _task(line: dict[str, Any]) -> Task:
    """OSWorld calls the question `instruction`."""
    asked = "question" if "question" in line else "instruction"
    rest = {name: value for name, value in line.items() if name not in {"id", asked, "answer"}}
    return Task(task_id=str(line["id"]), question=line[asked], answer=line.get("answer"), metadata=rest)


def _class_of(tag: str) -> type:
    """The class that `tag` stands for."""
    if ":" in tag:
        return _load(tag, tag)
    if (place := BUILT_IN.get(tag)) is not None:
        return _load(place, tag)
    if (place := _announced().get(tag)) is not None:
        return _load(place, tag)
    known = tags()
    near = get_close_matches(tag.casefold(), [name.casefold() for name in known], n=1)
    hint = next((f"did you mean {name}? " for name in known if near and name.casefold() == near[0]), "")
    raise InvalidInput(
        f"there is no environment {tag!r}; {hint}there are {', '.join(known)}, "
        "and your own as module:Class or gymnasium:ID"
    )


def _is_gymnasium(kind: type) -> bool:
    """Whether `kind` is an environment of gymnasium, found out without importing it."""
    return any(base.__module__ == "gymnasium.core" and base.__name__ == "Env" for base in kind.__mro__)


def _load(place: str, tag: str) -> type:
    """The class at `module:Class`."""
    found = load(place, "environment", such_as="my_envs:Guess")
    if not isinstance(found, type):
        raise InvalidInput(f"environment {tag!r} is a {type(found).__name__}; name a class")
    return found
