"""An OSWorld task on a machine, from its setup to its score.

Invariants:
- A message's actions are read before the first is carried out: if one cannot be used, none is, and the model is told.
- An action is carried out at most once. If the machine does not say that it was, the episode fails; looks are repeated.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from outrider.core.animation import MEDIA_TYPE, Animation
from outrider.core.artifact import Artifact
from outrider.core.bounds import MAX_COUNT, Bytes, PositiveCount, Within, check_bounds
from outrider.core.chat import Message, ToolCall, ToolSpec, system, tool_result, user
from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.errors import EnvError, MachineRefusal, ToolRefusal
from outrider.core.secret import Secret
from outrider.core.task import Task
from outrider.env.osworld import computer_13, pyautogui
from outrider.env.osworld.action import Action, Special
from outrider.env.osworld.checking import check_tasks
from outrider.env.osworld.evaluator import evaluate
from outrider.env.osworld.files import LocalFiles
from outrider.env.osworld.observation import ObservationType, Observer, Sight
from outrider.env.osworld.setup import Setup
from outrider.env.osworld.task import osworld_task
from outrider.env.osworld.workspace import CLIENT_PASSWORD, Workspace
from outrider.env.protocol import Environment, Observation, Score, Step
from outrider.pool.computer import Computer
from outrider.pool.source import Machine

RECORDING = "recording.png"
_OUTPUT_CHARS = 2_000
_PROBE_SECONDS = 30.0

_RULES = "You use a computer to do a task. After each action you see how the computer stands then."
_BY_CALLS = "Act by calling a tool. A call is carried out at once; call DONE when the task is done."
_BY_TEXT = {
    "computer_13": "Answer with one action as JSON in a fenced block, such as\n"
    '```json\n{"action_type": "CLICK", "parameters": {"x": 10, "y": 20}}\n```\nor with WAIT, FAIL or DONE alone.',
    "pyautogui": "Answer with Python in a fenced block, such as\n```python\npyautogui.click(10, 20)\n```\n"
    "or with WAIT, FAIL or DONE alone.",
}


class ActionSpace(StrEnum):
    """The language in which the agent acts."""

    COMPUTER_13 = "computer_13"
    PYAUTOGUI = "pyautogui"


class OsworldConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """After an action the screen may take `settle_seconds` to come to rest; it is looked at each `settle_interval`.

    `use_tools`: actions are offered as tools; text is understood either way. `run_programs`: Python that is more than
    plain calls may be run in the machine, if that has pyautogui; false for machines that run no commands at all.
    `files` is the folder with what tasks download or upload; see `LocalFiles`.
    `recording`: the screens that are seen while it comes to rest are kept as an animated PNG.
    """

    action_space: ActionSpace = ActionSpace.COMPUTER_13
    observation_type: ObservationType = ObservationType.SCREENSHOT
    max_steps: PositiveCount = 100
    use_tools: bool = True
    run_programs: bool = True
    settle_seconds: Annotated[float, Within(0, 60)] = 2.0
    settle_interval: Annotated[float, Within(0, 10, above=True)] = 0.1
    wait_seconds: Annotated[float, Within(0, 60)] = 2.0
    execute_seconds: Annotated[float, Within(0, 600, above=True)] = 120.0
    max_text_chars: Annotated[int, Within(100, MAX_COUNT)] = 30_000
    files: str | None = None
    client_password: Secret = CLIENT_PASSWORD
    recording: bool = True
    max_recording_bytes: Bytes = 8 << 20

    def __post_init__(self) -> None:
        check_bounds(self)


class OsworldEnvironment(Environment):
    """One episode on the machine that it boards. Raises `InvalidInput` if the task cannot be run or scored here."""

    def __init__(
        self,
        task: Task,
        config: OsworldConfig | None = None,
        *,
        files: LocalFiles | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._files = files or LocalFiles()
        check_tasks((task,), self._files)
        self._config = config or OsworldConfig()
        self._task = task
        self._osworld = osworld_task(task)
        self._clock = clock or SystemClock()
        self._is_boarded = False
        self._has_begun = False
        self._is_over = False
        self._last: Special | None = None
        self._score: Score | None = None
        self._has_pyautogui: bool | None = None
        self._recording = Animation(self._config.max_recording_bytes if self._config.recording else 0)
        self._n_steps = 0
        self._n_actions = 0
        self._n_invalid = 0

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        if not self._config.use_tools:
            return ()
        return computer_13.tools() if self._is_computer_13 else pyautogui.tools()

    def board(self, machine: Machine) -> None:
        self._computer: Computer = machine.computer
        self._is_boarded = True
        self._workspace = Workspace(
            computer=self._computer,
            clock=self._clock,
            files=self._files,
            client_password=self._config.client_password,
            execute_seconds=self._config.execute_seconds,
        )
        self._observer = Observer(
            computer=self._computer,
            clock=self._clock,
            type=self._config.observation_type,
            interval_seconds=self._config.settle_interval,
            limit_seconds=self._config.settle_seconds,
            max_chars=self._config.max_text_chars,
            recording=self._recording,
        )

    async def reset(self, seed: int | None = None) -> Observation:  # noqa: ARG002 a task has no randomness
        if self._has_begun:
            raise EnvError("an episode is begun once; make another environment", stage="env.reset")
        if not self._is_boarded:
            raise EnvError("an episode needs a machine: call board before reset", stage="env.reset")
        self._has_begun = True
        self._observer.check()
        await Setup(self._workspace).run(self._osworld.config)
        sight = await self._observer.look()
        return (system(self._instructions()), user(_storable(f"{self._task.question}\n\n{sight.text}"), sight.images))

    async def step(self, action: Message) -> Step:
        if not self._has_begun or self._is_over:
            when = "is over" if self._is_over else "has not begun: call reset"
            raise EnvError(f"the episode {when}", stage="env.step")
        self._n_steps += 1
        calls = action.tool_calls
        if calls:
            actions, problems = await self._read_calls(calls)
        else:
            actions, problems = await self._read_text(action.content)
        notes = list(problems)
        is_valid = not any(problems)
        if is_valid:
            notes = [await self._carry_out(found) for found in actions]
        else:
            self._n_invalid += 1
            self._last = None
        terminated = self._last is not None and self._last.ends
        truncated = not terminated and self._n_steps >= self._config.max_steps
        self._is_over = terminated or truncated
        sight = Sight(text="The episode is over.") if terminated else await self._observer.look()
        info = {"is_valid": is_valid, "actions": [found.name for found in actions]}
        return Step(_observation(calls, notes, sight), 0.0, terminated, truncated, info)

    async def score(self) -> Score:
        if self._score is None:
            verdict = await evaluate(self._osworld.evaluator, self._workspace, self._last)
            self._score = Score(
                reward=verdict.value,
                output=None if self._last is None else str(self._last),
                metrics={
                    "success": float(verdict.value == 1.0),
                    "n_steps": float(self._n_steps),
                    "n_actions": float(self._n_actions),
                    "n_invalid": float(self._n_invalid),
                },
                explanation=_storable(verdict.reason),
            )
        return self._score

    def artifacts(self) -> tuple[Artifact, ...]:
        recorded = self._recording.png()
        return (Artifact(name=RECORDING, media_type=MEDIA_TYPE, data=recorded),) if recorded is not None else ()

    async def close(self) -> None: ...

    @property
    def _is_computer_13(self) -> bool:
        return self._config.action_space is ActionSpace.COMPUTER_13

    def _instructions(self) -> str:
        space = self._config.action_space
        described = (computer_13 if self._is_computer_13 else pyautogui).described(self._computer.screen_size)
        how = _BY_CALLS if self._config.use_tools else _BY_TEXT[space]
        return f"{_RULES} {how}\n\n{described}\n\nYou have {self._config.max_steps} turns."

    async def _read_calls(self, calls: Sequence[ToolCall]) -> tuple[list[Action], list[str]]:
        """The actions of all calls, and for each call what is wrong with it, if anything."""
        actions: list[Action] = []
        problems: list[str] = []
        for call in calls:
            try:
                actions.append(await self._read_call(call))
                problems.append("")
            except ToolRefusal as exc:
                problems.append(f"error: {exc}")
        if any(problems):
            unused = "not carried out, since another call of the message cannot be used"
            problems = [problem or unused for problem in problems]
        return actions, problems

    async def _read_call(self, call: ToolCall) -> Action:
        space = computer_13 if self._is_computer_13 else pyautogui
        return await self._possible(space.action_called(call, self._computer.screen_size))

    async def _read_text(self, text: str) -> tuple[list[Action], list[str]]:
        space = computer_13 if self._is_computer_13 else pyautogui
        try:
            found = space.actions_in(text, self._computer.screen_size)
            return [await self._possible(action) for action in found], []
        except ToolRefusal as exc:
            return [], [f"error: {exc}"]

    async def _possible(self, action: Action) -> Action:
        """The action, unless it is one that this machine cannot do: that is nobody's failure but the agent's."""
        if action.events and 0 in self._computer.screen_size:
            raise ToolRefusal("this machine has no screen, no mouse and no keyboard")
        if action.program is not None and not await self._runs_programs():
            raise ToolRefusal(
                f"{action.needs_python}. Only calls such as pyautogui.click(10, 20) with literal arguments can be "
                "carried out here, one after the other: this machine has no Python with pyautogui to run more"
            )
        return action

    async def _runs_programs(self) -> bool:
        """Whether the machine has a Python with pyautogui; asked once, and only when there is a need."""
        if not self._config.run_programs:
            return False
        if self._has_pyautogui is None:
            done = await self._workspace.execute("python3", "-c", "import pyautogui", timeout=_PROBE_SECONDS)
            self._has_pyautogui = done.returncode == 0
        return self._has_pyautogui

    async def _carry_out(self, action: Action) -> str:
        """Do it, and say what there is to say of it. After an action that ends the episode, nothing is done."""
        if self._last is not None and self._last.ends:
            return "not carried out: the episode was over"
        self._n_actions += 1
        self._last = action.special
        if action.special is Special.WAIT:
            await sleep(self._clock, self._config.wait_seconds)
        if action.events:
            try:
                await self._computer.input(action.events)
            except MachineRefusal as exc:  # such as a key that it does not have: the model's mistake, not the machine's
                self._n_invalid += 1
                return f"not carried out: {exc}"
        if action.program is None:
            return ""
        program = pyautogui.PRELUDE + action.program
        done = await self._workspace.execute("python3", "-c", program, timeout=self._config.execute_seconds)
        how = "ran out of time" if done.returncode is None else f"ended with code {done.returncode}"
        output = "\n".join(part.strip()[-_OUTPUT_CHARS:] for part in (done.stdout, done.stderr) if part.strip())
        return f"the program {how}" + (f":\n{output}" if output else "")


def _observation(calls: Sequence[ToolCall], notes: Sequence[str], sight: Sight) -> Observation:
    """What was seen, in the answer to the last call; each call before it gets its own note."""
    if not calls:
        text = "\n".join([*(note for note in notes if note), sight.text])
        return (user(_storable(text), sight.images),)
    answers = [tool_result(call, _storable(note or "done")) for call, note in zip(calls, notes, strict=True)]
    last = f"{notes[-1]}\n{sight.text}" if notes[-1] else sight.text
    return (*answers[:-1], tool_result(calls[-1], _storable(last), sight.images))


def _storable(text: str) -> str:
    """Halves of characters and NUL, which a machine or a model may come up with, cannot be stored."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")
