"""Python tasks whose programs are tried on machines of a pool: sandboxes, and a container that has no Python."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from docker_engine import IMAGE, DockerEngine
from leaks import no_leaks
from outrider.core.chat import Message, Role, ToolCall, assistant
from outrider.core.errors import EnvError, InvalidInput, MachineError
from outrider.core.task import Task
from outrider.env import Environment
from outrider.env.protocol import Score
from outrider.env.python import FILES_STAY, PythonConfig, PythonEnvironments
from outrider.env.registry import bundled_tasks
from outrider.env.sandbox import Limits
from outrider.policy import ChatPolicy
from outrider.policy.opening import open_policy
from outrider.policy.spec import PolicySpec
from outrider.pool.config import PoolConfig
from outrider.pool.lease import Lease
from outrider.pool.pool import MachinePool
from outrider.pool.providers.docker import DockerProvider, DockerSettings
from outrider.pool.providers.process import ProcessProvider
from outrider.testing import eventually

TASK = Task(task_id="t", question="?", metadata={"tests": ["assert f() == 'hidden-4741'"]})
LIMITS = Limits(wall_seconds=5.0, output_bytes=1000)


@pytest.fixture
async def pool() -> AsyncIterator[MachinePool]:
    with tempfile.TemporaryDirectory(prefix="om-") as folder:
        provider = ProcessProvider(folder=Path(folder) / "machines")
        try:
            await provider.check(2)
        except InvalidInput as exc:
            pytest.skip(str(exc))
        async with no_leaks(), MachinePool(provider, PoolConfig(n_machines=2)) as pool:
            yield pool


@pytest.fixture
async def lease(pool: MachinePool) -> AsyncIterator[Lease]:
    async with pool.acquire(deadline=30) as lease:
        yield lease


@pytest.fixture
def environment(lease: Lease) -> Environment:
    environment = PythonEnvironments(PythonConfig(limits=LIMITS)).make(TASK)
    environment.board(lease)
    return environment


async def tried(environment: Environment, code: str, stdin: str = "") -> str:
    call = ToolCall(id="1", name="run_python", arguments=json.dumps({"code": code, "stdin": stdin}))
    return (await environment.step(assistant(tool_calls=(call,)))).observation[0].content


async def played(environment: Environment, policy: ChatPolicy, task_id: str) -> tuple[Score | None, list[Message]]:
    messages = list(await environment.reset(seed=1))
    is_over = False
    while not is_over:
        reply = (await policy.complete(messages, tools=environment.tools, session=task_id)).message
        step = await environment.step(reply)
        messages += [reply, *step.observation]
        is_over = step.terminated
        assert len(messages) < 20
    score = await environment.score()
    await environment.close()
    return score, messages


async def test_the_solver_solves_the_bundled_tasks_on_few_machines_as_it_does_without(pool: MachinePool):
    environments = PythonEnvironments()
    policy = await open_policy(PolicySpec(model="builtin:solver"))
    tasks = bundled_tasks("py", limit=6)

    async def on_a_machine(task: Task) -> tuple[Score | None, list[Message]]:
        environment = environments.make(task)
        async with pool.acquire(deadline=60, run="run", holder=task.task_id) as lease:
            environment.board(lease)
            return await played(environment, policy, task.task_id)

    there = await asyncio.gather(*map(on_a_machine, tasks))
    assert [score.reward for score, _ in there if score is not None] == [1.0] * len(tasks)
    here = [await played(environments.make(task), policy, task.task_id) for task in tasks[:4]]
    for (score, messages), (same_score, same_messages) in zip(there, here, strict=False):
        assert score == same_score
        assert messages[0].content == f"{same_messages[0].content}\n{FILES_STAY}"
        seen, same = ([message for message in each if message.role is Role.TOOL] for each in (messages, same_messages))
        assert [message.content for message in seen] == [message.content for message in same]
    assert pool.statistics().n_leases == len(tasks)
    await policy.close()
    await environments.close()


async def test_files_stay_for_the_episode_and_are_gone_for_the_next(environment: Environment, lease: Lease):
    await tried(environment, "open('mine.py', 'w').write('X = 4742')")
    assert await tried(environment, "import mine; print(mine.X)") == "exit code 0\nstdout:\n4742"
    another = PythonEnvironments().make(TASK)
    another.board(lease)
    assert "ModuleNotFoundError" in await tried(another, "import mine")


async def test_the_machine_never_sees_the_tests(environment: Environment, lease: Lease):
    assert await tried(environment, "print('tried')") == "exit code 0\nstdout:\ntried"
    await environment.step(assistant("```python\ndef f(): return 'hidden' + '-4741'\n```"))
    score = await environment.score()
    assert score is not None
    assert score.reward == 1.0
    searched = await lease.computer.execute("grep -rl 'hidden-4741' ~ /tmp; grep -rl print ~ /tmp")
    assert len(searched.stdout.splitlines()) == 1


async def test_what_the_agent_sees_of_a_run_says_how_it_ended(environment: Environment):
    assert await tried(environment, "print(input()[::-1])", "über") == "exit code 0\nstdout:\nrebü"
    assert await tried(environment, "import sys; assert sys.stdin.read() == ''; sys.exit(3)") == "exit code 3"
    assert "NameError" in await tried(environment, "nonsense")
    assert await tried(environment, "import os; os.kill(os.getpid(), 11)") == "signal SIGSEGV"
    assert "stdout (only the first 1000 bytes were read)" in await tried(environment, "print('x' * 2000)")
    assert (await tried(environment, " ")).startswith("error: no program")


async def test_a_program_is_stopped_at_the_time_limit(lease: Lease):
    limits = Limits(wall_seconds=0.5)
    environment = PythonEnvironments(PythonConfig(limits=limits)).make(TASK)
    environment.board(lease)
    async with asyncio.timeout(30):
        seen = await tried(environment, "import time; print('begun'); time.sleep(60)")
    assert seen == "killed: wall time, at most 0.5 s allowed\nstdout:\nbegun"


async def test_a_machine_that_dies_is_the_failure_not_the_program(environment: Environment, lease: Lease):
    await tried(environment, "pass")
    running = asyncio.create_task(tried(environment, "open('/tmp/begun', 'w'); import time; time.sleep(60)"))

    async def begun() -> bool:
        return await lease.computer.read_file("/tmp/begun") is not None

    await eventually(begun)
    os.kill(lease.address["pid"], signal.SIGKILL)
    async with asyncio.timeout(30):
        with pytest.raises(MachineError):
            await running
    with pytest.raises(MachineError):
        await tried(environment, "pass")


async def test_a_machine_without_python_is_named_with_what_to_do(docker_engine: DockerEngine):
    provider = DockerProvider(IMAGE, DockerSettings(socket=str(docker_engine.socket)))
    async with MachinePool(provider, PoolConfig(n_machines=1)) as pool, pool.acquire(deadline=30) as lease:
        environment = PythonEnvironments().make(TASK)
        environment.board(lease)
        with pytest.raises(EnvError, match=r"has no python3.*use machines that have"):
            await tried(environment, "pass")
