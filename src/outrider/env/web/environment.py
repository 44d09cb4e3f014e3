"""A web task: a question, and a window on the web."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Protocol

from outrider.core.chat import user
from outrider.core.errors import EnvError, ToolRefusal
from outrider.core.task import Task
from outrider.core.tasks import uninterrupted
from outrider.env.protocol import Observation
from outrider.env.question import QuestionEnvironment
from outrider.env.scoring import Scorer
from outrider.env.web.actions import Actions
from outrider.env.web.browser import Browser
from outrider.env.web.gate import Gate
from outrider.env.web.process import BrowserLink, Place
from outrider.env.web.window import Window
from outrider.pool.source import Machine

INSTRUCTIONS = """\
You work in a web browser. Read the page first: its tree shows the elements, each with a ref such as [e12] that click, \
type and select take. Refs hold until the page changes. After each action you are told where you are and what is new. \
Only some hosts can be visited; dialogs are answered with OK, downloads are refused.
When the task is done, reply without calling a tool: with the answer alone, or with "done" if nothing was asked."""

_SLOT_SECONDS = 240.0


class _Places(Protocol):
    """Where an episode gets its place from."""

    async def acquire(self, proxy: str) -> Place[BrowserLink]: ...

    async def release(self, place: Place[Any]) -> None: ...


class WebEnvironment(QuestionEnvironment):
    """Holds a place in the browser, or in its machine's, from `reset` to `close`. `start` is the first page."""

    def __init__(
        self, task: Task, *, browser: Browser, gate: Gate, actions: Actions, scorer: Scorer, start: str | None
    ) -> None:
        super().__init__(task, instructions=INSTRUCTIONS, tools=actions.tools(), scorer=scorer)
        self._shared = browser
        self._browser: _Places = browser
        self._gate = gate
        self._actions = actions
        self._start = start
        self._held = AsyncExitStack()

    def board(self, machine: Machine) -> None:
        self._browser = self._shared.on(machine)

    async def reset(self, seed: int | None = None) -> Observation:
        instructions, question = await super().reset(seed)
        self._held.push_async_callback(self._gate.close)
        proxy = await uninterrupted(self._gate.open())
        try:
            async with asyncio.timeout(_SLOT_SECONDS):
                place = await self._browser.acquire(proxy)
        except TimeoutError as exc:
            raise EnvError(f"no place in the browser within {_SLOT_SECONDS:g} s; raise max_contexts") from exc
        self._held.push_async_callback(self._browser.release, place)
        window = Window(place, self._gate, seconds=self._actions.seconds)
        self._held.push_async_callback(window.close)
        self._actions.use(window, self._gate)
        if self._start is None:
            return (instructions, question)
        try:
            state = await window.goto(self._start)
        except ToolRefusal as exc:
            raise EnvError(f"the first page of the task cannot be opened: {exc}", stage="env.reset") from exc
        return (instructions, user(f"{question.content}\n\nThe browser has a page open:\n{state}"))

    async def close(self) -> None:
        await uninterrupted(self._held.aclose())
