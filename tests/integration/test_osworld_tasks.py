"""The bundled desktop tasks on real machines of a pool: solved by the built-in solver, failed by everybody else."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from guessing import Lines, scripted
from outrider.core.chat import Message
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.osworld import ActionSpace, OsworldConfig
from outrider.env.osworld.environments import OsworldEnvironments
from outrider.env.protocol import Score
from outrider.env.registry import BUNDLED, bundled_tasks
from outrider.evaluate.benchmark import read_benchmark
from outrider.policy import ChatPolicy, PolicySpec, Sampling, open_policy
from outrider.pool import MachinePool, PoolConfig
from outrider.pool.provider import Provider
from outrider.pool.providers.desktop import DesktopProvider
from outrider.pool.providers.qemu import Accelerator, QemuProvider, QemuSettings
from qemu_guest import desktop_image

pytestmark = pytest.mark.asyncio(loop_scope="module")

TASKS = {task.task_id: task for task in bundled_tasks("osworld")}
N_MACHINES = 2
TURN_SECONDS = 600.0
"""The last of all tasks waits for a machine until the others have been played."""
ON_QEMU = ("write-note", "move-window")
QUICK = OsworldConfig(wait_seconds=0.3)

PROGRAMS = {
    "nano": "nano",
    "wmctrl": "wmctrl",
    "hsetroot": "hsetroot",
    "xmessage": "x11-utils",
    "xprop": "x11-utils",
}
"""What the tasks start on a desktop, which has it from this host, and the packages that bring it."""


def desktops(**size: int) -> Provider:
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if missing:
        pytest.skip(f"the tasks start programs that are missing here; apt-get install {' '.join(sorted(missing))}")
    return DesktopProvider(**size)


def virtual_machines() -> Provider:
    return QemuProvider(QemuSettings(image=desktop_image().folder, accelerator=Accelerator.TCG))


KINDS: Mapping[str, Callable[[], Provider]] = {"desktop": desktops, "qemu": virtual_machines}
"""The kinds of machines on which all tasks are tried."""

ON_DESKTOPS = pytest.mark.parametrize("pool", ["desktop"], indirect=True)
"""For what depends on the task more than on the machine, which software may run slowly."""


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["desktop", pytest.param("qemu", marks=pytest.mark.soak)]
)
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[MachinePool]:
    async with pool_of(KINDS[request.param]()) as pool:
        yield pool


@pytest.fixture
def names(pool: MachinePool) -> tuple[str, ...]:
    """The tasks to play: all; where software runs the machine, those that differ most in what they do to it."""
    return ON_QEMU if pool.machines[0].provider == "qemu" else tuple(TASKS)


@asynccontextmanager
async def pool_of(provider: Provider) -> AsyncIterator[MachinePool]:
    try:
        await provider.check(N_MACHINES)
    except InvalidInput as exc:
        pytest.skip(str(exc))
    async with MachinePool(provider, PoolConfig(n_machines=N_MACHINES)) as pool:
        yield pool
    assert pool.statistics().n_leaks == 0


async def play(pool: MachinePool, task: Task, policy: ChatPolicy, config: OsworldConfig = QUICK) -> Score:
    """One episode on a machine of the pool, as an agent that calls tools would have it."""
    environments = OsworldEnvironments(config)
    async with pool.acquire(deadline=TURN_SECONDS, holder=task.task_id) as lease:
        env = environments.make(task)
        env.board(lease)
        messages: list[Message] = [*await env.reset()]
        while True:
            said = await policy.complete(messages, tools=env.tools, sampling=Sampling(seed=0), session=task.task_id)
            step = await env.step(said.message)
            messages += [said.message, *step.observation]
            if step.terminated or step.truncated:
                score = await env.score()
                print(f"{task.task_id}: {score.reward}, {score.explanation}")  # for who wonders why it failed
                return score


async def rewards(
    pool: MachinePool, policy: ChatPolicy, config: OsworldConfig = QUICK, names: Iterable[str] = tuple(TASKS)
) -> dict[str, float]:
    """What these tasks are worth, played as machines come free."""
    scores = await asyncio.gather(*(play(pool, TASKS[name], policy, config) for name in names))
    return {name: score.reward for name, score in zip(names, scores, strict=True)}


async def test_the_bundled_tasks_are_a_benchmark_file_like_any_other():
    assert read_benchmark(str(BUNDLED / "osworld.jsonl")) == list(TASKS.values())
    assert len(TASKS) >= 12


async def test_the_builtin_solver_solves_every_task(pool: MachinePool, names: tuple[str, ...]):
    solver = await open_policy(PolicySpec(model="builtin:solver"))
    assert await rewards(pool, solver, names=names) == dict.fromkeys(names, 1.0)


@pytest.mark.soak
@pytest.mark.timeout(TURN_SECONDS)
async def test_the_builtin_solver_solves_every_task_wherever_it_runs(pool: MachinePool):
    solver = await open_policy(PolicySpec(model="builtin:solver"))
    assert await rewards(pool, solver) == dict.fromkeys(TASKS, 1.0)


SOME = pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)], ids=["some", "all"])
"""Every so many-th task."""


@SOME
async def test_an_untouched_machine_is_worth_nothing(pool: MachinePool, names: tuple[str, ...], step: int):
    tried = names[::step]
    assert await rewards(pool, scripted(Lines("DONE")), names=tried) == dict.fromkeys(tried, 0.0)


@SOME
@ON_DESKTOPS
async def test_whoever_acts_at_random_fails_every_task(pool: MachinePool, names: tuple[str, ...], step: int):
    tried = names[::step]
    guesser = await open_policy(PolicySpec(model="builtin:random"))
    assert await rewards(pool, guesser, names=tried) == dict.fromkeys(tried, 0.0)


@ON_DESKTOPS
async def test_what_is_nearly_right_is_worth_a_part(pool: MachinePool):
    only_one_line = (
        '{"action_type": "TYPING", "text": "Buy bread and apples"}',
        '{"action_type": "HOTKEY", "keys": ["ctrl", "o"]}',
        '{"action_type": "TYPING", "text": "~/Documents/note.txt\\n"}',
        '{"action_type": "HOTKEY", "keys": ["ctrl", "x"]}',
        "WAIT",
        "DONE",
    )
    score = await play(pool, TASKS["write-note"], scripted(Lines(*only_one_line)))
    assert 0.5 < score.reward < 1.0, score.explanation


@ON_DESKTOPS
async def test_the_other_of_two_ways_is_as_good(pool: MachinePool):
    full_screen = '{"action_type": "HOTKEY", "keys": ["alt", "enter"]}'
    score = await play(pool, TASKS["fill-screen"], scripted(Lines(full_screen, "WAIT", "DONE")))
    assert score.reward == 1.0, score.explanation


async def test_the_solver_speaks_python_on_a_larger_screen_too():
    names = ("move-window", "find-timer", "hide-music", "keep-backups", "copy-ticket", "first-line")
    solver = await open_policy(PolicySpec(model="builtin:solver"))
    config = OsworldConfig(action_space=ActionSpace.PYAUTOGUI, use_tools=False, wait_seconds=0.3)
    async with pool_of(desktops(width=1920, height=1080)) as pool:
        assert await rewards(pool, solver, config, names) == dict.fromkeys(names, 1.0)
