"""OSWorld tasks, actions and episodes for tests, in a few words."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from local_computer import LocalComputer
from outrider.core.chat import Message, ToolCall, assistant
from outrider.core.task import Task
from outrider.env.osworld import OsworldConfig, OsworldEnvironment, task_of
from outrider.env.protocol import Score
from outrider.pool.computer import Computer

QUICK = OsworldConfig(settle_seconds=0.05, settle_interval=0.01, wait_seconds=0.0)
PRINTED = {
    "func": "exact_match",
    "result": {"type": "vm_command_line", "command": ["cat", "~/answer"]},
    "expected": {"type": "rule", "rules": {"expected": "42\n"}},
}


def step(type: str, **parameters: Any) -> dict[str, Any]:
    return {"type": type, "parameters": parameters}


def shell(command: str) -> dict[str, Any]:
    return step("execute", command=command, shell=True)


def task(*config: dict[str, Any], evaluator: dict[str, Any] | None = None) -> Task:
    written = {"id": "t1", "instruction": "Write 42.", "config": list(config), "evaluator": evaluator or PRINTED}
    return task_of(json.loads(json.dumps(written)))


def call(name: str, id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=json.dumps(arguments))


def calling(*calls: ToolCall) -> Message:
    return assistant("", calls)


class HastyClock:
    """Time that jumps to whatever is waited for."""

    def __init__(self) -> None:
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> asyncio.Handle:
        self._now += delay_seconds
        return asyncio.get_running_loop().call_soon(callback)


def boarded(task: Task, computer: Computer, config: OsworldConfig | None = None, **options: Any) -> OsworldEnvironment:
    """The environment of an episode on this computer."""
    env = OsworldEnvironment(task, config, **options)
    env.board(Held("m-1", {}, computer))
    return env


class Held(NamedTuple):
    """A machine as an episode gets it."""

    machine_id: str
    address: dict[str, Any]
    computer: Computer


async def scored(computer: LocalComputer, evaluator: dict[str, Any], *config: dict[str, Any], **options: Any) -> Score:
    """The score of an agent that says DONE at once."""
    env = boarded(task(*config, evaluator=evaluator), computer, QUICK, **options)
    await env.reset()
    await env.step(assistant("DONE"))
    return await env.score()


def file(path: str, type: str = "vm_file") -> dict[str, Any]:
    return {"type": type, "path": path, "dest": path.rpartition("/")[2]}


def rules(value: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": value}
