"""The baseline: all samples of a batch take each step together, one agent at a time, as designs with masks do.

A step begins when every sample that is not done waits for a call: all that wait for the same agent are let through at
once, and the next step begins when the last of them has come back and waits again, or is done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from outrider.orchestra.caller import Pacing, Planned

Spare = Callable[[Planned], Awaitable[None]]
"""Makes a call for nothing, with the prompt of another."""


class Lockstep(Pacing):
    """`agents` are asked in this order, over and over. `spare`: an agent that nobody needs is asked all the same."""

    def __init__(self, agents: Sequence[str], *, spare: Spare | None = None) -> None:
        self._agents = tuple(agents)
        self._spare = spare
        self._live: dict[str, int] = {}
        """Samples that are not done, and how many calls of each are under way."""
        self._waiting: dict[str, list[tuple[str, Planned, asyncio.Future[None]]]] = {name: [] for name in agents}
        self._turn = 0
        self._stepping: asyncio.Task[None] | None = None

    def begin(self, sample: str) -> None:
        """The sample takes part from now on."""
        self._live[sample] = 0

    def end(self, sample: str) -> None:
        """The sample is done."""
        del self._live[sample]
        self._look()

    async def enter(self, sample: str, planned: Planned) -> None:
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (sample, planned, passed)
        self._waiting[planned.agent.name].append(entry)
        self._look()
        try:
            await passed
        except asyncio.CancelledError:
            if entry in self._waiting[planned.agent.name]:
                self._waiting[planned.agent.name].remove(entry)
            else:
                self._live[sample] -= 1
            self._look()
            raise

    def left(self, sample: str) -> None:
        self._live[sample] -= 1
        self._look()

    def _look(self) -> None:
        """Begin the next step if everybody waits for it."""
        waiting = {sample for entries in self._waiting.values() for sample, _, _ in entries}
        if self._stepping is None and waiting and all(not n and sample in waiting for sample, n in self._live.items()):
            self._stepping = asyncio.ensure_future(self._step())

    async def _step(self) -> None:
        try:
            while not self._waiting[self._agents[self._turn]]:
                if self._spare is not None:
                    await self._spare(self._some())
                self._turn = (self._turn + 1) % len(self._agents)
            agent = self._agents[self._turn]
            entries, self._waiting[agent] = self._waiting[agent], []
            self._turn = (self._turn + 1) % len(self._agents)
            for sample, _, passed in entries:
                if not passed.done():
                    self._live[sample] += 1
                    passed.set_result(None)
        finally:
            self._stepping = None

    def _some(self) -> Planned:
        return next(planned for entries in self._waiting.values() for _, planned, _ in entries)
