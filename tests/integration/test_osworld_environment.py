"""OSWorld episodes on a stand-in machine whose commands and files are real: actions and what is seen of them."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leaks import no_leaks
from local_computer import LocalComputer
from osworld_episodes import QUICK, HastyClock, boarded, call, calling, rules, shell, step, task
from outrider.core.chat import Message, Role, ToolCall, assistant
from outrider.core.errors import EnvError, InvalidInput, MachineError, MachineRefusal
from outrider.env.osworld import ActionSpace, ObservationType, OsworldConfig, OsworldEnvironment
from outrider.pool.computer import Input, Key, MoveTo, Text
from outrider.pool.providers.desktop import DesktopProvider
from outrider.testing import check_environment, eventually

BY_CODE = OsworldConfig(action_space=ActionSpace.PYAUTOGUI, settle_seconds=0, wait_seconds=0)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """The thread of the event loop's own pool is there before, so it does not count."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    await asyncio.to_thread(int)
    async with no_leaks():
        yield


@pytest.fixture
def computer(tmp_path: Path) -> LocalComputer:
    return LocalComputer(tmp_path / "machine")


async def test_an_episode_goes_from_setup_to_score(computer: LocalComputer):
    async with nothing_left():
        env = boarded(task(shell("echo 41 > ~/answer")), computer, QUICK)
        rules, opening = await env.reset(7)
        assert rules.role is Role.SYSTEM
        assert "64 by 48 pixels" in rules.content
        assert opening.content.startswith("Write 42.")
        assert struct.unpack(">II", opening.images[0].data[16:24]) == (64, 48)

        first = await env.step(calling(call("CLICK", x=10, y=20), call("TYPING", "c2", text="echo")))
        assert [answer.tool_call_id for answer in first.observation] == ["c1", "c2"]
        assert first.observation[0].images == ()
        assert first.observation[1].images[0].data != opening.images[0].data
        assert (computer.pointer, computer.typed) == ((10, 20), "echo")
        assert not first.terminated

        (computer.folder / "answer").write_text("42\n")
        last = await env.step(calling(call("DONE")))
        assert (last.terminated, last.truncated) == (True, False)
        score = await env.score()
        assert score.reward == 1.0
        assert score.metrics == {"success": 1.0, "n_steps": 2.0, "n_actions": 3.0, "n_invalid": 0.0}
        assert "exact_match: 1 of vm_command_line '42\\n'" in score.explanation
        assert await env.score() is score
        await env.close()


async def test_a_task_is_done_on_a_real_desktop():
    written = {
        "func": ["exact_match", "check_accessibility_tree"],
        "result": [{"type": "vm_command_line", "command": ["cat", "~/answer"]}, {"type": "accessibility_tree"}],
        "expected": [rules({"expected": "42\n"}), rules([{"xpath": "//frame[@name='Shell']"}])],
    }
    config = [
        step("launch", command=["xterm", "-T", "Shell", "-geometry", "80x24+0+0"]),
        step("activate_window", window_name="Shell", strict=True),
    ]
    provider = DesktopProvider()
    try:
        await provider.check(1)
    except InvalidInput as exc:
        pytest.skip(str(exc))
    machine = await provider.create("m1", "the osworld environment's test")
    try:
        env = boarded(task(*config, evaluator=written), machine.computer)
        _, opening = await env.reset()
        await env.step(calling(call("CLICK", x=100, y=100)))
        seen = await env.step(calling(call("TYPING", text="echo $((6*7)) > ~/answer\n")))
        assert seen.observation[0].images != opening.images
        await eventually(lambda: machine.computer.read_file("~/answer"))
        await env.step(calling(call("DONE")))
        score = await env.score()
        assert score.reward == 1.0, score.explanation
    finally:
        await machine.destroy()
        await provider.close()


async def test_an_action_in_a_fenced_block_is_as_good_as_a_call(computer: LocalComputer):
    env = boarded(task(), computer, QUICK)
    await env.reset()
    found = await env.step(assistant('I click.\n```json\n{"action_type": "CLICK", "x": 3, "y": 4}\n```'))
    assert computer.pointer == (3, 4)
    assert found.observation[0].role is Role.USER
    assert found.observation[0].images


async def test_the_environment_conforms(tmp_path: Path):
    n_made = 0

    def make() -> OsworldEnvironment:
        nonlocal n_made
        n_made += 1
        return boarded(task(), LocalComputer(tmp_path / f"machine{n_made}"), QUICK)

    actions = [calling(call("CLICK", x=1, y=1)), "WAIT", calling(call("DONE"))]
    async with nothing_left():
        await check_environment(lambda: make(), actions=actions)  # noqa: PLW0108


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (assistant("I do not know."), "there is no action in your message"),
        (assistant('{"action_type": "CLICK", "x": 64, "y": 0}'), "from 0 to 63"),
        (calling(call("FLY")), "there is no action 'FLY'"),
        (calling(ToolCall(id="c1", name="CLICK", arguments="{")), "cannot be read as JSON"),
        (calling(call("TYPING", text="\ud800")), "cannot be typed"),
    ],
)
async def test_an_invalid_action_is_told_counted_and_not_carried_out(computer: LocalComputer, said: Message, told: str):
    env = boarded(task(), computer, QUICK)
    await env.reset()
    found = await env.step(said)
    assert found.observation[-1].content.startswith("error: ")
    assert told in found.observation[-1].content
    assert found.observation[-1].images
    assert found.info["is_valid"] is False
    assert computer.events == []
    assert (await env.score()).metrics["n_invalid"] == 1


async def test_one_wrong_call_keeps_all_of_its_message_from_being_carried_out(computer: LocalComputer):
    env = boarded(task(), computer, QUICK)
    await env.reset()
    found = await env.step(calling(call("CLICK", x=1, y=1), call("PRESS", "c2", key="entre")))
    assert [answer.tool_call_id for answer in found.observation] == ["c1", "c2"]
    assert "not carried out" in found.observation[0].content
    assert "did you mean 'enter'?" in found.observation[1].content
    assert computer.events == []


async def test_nothing_is_carried_out_after_the_end(computer: LocalComputer):
    env = boarded(task(), computer, QUICK)
    await env.reset()
    found = await env.step(calling(call("FAIL"), call("CLICK", "c2", x=1, y=1)))
    assert found.terminated
    assert computer.events == []
    with pytest.raises(EnvError, match="is over"):
        await env.step(assistant("WAIT"))


async def test_an_episode_is_cut_off_at_its_last_turn(computer: LocalComputer):
    env = boarded(task(), computer, OsworldConfig(max_steps=2, settle_seconds=0, wait_seconds=0))
    await env.reset()
    assert not (await env.step(assistant("WAIT"))).truncated
    assert (await env.step(assistant("nonsense"))).truncated


async def test_an_action_whose_answer_is_lost_is_not_repeated(computer: LocalComputer):
    env = boarded(task(), computer, QUICK)
    await env.reset()
    computer.fail("input")
    with pytest.raises(MachineError, match="did not answer"):
        await env.step(calling(call("TYPING", text="once")))
    assert computer.typed == "once"
    assert computer.calls["input"] == 1


class NarrowKeyboard(LocalComputer):
    """A computer that has no F24."""

    async def input(self, events: Sequence[Input]) -> None:
        if Key("f24") in events:
            raise MachineRefusal("there is no key f24", stage="machine.input")
        await super().input(events)


async def test_what_a_machine_cannot_do_is_the_models_mistake_and_the_episode_goes_on(tmp_path: Path):
    env = boarded(task(), NarrowKeyboard(tmp_path), QUICK)
    await env.reset()
    step = await env.step(calling(call("PRESS", key="f24")))
    assert "not carried out: there is no key f24" in step.observation[0].content
    assert not step.terminated
    score = await env.score()
    assert score.metrics["n_invalid"] == 1


async def test_a_look_that_fails_is_repeated(computer: LocalComputer):
    env = boarded(task(), computer, QUICK, clock=HastyClock())
    computer.fail("screenshot", times=2)
    _, opening = await env.reset()
    assert opening.images


async def test_what_is_shown_is_the_screen_at_rest(tmp_path: Path):
    moving = LocalComputer(tmp_path / "machine", n_frames=3)
    config = OsworldConfig(settle_seconds=20, settle_interval=0.001)
    env = boarded(task(), moving, config)
    await env.reset()
    found = await env.step(calling(call("CLICK", x=5, y=5)))
    assert found.observation[0].images[0].data == await moving.screenshot()
    assert moving.calls["screenshot"] == 2 + 5 + 1


async def test_the_tree_and_the_terminal_are_shown_when_asked_for(tmp_path: Path):
    def env(type: ObservationType, **config: Any) -> OsworldEnvironment:
        computer = LocalComputer(tmp_path / type)
        computer.tree, computer.terminal = "<desktop>" + "x" * 500, "old " * 100 + "$ ls\0"
        settings = OsworldConfig(observation_type=type, settle_seconds=0, **config)
        return boarded(task(), computer, settings)

    _, opening = await env(ObservationType.A11Y_TREE).reset()
    assert "<desktop>" in opening.content
    assert opening.images == ()
    _, opening = await env(ObservationType.SCREENSHOT_A11Y_TREE, max_text_chars=100).reset()
    assert opening.content.endswith("[409 characters after this are left out]")
    assert opening.images
    _, opening = await env(ObservationType.TERMINAL, max_text_chars=100).reset()
    assert opening.content.endswith("$ ls\\0")
    assert "characters before this are left out" in opening.content


async def test_a_machine_without_a_screen_shows_its_terminal_only(tmp_path: Path):
    computer = LocalComputer(tmp_path / "machine", (0, 0))
    with pytest.raises(EnvError, match="has no screen"):
        await boarded(task(), computer, QUICK).reset()
    config = OsworldConfig(observation_type=ObservationType.TERMINAL, settle_seconds=0)
    env = boarded(task(), computer, config)
    _, opening = await env.reset()
    assert "(nothing)" in opening.content
    found = await env.step(calling(call("PRESS", key="a")))
    assert "no screen, no mouse and no keyboard" in found.observation[0].content
    assert computer.calls["screenshot"] == 0


async def test_plain_code_becomes_input_and_is_never_run_on_this_host(computer: LocalComputer, tmp_path: Path):
    env = boarded(task(), computer, BY_CODE)
    await env.reset()
    await env.step(assistant("```python\nimport pyautogui\npyautogui.click(3, 4)\npyautogui.write('hi')\n```"))
    assert computer.events[0] == MoveTo(3, 4)
    assert computer.events[-1] == Text("hi")
    await env.step(calling(call("pyautogui", code="pyautogui.moveTo(9, 9)")))
    assert computer.pointer == (9, 9)
    computer.program("python3", "exit 1")
    trace = tmp_path / "trace"
    found = await env.step(assistant(f"```python\nopen({str(trace)!r}, 'w')\npyautogui.click()\n```"))
    assert "this machine has no Python with pyautogui" in found.observation[0].content
    assert not trace.exists()


async def test_more_than_plain_code_is_run_in_the_machine_that_can(computer: LocalComputer):
    has_pyautogui = 'case "$2" in "import pyautogui") exit 0;; esac'
    computer.program("python3", f'{has_pyautogui}\nprintf "%s\\n" "$2" > ~/program; echo said; exit 3')
    env = boarded(task(), computer, BY_CODE)
    await env.reset()
    code = "for x in range(3):\n    pyautogui.click(x, x)"
    found = await env.step(assistant(f"```python\n{code}\n```"))
    assert found.info["is_valid"] is True
    assert found.observation[0].content.startswith("the program ended with code 3:\nsaid")
    ran = (computer.folder / "program").read_text()
    assert ran.startswith("import pyautogui; import time; pyautogui.FAILSAFE = False\n")
    assert code in ran


async def test_programs_can_be_ruled_out(computer: LocalComputer):
    config = OsworldConfig(action_space=ActionSpace.PYAUTOGUI, run_programs=False, settle_seconds=0)
    env = boarded(task(), computer, config)
    await env.reset()
    found = await env.step(assistant("```python\nx = 1\npyautogui.click(x, x)\n```"))
    assert "line 1: Assign is not a plain call" in found.observation[0].content
    assert computer.calls["execute"] == 0
