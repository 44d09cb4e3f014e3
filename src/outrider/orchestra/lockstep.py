"""The baseline: all samples of a batch take each step together, one agent after the other, as designs with masks do.

A step begins when every sample that is not done waits for a call: all that wait for the same agent are let through at
once. The next step begins when the last of them waits again or is done. A sample that asks several agents at once waits
for the next of them already: they are let through at once too.

Invariants:
- The one task that takes the steps is owned by the block `async with lockstep`. If it fails, every call that waits, and
  every later one, fails with its error.
- Nothing waits for a sample that has ended, and nothing of it waits.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from outrider.core.errors import AgentError, AttemptError, PolicyError, boundary
from outrider.orchestra.caller import Pacing, Planned
from outrider.orchestra.deadline import Deadline
from outrider.orchestra.owned import ended

Spare = Callable[[str, Planned], Awaitable[None]]
"""Asks the agent of that name for nothing, with the prompt of another."""

_log = logging.getLogger("outrider.orchestra")


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    sample: str
    planned: Planned
    passed: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Lockstep(Pacing):
    """`agents` are asked in this order, over and over. `spare`: an agent that nobody needs is asked all the same.

    What a spare call comes to is nobody's concern: one that fails, or takes `spare_seconds`, is let go.
    """

    def __init__(self, agents: Sequence[str], *, spare: Spare | None = None, spare_seconds: float = math.inf) -> None:
        self._agents = tuple(agents)
        self._spare = spare
        self._spare_seconds = None if spare_seconds == math.inf else spare_seconds
        self._live: set[str] = set()
        self._waiting: dict[str, list[_Waiting]] = {name: [] for name in agents}
        self._turn = 0
        self._changed = asyncio.Event()
        self._steps: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._steps = asyncio.ensure_future(self._take_steps())
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._steps is not None
        await ended([self._steps])

    def begin(self, sample: str) -> None:
        """The sample takes part from now on."""
        self._live.add(sample)

    def end(self, sample: str) -> None:
        """The sample is done."""
        self._live.remove(sample)
        self._fail(AgentError("the sample has ended", stage="team.call"), of=sample)
        self._changed.set()

    async def enter(self, sample: str, planned: Planned) -> None:
        if self._broken is not None or sample not in self._live:
            raise self._refusal()
        entry = _Waiting(sample, planned)
        self._waiting[planned.agent.name].append(entry)
        self._changed.set()
        try:
            with Deadline.current().held_up():
                await entry.passed
        finally:
            if entry in self._waiting[planned.agent.name]:
                self._waiting[planned.agent.name].remove(entry)

    async def _take_steps(self) -> None:
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._everybody_waits():
                    await self._step()
        except BaseException as exc:
            self._broken = exc
            self._fail(self._refusal())
            raise

    def _everybody_waits(self) -> bool:
        waiting = {entry.sample for entries in self._waiting.values() for entry in entries}
        return bool(waiting) and self._live <= waiting

    async def _step(self) -> None:
        """Let the next agent's calls through. Whoever waits may go away while a spare call is made."""
        while waiting := [entry for entries in self._waiting.values() for entry in entries]:
            agent = self._agents[self._turn]
            self._turn = (self._turn + 1) % len(self._agents)
            if entries := self._waiting[agent]:
                self._waiting[agent] = []
                for entry in entries:
                    if not entry.passed.done():
                        entry.passed.set_result(None)
                self._changed.set()
                return
            if self._spare is not None:
                await self._ask_for_nothing(self._spare, agent, waiting[0].planned)

    async def _ask_for_nothing(self, spare: Spare, agent: str, planned: Planned) -> None:
        try:
            with boundary(PolicyError, "lockstep"):
                async with asyncio.timeout(self._spare_seconds):
                    await spare(agent, planned)
        except AttemptError as exc:
            _log.info("a spare call of %s failed, which changes nothing: %s", agent, exc)

    def _fail(self, error: AttemptError, *, of: str | None = None) -> None:
        """End the calls that wait, of one sample or of all."""
        for entries in self._waiting.values():
            for entry in [entry for entry in entries if of is None or entry.sample == of]:
                entries.remove(entry)
                if not entry.passed.done():
                    entry.passed.set_exception(error)

    def _refusal(self) -> AgentError:
        if self._broken is None:
            return AgentError("the sample has ended", stage="team.call")
        error = AgentError(f"the batch's lockstep failed: {self._broken!r}", stage="team.call")
        error.__cause__ = self._broken
        return error
