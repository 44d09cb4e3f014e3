"""OSWorld episodes on a stand-in machine whose commands and files are real: setup, actions, observations, scores."""

import asyncio
import json
import shutil
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from leaks import no_leaks
from local_computer import LocalComputer
from outrider.core.chat import Message, Role, ToolCall, assistant
from outrider.core.errors import EnvError, InvalidInput, MachineError, MachineRefusal
from outrider.core.task import Task
from outrider.env.osworld import (
    ActionSpace,
    LocalFiles,
    ObservationType,
    OsworldConfig,
    OsworldEnvironment,
    load_tasks,
    task_of,
)
from outrider.env.protocol import Score
from outrider.pool.computer import Computer, Input, Key, MoveTo, Text
from outrider.pool.providers.desktop import DesktopProvider
from outrider.testing import check_environment, eventually

QUICK = OsworldConfig(settle_seconds=0.05, settle_interval=0.01, wait_seconds=0.0)
BY_CODE = OsworldConfig(action_space=ActionSpace.PYAUTOGUI, settle_seconds=0, wait_seconds=0)
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


class HastyClock:
    """Time that jumps to whatever is waited for."""

    def __init__(self) -> None:
        self._now = 0.0

    def time(self) -> float:
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


async def test_setup_steps_do_what_they_say(computer: LocalComputer, tmp_path: Path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("from the web")
    (tmp_path / "files" / "b.txt").write_text("from here")
    files = LocalFiles(folder=tmp_path / "files", addresses={"https://example.com/a": tmp_path / "files" / "a.txt"})
    for name in ("xdg-open", "chromium", "gsettings", "wmctrl"):
        computer.program(name, f'echo {name} "$@" >> ~/ran')
    steps = [
        step("download", files=[{"url": "https://example.com/a", "path": "~/Desktop/a.txt"}]),
        step("upload_file", files=[{"local_path": "b.txt", "path": "~/b.txt"}]),
        step("launch", command="editor {SCREEN_WIDTH} ~/b.txt"),
        step("launch", command="editor &", shell=True),
        step("execute", command=["touch", "~/made"]),
        step("command", command="echo {CLIENT_PASSWORD} > ~/password", shell=True),
        step("execute", command="echo x >> ~/tries; wc -l < ~/tries", shell=True, until={"stdout": "3"}),
        step("open", path="~/Desktop/a.txt"),
        step("sleep", seconds=0.01),
        step("activate_window", window_name="Editor", strict=True),
        step("close_window", window_name="editor.Editor", by_class=True),
        step("change_wallpaper", path="~/b.txt"),
        step("chrome_open_tabs", urls_to_open=["https://example.com", "about:blank"]),
    ]
    await boarded(task(*steps), computer, QUICK, files=files).reset()
    home = computer.folder
    assert (home / "Desktop" / "a.txt").read_text() == "from the web"
    assert (home / "b.txt").read_text() == "from here"
    assert (home / "made").exists()
    assert (home / "password").read_text() == "password\n"
    assert (home / "tries").read_text() == "x\n" * 3
    assert computer.launched == [
        ["editor", "64", f"{home}/b.txt"],
        "editor &",
        ["xdg-open", f"{home}/Desktop/a.txt"],
        ["chromium", "https://example.com", "about:blank"],
    ]
    assert (home / "ran").read_text().splitlines() == [
        "wmctrl -Fa Editor",
        "wmctrl -xc editor.Editor",
        f"gsettings set org.gnome.desktop.background picture-uri file://{home}/b.txt",
    ]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (step("execute", command=["sh", "-c", "echo why >&2; exit 4"]), r"step 2 \(execute\).*ended with code 4: why"),
        (step("execute", command="echo 'a"), "cannot be split into words"),
        (step("open", path="~/missing"), "no file '~/missing'"),
        (step("execute", command="false", until={"returncode": 0}), "not as it should be"),
        (step("activate_window", window_name="Editor"), "no window 'Editor'"),
        (step("change_wallpaper", path="~/made"), "no gsettings or feh or hsetroot"),
        (step("chrome_open_tabs", urls_to_open=["a"]), "no google-chrome or .* or chromium-browser"),
    ],
)
async def test_a_setup_that_fails_ends_the_episode_before_the_agent_begins(
    computer: LocalComputer, monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any], message: str
):
    computer.program("wmctrl", "exit 1")
    monkeypatch.setenv("PATH", str(_only_tools(computer.folder.parent / "tools")))
    config = (shell("touch ~/made"), broken, shell("touch ~/after"))
    env = boarded(task(*config), computer, QUICK, clock=HastyClock())
    with pytest.raises(EnvError, match=message) as raised:
        await env.reset()
    assert raised.value.boundary.is_infrastructure
    assert not (computer.folder / "after").exists()


def _only_tools(folder: Path) -> Path:
    """A PATH with the plain tools alone, whatever this host has besides."""
    folder.mkdir()
    for name in ("sh", "touch", "test", "false", "cat"):
        (folder / name).symlink_to(shutil.which(name) or "")
    return folder


async def test_a_command_that_runs_out_of_time_is_stopped_and_told(computer: LocalComputer):
    config = OsworldConfig(execute_seconds=0.05)
    env = boarded(task(step("execute", command=["sleep", "60"])), computer, config)
    with pytest.raises(EnvError, match="ran out of time"):
        await env.reset()


def file(path: str, type: str = "vm_file") -> dict[str, Any]:
    return {"type": type, "path": path, "dest": path.rpartition("/")[2]}


def rules(value: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": value}


@pytest.mark.parametrize(
    ("result", "expected", "reward"),
    [
        ({"type": "vm_command_line", "command": "printf '%s' $((6*7))", "shell": True}, "42", 1),
        ({"type": "vm_command_line", "command": "echo 'a  b'"}, "a  b\n", 1),
        ({"type": "vm_command_error", "command": "echo no >&2; exit 3", "shell": True}, "no\n", 1),
        ({"type": "vm_command_line", "command": ["no-such-program"]}, "", 1),
        ({"type": "vm_screen_size"}, {"width": 64, "height": 48}, 1),
        ({"type": "vm_window_size", "app_class_name": "XTerm"}, {"width": 400, "height": 300}, 1),
        ({"type": "vm_window_size", "app_class_name": "gedit"}, None, 1),
        ({"type": "vm_terminal_output"}, "$ ls", 1),
        ({"type": "accessibility_tree"}, "<desktop-frame/>", 1),
        ({"type": "list_directory", "path": "~/nowhere"}, None, 1),
        (
            {"type": "list_directory", "path": "~/tree"},
            {
                "type": "directory",
                "name": "tree",
                "children": [
                    {"type": "file", "name": "a b"},
                    {"type": "directory", "name": "c", "children": [{"type": "file", "name": "d\n"}]},
                ],
            },
            1,
        ),
    ],
)
async def test_getters_look_at_the_machine(computer: LocalComputer, result: Any, expected: Any, reward: float):
    computer.terminal = "$ ls"
    computer.program("wmctrl", "echo '0x01 0 10 20 400 300 xterm.XTerm host a title'")
    (computer.folder / "tree" / "c").mkdir(parents=True)
    (computer.folder / "tree" / "a b").touch()
    (computer.folder / "tree" / "c" / "d\n").touch()
    evaluator = {"func": "exact_match", "result": result, "expected": rules({"expected": expected})}
    score = await scored(computer, evaluator)
    assert score.reward == reward, score.explanation


async def test_files_of_the_machine_are_compared_with_those_of_the_task(computer: LocalComputer, tmp_path: Path):
    (tmp_path / "gold.txt").write_text("a\nb\n")
    files = LocalFiles(addresses={"https://example.com/gold.txt": tmp_path / "gold.txt"})
    gold = file("https://example.com/gold.txt", "cloud_file")
    evaluator = {"func": "compare_text_file", "result": file("~/made.txt"), "expected": gold}
    assert (await scored(computer, evaluator, files=files)).reward == 0
    assert (await scored(computer, evaluator, shell("printf 'a\\nb\\n' > ~/made.txt"), files=files)).reward == 1
    (computer.folder / "made.txt").unlink()
    (computer.folder / "made.txt").mkdir()
    assert (await scored(computer, evaluator, files=files)).reward == 0
    (computer.folder / "made.txt").rmdir()
    (computer.folder / "made.txt").write_text("a\nb\n")
    several = {
        "func": "compare_csv",
        "result": {"type": "vm_file", "path": ["~/no", "~/made.txt"], "dest": ["n", "m"], "multi": True, "gives": [1]},
        "expected": gold,
    }
    assert (await scored(computer, several, files=files)).reward == 1


async def test_what_a_setup_step_printed_is_in_the_cache(computer: LocalComputer):
    evaluator = {
        "func": "file_contains",
        "postconfig": [step("execute", command=["echo", "printed"], stdout="out.txt")],
        "result": {"type": "cache_file", "path": "out.txt"},
        "expected": rules({"expected": ["printed"]}),
    }
    assert (await scored(computer, evaluator)).reward == 1


async def test_after_the_agent_a_command_may_fail(computer: LocalComputer):
    evaluator = {**PRINTED, "postconfig": [step("execute", command=["false"]), shell("echo 42 > ~/answer")]}
    assert (await scored(computer, evaluator)).reward == 1


def printed(text: str, expected: str, func: str = "exact_match") -> tuple[str, Any, Any]:
    return func, {"type": "vm_command_line", "command": ["printf", text]}, rules({"expected": expected})


@pytest.mark.parametrize(
    ("conj", "checks", "reward"),
    [
        ("and", [printed("a", "a"), printed("abcd", "abxd", "fuzzy_match")], 0.875),
        ("and", [printed("a", "a"), printed("a", "b")], 0),
        ("or", [printed("a", "b"), printed("abcd", "abxd", "fuzzy_match")], 0.75),
        ("or", [printed("a", "b"), printed("a", "a")], 1),
        ("or", [printed("a", "b"), printed("a", "c")], 0),
    ],
)
async def test_and_is_the_mean_unless_one_is_nothing_and_or_is_the_best(
    computer: LocalComputer, conj: str, checks: list[tuple[str, Any, Any]], reward: float
):
    funcs, results, expected = (list(column) for column in zip(*checks, strict=True))
    evaluator = {"func": funcs, "conj": conj, "result": results, "expected": expected}
    assert (await scored(computer, evaluator)).reward == pytest.approx(reward)


@pytest.mark.parametrize(
    ("evaluator", "word", "reward"),
    [
        ({"func": "infeasible"}, "FAIL", 1),
        ({"func": "infeasible"}, "DONE", 0),
        (PRINTED, "FAIL", 0),
        (PRINTED, "DONE", 1),
    ],
)
async def test_giving_up_is_right_where_the_task_cannot_be_done(
    computer: LocalComputer, evaluator: dict[str, Any], word: str, reward: float
):
    env = boarded(task(shell("echo 42 > ~/answer"), evaluator=evaluator), computer, QUICK)
    await env.reset()
    assert (await env.step(assistant(f"```\n{word}\n```"))).terminated
    assert (await env.score()).reward == reward


async def test_a_machine_that_is_lost_while_scoring_gives_no_score(computer: LocalComputer):
    env = OsworldEnvironment(
        task(evaluator={**PRINTED, "result": {"type": "vm_terminal_output"}}), computer, QUICK, clock=HastyClock()
    )
    await env.reset()
    computer.fail("terminal_text", times=100)
    with pytest.raises(MachineError):
        await env.score()


async def test_a_task_that_cannot_be_scored_makes_no_environment(computer: LocalComputer):
    with pytest.raises(InvalidInput, match="unknown metric 'compare_docx_files': task t1"):
        boarded(task(evaluator={**PRINTED, "func": "compare_docx_files"}), computer)


def test_tasks_are_loaded_from_a_folder_of_files(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text(
            json.dumps({"id": name, "instruction": "Do.", "config": [], "evaluator": PRINTED})
        )
    assert [found.task_id for found in load_tasks(tmp_path)] == ["a", "b"]
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"c\.json is not JSON"):
        load_tasks(tmp_path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_tasks(tmp_path / "none.json")
