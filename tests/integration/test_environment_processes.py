"""The same seed in other processes: what the conformance check asks of them, and the levels of the games."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from leaks import no_leaks
from outrider.core.chat import Message, user
from outrider.core.task import Task
from outrider.env import Environment, Observation, Step
from outrider.env.registry import environments_of
from outrider.env.tools import answer_calls
from outrider.testing import check_environment

GAMES = ("FrozenLake", "SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab")
HERE = "OUTRIDER_TEST_PROCESS"
OPENINGS = """
import asyncio, hashlib, json, sys
from outrider.core.task import Task
from outrider.env.registry import bundled_tasks, environments_of

async def main():
    found = []
    for tag in sys.argv[1:]:
        for task in bundled_tasks(tag, limit=40, seed=3):
            found.append([task.task_id, [message.content for message in await environments_of(tag).make(task).reset()]])
    print(json.dumps(found))

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets an environment know whether it is in the process of its test."""
    monkeypatch.setenv(HERE, str(os.getpid()))


class Answering(Environment):
    """Ends at once."""

    async def reset(self, seed: int | None = None) -> Observation:
        return (user(f"seed {seed}"),)

    async def step(self, action: Message) -> Step:
        answers, _ = await answer_calls(action.tool_calls, ())
        return Step(answers, terminated=True)

    async def close(self) -> None: ...


class Hashing(Answering):
    """Depends on the hash seed of its process."""

    async def reset(self, seed: int | None = None) -> Observation:
        return (user(f"{hash('level')}"),)


class Elsewhere(Answering):
    """Behaves as told in the process that the check starts."""

    act = "raise"

    async def reset(self, seed: int | None = None) -> Observation:
        if os.environ[HERE] != str(os.getpid()):
            print("a line on standard output")
            if self.act == "raise":
                raise OSError("this works on my machine only")
            if self.act == "hang":
                await asyncio.Event().wait()
            if self.act == "exit":
                os._exit(7)
        return await super().reset(seed)


class Hanging(Elsewhere):
    act = "hang"


class Exiting(Elsewhere):
    act = "exit"


class Chatty(Elsewhere):
    act = "print"


def lake() -> Environment:
    return environments_of("FrozenLake").make(Task(task_id="t"))


async def test_another_process_is_asked_and_agrees():
    async with no_leaks():
        found = await check_environment(lake)
    assert found.elsewhere == ""


async def test_what_an_environment_prints_is_not_taken_for_its_opening():
    assert (await check_environment(Chatty)).elsewhere == ""


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Hashing, "seed 0 opens otherwise in another process: here .* do not depend on hash"),
        (Elsewhere, "in another process the episode did not open: .*OSError: this works on my machine only"),
        (Exiting, "in another process the episode did not open: its process ended with code 7: a line on"),
    ],
)
async def test_an_environment_that_differs_elsewhere_is_caught(kind: type[Environment], told: str):
    async with no_leaks():
        with pytest.raises(AssertionError, match=told):
            await check_environment(kind)


async def test_an_environment_that_hangs_elsewhere_is_given_up_and_its_process_ended():
    started = time.monotonic()
    async with no_leaks():
        with pytest.raises(AssertionError, match=r"did not open: no answer within 2 s"):
            await check_environment(Hanging, call_seconds=1.0)
    assert time.monotonic() - started < 30


async def test_a_function_that_cannot_be_found_elsewhere_is_said_to_be():
    def local() -> Environment:
        return Answering()

    assert "not a function of a module" in (await check_environment(local)).elsewhere


def test_the_levels_are_the_same_in_a_process_with_another_hash_seed():
    found = [
        subprocess.run(
            [sys.executable, "-c", OPENINGS, *GAMES],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for hash_seed in ("0", "12345")
    ]
    assert found[0] == found[1]
    assert found[0].count("Turn 1") == 160
