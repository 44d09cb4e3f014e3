"""Numbers are refused where they are given, not where they would end in a date or a column that does not exist."""

import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

import outrider
from outrider.core.bounds import MAX_COUNT, MAX_SECONDS
from outrider.core.decoding import convert
from outrider.core.errors import InvalidInput
from outrider.core.rollout import RolloutConfig
from outrider.core.settings import settings_of
from outrider.pool import PoolConfig
from outrider.pool.spec import MachineSpec
from outrider.runner.attempt import StageLimits
from outrider.train.config import EnvManagerConfig, SchedulerConfig

NAMED_AS_SETTINGS = re.compile(
    r"(Config|Settings|Options|Limits|Budget|Spec|Sampling|Rewards|Rule|Server|Scale|Changes|Strategy|CustomEnv|Bounds"
    r"|Plan|Layout|Agent|Performance|Pretence|Order)$"
)
"""What people give is called by one of these names, or refuses unknown fields."""

NOT_GIVEN = {
    "SeatSpec": "made by the launcher of a group",
    "WorkerSpec": "its number is given by the supervisor",
    "ValueRule": "keys of somebody's document, which may be any number",
    "FaultPlan": "of a server for tests",
    "Fault": "of a server for tests",
    "LedgerPlan": "of the store's own rows",
    "_Part": "a part of a text",
    "_Scale": "of a drawing",
    "HostRule": "read from a text, and only compared",
    "outrider.train.atif_document": "documents that others wrote",
    "outrider.cluster.engines.local.Order": "made by the launcher of a group",
    "outrider.env.osworld.action": "arguments of a tool, checked by msgspec when a model calls it",
    "outrider.env.web.actions": "arguments of a tool, checked by msgspec when a model calls it",
    "SearchArguments": "arguments of a tool, checked by msgspec when a model calls it",
}
"""By name, module, or both: what nobody gives as a setting."""

REQUIRED: dict[str, Any] = {
    "name": "name",
    "cpus_per_worker": 0.0,
    "model": "model",
    "base_url": "http://127.0.0.1:1",
    "command": "command",
    "machines": MachineSpec(),
    "pool": PoolConfig(),
    "is_shared": False,
    "image": Path("image"),
    "minimum": 1,
    "maximum": 1,
    "n_workers": 1,
    "gpu_ids": ((0,),),
    "text": "0",
    "prompt": "prompt",
    "run": "run",
    "tasks": (),
    "window": 1,
    "timeout_seconds": 1.0,
    "max_attempts": 1,
}
"""Values of fields that have to be given."""

ONE_OF_TWO = {"McpServer": {"command": "command"}}

TOO_MUCH: tuple[Any, ...] = (math.nan, -math.inf, 1e300, -1e300, 10**400, 2**170, -(2**170), True, [1])
WITH_ENDS_OF_THEIR_OWN = {"node_ids", "gpu_ids", "key"}


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(outrider.__path__, "outrider."):
        if not found.name.endswith("__main__") and ".inside" not in found.name:
            yield importlib.import_module(found.name)


def is_configuration(kind: Any) -> bool:
    if not inspect.isclass(kind) or not (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        return False
    name = f"{kind.__module__}.{kind.__name__}"
    if {kind.__name__, kind.__module__, name} & NOT_GIVEN.keys():
        return False
    config = getattr(kind, "__struct_config__", None)
    return bool(NAMED_AS_SETTINGS.search(kind.__name__)) or (config is not None and config.forbid_unknown_fields)


def configurations() -> list[type]:
    found = {kind: None for module in modules() for kind in vars(module).values() if is_configuration(kind)}
    return sorted(
        (kind for kind in found if kind.__module__.startswith("outrider.")),
        key=lambda kind: (kind.__name__, kind.__module__),
    )


def numbers_in(hint: Any, *, is_many: bool = False) -> Iterator[tuple[type, bool]]:
    """The numbers that a field of this type holds, and whether several."""
    if hint in (int, float):
        yield hint, is_many
    elif get_origin(hint) is Annotated:
        yield from numbers_in(get_args(hint)[0], is_many=is_many)
    elif get_origin(hint) in (Union, UnionType, tuple, list):
        for part in get_args(hint):
            yield from numbers_in(part, is_many=is_many or get_origin(hint) in (tuple, list))


NUMBERS = [
    (kind, name, number, is_many)
    for kind in configurations()
    for name, hint in get_type_hints(kind, include_extras=True).items()
    if get_origin(hint) is not Literal
    for number, is_many in numbers_in(hint)
    if not name.startswith("__") and name not in WITH_ENDS_OF_THEIR_OWN
]


def made(kind: Any, **given: Any) -> Any:
    fields = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
    missing = (name for name, default in fields.items() if default is inspect.Parameter.empty)
    return kind(**{**{name: REQUIRED.get(name) for name in missing}, **ONE_OF_TWO.get(kind.__name__, {}), **given})


def test_the_walk_finds_the_configurations():
    found = {f"{kind.__name__}.{name}" for kind, name, _, _ in NUMBERS}
    assert len(found) > 150
    assert found > {"RunConfig.timeout", "PoolConfig.n_machines", "Limits.cpu_seconds", "Sampling.temperature"}
    assert found > {"Budget.money", "RolloutSettings.max_buffer_bytes", "StageLimits.act_seconds", "Scale.maximum"}


@pytest.mark.parametrize(
    ("kind", "name", "number", "is_many"), NUMBERS, ids=[f"{kind.__name__}.{name}" for kind, name, _, _ in NUMBERS]
)
def test_every_number_of_every_configuration_is_bounded(kind: Any, name: str, number: type, is_many: bool):
    for bad in (*TOO_MUCH, *((1.5, "1") if number is int else ("1",))):
        with pytest.raises(InvalidInput, match=name.removesuffix("_seconds")):
            made(kind, **{name: (bad,) if is_many else bad})


def test_defaults_are_within_the_bounds():
    for kind in {kind for kind, *_ in NUMBERS}:
        made(kind)


@pytest.mark.parametrize(("kind", "name"), [(PoolConfig, "n_machines"), (SchedulerConfig, "max_buffer_bytes")])
def test_what_is_read_from_a_file_is_bounded_as_what_is_made_in_code(kind: Any, name: str):
    for bad in (-1, 2**70):
        with pytest.raises(InvalidInput, match=f"{name} is {bad}"):
            settings_of(kind, {name: bad}, "a file")
        with pytest.raises(msgspec.ValidationError, match=f"{name} is {bad}"):
            convert({name: bad}, kind)


def test_a_message_says_what_may_be_given():
    with pytest.raises(InvalidInput, match=r"n_machines is 0; give 1 or more"):
        PoolConfig(n_machines=0)
    with pytest.raises(InvalidInput, match=rf"max_attempts is {2**70}; give {MAX_COUNT} at most"):
        RolloutConfig(max_attempts=2**70)
    with pytest.raises(InvalidInput, match=r"timeout_seconds is 0; give more than 0"):
        RolloutConfig(timeout_seconds=0)
    with pytest.raises(InvalidInput, match=r"group_size is 1.0; give a whole number, 1 or more"):
        EnvManagerConfig(group_size=1.0)  # type: ignore[arg-type]


def test_infinity_stands_for_no_limit_where_there_may_be_none():
    assert StageLimits(act_seconds=math.inf).act_seconds == math.inf
    assert SchedulerConfig(turn_seconds=math.inf).turn_seconds == math.inf
    with pytest.raises(InvalidInput, match="unresponsive_seconds"):
        RolloutConfig(unresponsive_seconds=math.inf)


def test_what_is_to_be_retried_is_named_as_such():
    for bad in ("failed", 5, ["succeeded"], [5]):
        with pytest.raises(InvalidInput, match="retry_condition"):
            RolloutConfig(retry_condition=bad)  # type: ignore[arg-type]


def test_the_longest_time_ends_in_a_date_that_exists():
    assert RolloutConfig(unresponsive_seconds=MAX_SECONDS, timeout_seconds=MAX_SECONDS, max_attempts=MAX_COUNT)
