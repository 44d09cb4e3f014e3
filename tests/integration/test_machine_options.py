"""Options of machines on the command line, by what they do to the machines that a command gets."""

import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypervisor_stand_ins.stage import PROGRAMS, calls, product, vmware_image
from machine_runs import ended, folder_for_pools, machines, nothing_is_left, started
from outrider.core.event import EventKind
from outrider.core.turn import step_of
from outrider.store import open_store
from processes import line, run_outrider

SNAPSHOTS = ("init_state", "with_tools")
SIZE = ("--screen-width", "700", "--screen-height", "500")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTRIDER_STORE", raising=False)
    with folder_for_pools(monkeypatch):
        yield tmp_path


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname[5:30]}-{os.getpid()}"


@pytest.fixture
def image(tmp_path: Path, guest_host: Path) -> Iterator[Path]:
    """An image of VMware, and its stand-in."""
    with product(tmp_path, guest_host):
        yield vmware_image(tmp_path / "image", snapshots=SNAPSHOTS)


def program() -> str:
    return f"program={PROGRAMS / 'vmrun'}"


def snapshots() -> set[str]:
    """Those that machines were made of."""
    return {word for call in calls() for word in call if word.startswith("-snapshot=")}


async def test_a_run_has_machines_of_the_kind_image_and_snapshot_it_names(name: str, image: Path):
    run_outrider(
        "run", "--mode", "py", "--limit", "2", "--num-rollouts", "1", "--model", "builtin:solver", "--name", name,
        "--use-vm-pool", "--num-vms", "1", "--provider-name", "vmware", "--path-to-vm", str(image),
        "--snapshot-name", "with_tools", "--machine", program(), "--pool", "max_uses=1",
    )  # fmt: skip
    await are_made_of_it_and_used_once(name)


async def test_so_has_a_training_run(name: str, image: Path):
    Path("programs.yaml").write_text(
        "train_env_manager: {num_env_groups: 1, group_size: 2, tags: [py]}\nmodel: builtin:random\n"
    )
    run_outrider(
        "rollout", "-c", "programs.yaml", "--steps", "1", "--model", "builtin:solver", "--name", name,
        "--use-vm-pool", "--num-vms", "1", "--provider-name", "vmware", "--path-to-vm", str(image),
        "--snapshot-name", "with_tools", "--machine", program(), "--pool", "max_uses=1",
    )  # fmt: skip
    assert "model: builtin:solver" in Path("results", name, "rollout.yaml").read_text()
    await are_made_of_it_and_used_once(name)


async def are_made_of_it_and_used_once(name: str) -> None:
    made = await machines(name)
    assert {one.provider for one in made} == {"vmware"}
    n_uses = [one.n_uses for one in made if one.n_uses]
    assert len(n_uses) >= 2
    assert set(n_uses) == {1}
    assert snapshots() == {"-snapshot=with_tools"}
    await nothing_is_left(name)


def test_so_has_a_pool_that_is_served(name: str, image: Path):
    with serving(
        "pool", "serve", "--name", name, "--provider-name", "vmware", "--path-to-vm", str(image), "--num-vms", "1",
        "--snapshot-name", "with_tools", "--machine", program(), "--pool", "n_machines=2",
    ) as (said, _):  # fmt: skip
        assert said == f"pool {name}: 2 machines of vmware are being made"
        assert snapshots() == {"-snapshot=with_tools"}


def test_the_desktops_of_a_served_pool_have_the_size_that_was_asked_for(name: str):
    with serving("pool", "serve", "--name", name, "--num-vms", "1", *SIZE) as (_, pid):
        screens = [command for command in commands_below(pid) if "Xvfb" in command]
        assert screens
        assert all("700x500x24" in command for command in screens)


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[str, int]]:
    """A pool with a machine that is ready: the first line it said, and its process."""
    with started(*arguments) as process:
        first, ready = line(process), line(process)
        assert "--pool-name" in ready, (first, ready)
        yield first, process.pid
        process.send_signal(signal.SIGTERM)
        ended(process)
    assert process.returncode == 0


def commands_below(pid: int) -> Iterator[str]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
        yield from commands_below(int(child))


async def test_a_run_shows_a_screen_of_the_size_and_in_the_way_that_was_asked_for(name: str):
    run_outrider(
        "run", "--mode", "osworld", "--limit", "1", "--model", "builtin:solver", "--name", name, *SIZE,
        "--observation-type", "screenshot_a11y_tree", "--action-space", "pyautogui",
    )  # fmt: skip
    async with open_store(f"sqlite:///results/{name}/store.db") as store:
        (rollout,) = await store.query_rollouts()
        events = (await store.query_events(rollout.rollout_id)).items
    opening, *_ = [step_of(event) for event in events if event.kind is EventKind.STEP]
    text = "\n".join(message.content for message in opening.observation)
    assert "pyautogui" in text
    assert "The accessibility tree of the screen:" in text
    (picture,) = [image for message in opening.observation for image in message.images]
    assert struct.unpack(">II", picture.data[16:24]) == (700, 500)
    await nothing_is_left(name)
