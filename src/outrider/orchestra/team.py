"""A team at work on one sample: what its program calls.

Invariants:
- What a call is shown, its id, its seed and its place among the rows follow from the program alone, not from when other
  calls end. Whoever wants concurrency asks the team for it: `gather`, `first`, `quorum`, `parallel`.
- A call is recorded when it ends, and what became of it when the program has decided that: its verdict, and whether it
  was used. A call that was cancelled leaves no turn.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from outrider.agent.context import Context
from outrider.core.chat import Message, ToolCall, assistant
from outrider.core.errors import AgentError
from outrider.core.event import EventKind
from outrider.core.task import Task
from outrider.core.turn import CALL, CallRecord, to_data
from outrider.env import Step
from outrider.orchestra.agent import PROGRAM, Agent, hint
from outrider.orchestra.caller import Caller, Made, Planned, Reply
from outrider.orchestra.context import Entry, TeamContext
from outrider.orchestra.performance import Performance
from outrider.orchestra.profile import Span
from outrider.orchestra.state import State
from outrider.orchestra.verdict import Verdict

T = TypeVar("T")
Accept = Callable[[Reply], bool]
SHADOW = "~"
"""What the ids of such calls begin with: they have numbers of their own, so that those of others stay the same."""

AFTER_APPROVAL = "after approval"
"""The route of calls that are made although the sample is approved."""


class Team:
    """One sample and its agents, given to the team's program."""

    def __init__(
        self,
        ctx: Context,
        agents: Mapping[str, Agent],
        performance: Performance,
        caller: Caller,
        *,
        needs: Mapping[str, Sequence[str]],
        state: State | None = None,
        path: tuple[int, ...] = (),
    ) -> None:
        self.ctx = ctx
        self.agents = agents
        self._performance = performance
        self._caller = caller
        self._needs = needs
        self._state = state or State()
        self._path = path
        self._n_planned = 0
        self._n_shadow = 0
        self._numbers: Counter[str] = Counter()
        self.spans: list[Span] = []
        """What was done so far, as the clock saw it."""

    @property
    def task(self) -> Task:
        return self.ctx.task

    @property
    def approved(self) -> bool:
        return self._state.approved

    @property
    def context(self) -> TeamContext:
        """What was said so far."""
        return self._state.context

    @property
    def observations(self) -> Sequence[str]:
        """What the environment has said, after its opening."""
        return self._state.observations

    @property
    def last_step(self) -> Step:
        """What the environment answered last."""
        return self._state.last_step

    async def call(self, name: str, *, route: str = "", **values: str) -> Reply:
        """Ask an agent. `values` fill further places of its prompt; `route` is recorded as the reason for the call."""
        return self._kept(await self._caller.make(self._planned(name, route, values)))

    async def gather(self, *names: str, route: str = "") -> tuple[Reply, ...]:
        """Ask several at once; none sees what the others say. Their words join the context in the order given."""
        for name in names:
            if waits_for := [other for other in self._needs.get(name, ()) if other in names]:
                raise AgentError(f"agent {name!r} needs {waits_for[0]!r} to have spoken: they cannot be asked at once")
        planned = [self._planned(name, route, {}) for name in names]
        return tuple([self._kept(made) for made in await self._all([self._caller.make(each) for each in planned])])

    async def first(self, *names: str, accept: Accept, ordered: bool = True) -> Reply | None:
        """The first reply that is accepted; the calls that it makes needless are cancelled. None: none was.

        `ordered`: first by the order given, so that it is the same whoever is quicker; else by time.
        """
        found = await self.quorum(1, *names, accept=accept, ordered=ordered)
        return found[0] if found else None

    async def quorum(self, k: int, *names: str, accept: Accept, ordered: bool = True) -> tuple[Reply, ...]:
        """The first `k` replies that are accepted, or fewer if there are not so many; see `first`."""
        planned = [self._planned(name, "", {}) for name in names]
        if not self._performance.enable_parallel_agents:
            return await self._one_by_one(k, planned, accept)
        began_at = self.ctx.clock.time()
        tasks = {asyncio.ensure_future(self._caller.make(each)): each.record for each in planned}
        accepted: list[Reply] = []
        decided: set[asyncio.Task[Made]] = set()
        try:
            async for task in _in_order(list(tasks)) if ordered else _as_they_end(list(tasks)):
                decided.add(task)
                reply = self._kept(task.result())
                if accept(reply):
                    accepted.append(reply)
                if len(accepted) == k:
                    break
            return tuple(accepted)
        finally:
            await self._discarded({task: call for task, call in tasks.items() if task not in decided}, began_at)

    async def parallel(self, *programs: Callable[["Team"], Awaitable[T]]) -> tuple[T, ...]:
        """Run programs beside each other, each with a team of its own that begins from what this one knows.

        What their agents say joins this team's context afterwards, program by program.
        """
        branches = [self._branch() for _ in programs]

        async def run(program: Callable[["Team"], Awaitable[T]], branch: "Team") -> T:
            try:
                return await program(branch)
            finally:
                self.spans += branch.spans

        answers = await self._all([run(program, branch) for program, branch in zip(programs, branches, strict=True)])
        self._state.join([branch._state for branch in branches])  # noqa: SLF001 of its own kind
        return tuple(answers)

    def rounds(self, n: int) -> Iterator[int]:
        """So many rounds, fewer once `approve` has said yes."""
        before = self._state.round
        if not self._state.is_shadow:
            self._state.approved = False
        try:
            for number in range(n):
                self._state.round = number
                yield number
                if self._state.approved and self._performance.enable_early_termination:
                    return
                self._state.is_shadow = self._state.approved
        finally:
            self._state.round, self._state.is_shadow = before, False

    def approve(self, verdict: "Reply | Verdict | bool") -> bool:
        """Take a verdict; whether the sample is approved."""
        found = verdict.verdict if isinstance(verdict, Reply) else verdict
        if found is None:
            raise AgentError("approve was given a reply without a verdict: give its agent parse=VerdictRule()")
        if not self._state.is_shadow:
            self._state.approved = found if isinstance(found, bool) else found.approved
        return self._state.approved

    def note(self, text: str, *, visible_to: Sequence[str] | None = None) -> None:
        """Put words of the program itself into the context."""
        if not self._state.is_shadow:
            seen_by = None if visible_to is None else frozenset(visible_to)
            self.context.append(self._entry(PROGRAM, text, "", seen_by))

    async def act(self, action: str | Message | Reply) -> Step:
        """Do this to the environment: a text, or a message with tool calls."""
        if self._state.is_shadow:
            return self._state.last_step
        if isinstance(action, Reply):
            action = action.message
        began_at = self.ctx.clock.time()
        step = await self.ctx.env.step(assistant(action) if isinstance(action, str) else action)
        self.spans.append(Span(agent="", call_id="", began_at=began_at, ended_at=self.ctx.clock.time()))
        self._state.last_step = step
        self._state.observations.extend(message.content for message in step.observation)
        return step

    async def use(self, tool: str, **arguments: Any) -> str:
        """Call a tool of the environment; what it answers."""
        call = ToolCall(id=f"call-{len(self.observations)}", name=tool, arguments=json.dumps(arguments))
        step = await self.act(assistant("", (call,)))
        return "\n".join(message.content for message in step.observation)

    def _branch(self) -> "Team":
        return Team(
            self.ctx,
            self.agents,
            self._performance,
            self._caller,
            needs=self._needs,
            state=self._state.branch(),
            path=(*self._path, self._next()),
        )

    def _next(self) -> int:
        """The next place in the program; what goes on in the shadow takes none of those."""
        if self._state.is_shadow:
            self._n_shadow -= 1
            return self._n_shadow
        self._n_planned += 1
        return self._n_planned

    async def _all(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """All results in order. If some fail, the failure of the first in order is raised, when all have ended."""
        if not self._performance.enable_parallel_agents:
            return [await each for each in _closing(work)]
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            await asyncio.wait(tasks)
            return [task.result() for task in tasks]
        finally:
            await _ended(tasks)

    async def _one_by_one(self, k: int, planned: Sequence[Planned], accept: Accept) -> tuple[Reply, ...]:
        accepted: list[Reply] = []
        for each in planned:
            reply = self._kept(await self._caller.make(each))
            if accept(reply):
                accepted.append(reply)
            if len(accepted) == k:
                break
        return tuple(accepted)

    def _planned(self, name: str, route: str, values: Mapping[str, str]) -> Planned:
        agent = self.agents.get(name)
        if agent is None:
            raise AgentError(f"the team has no agent {name!r}; {hint(name, self.agents)}", stage="team.call")
        stem = f"{SHADOW if self._state.is_shadow else ''}{name}.{self._state.round}"
        number = self._numbers[stem]
        self._numbers[stem] += 1
        branch = "".join(f"{place}/" for place in self._path)
        record = CallRecord(
            id=f"{branch}{stem}.{number}",
            agent=name,
            order=(*self._path, self._next()),
            round=self._state.round,
            policy=agent.policy,
            route=AFTER_APPROVAL if self._state.is_shadow else route,
        )
        known = {
            "question": self.task.question,
            "opening": "\n\n".join(message.content for message in self.ctx.opening),
            "observation": "\n\n".join(self.observations),
            "round": str(self._state.round + 1),
            "step": str(len(self.observations) + 1),
        }
        return self._caller.plan(agent, record, self.context, {**known, **values})

    def _kept(self, made: Made) -> Reply:
        """The reply, part of the sample from now on; what is said after approval changes nothing."""
        self._tell(made, used=not self._state.is_shadow)
        if self._state.is_shadow:
            return self._state.replies.get(made.reply.agent, made.reply)
        self.context.append(self._entry(made.reply.agent, made.reply.text, made.reply.id, None))
        self._state.replies[made.reply.agent] = made.reply
        return made.reply

    def _entry(self, author: str, text: str, call_id: str, visible_to: frozenset[str] | None) -> Entry:
        return Entry(
            author=author,
            round=self._state.round,
            text=text,
            n_tokens=self._caller.count(text),
            call_id=call_id,
            visible_to=visible_to,
        )

    async def _discarded(self, calls: Mapping["asyncio.Task[Made]", CallRecord], began_at: float) -> None:
        await _ended(list(calls))
        for task, call in calls.items():
            if not task.cancelled() and task.exception() is None:
                self._tell(task.result(), used=False)
                continue
            now = self.ctx.clock.time()
            cut_off = Span(agent=call.agent, call_id=call.id, began_at=began_at, ended_at=now, used=False)
            self.spans.append(replace(cut_off, model_seconds=now - began_at))

    def _tell(self, made: Made, *, used: bool) -> None:
        outcome = replace(made.outcome, used=used)
        self.ctx.record(EventKind.LOG, CALL, to_data(outcome))
        self.spans.append(
            Span(
                agent=made.reply.agent,
                call_id=outcome.id,
                began_at=made.began_at,
                ended_at=made.began_at + outcome.queue_seconds + outcome.model_seconds + outcome.parse_seconds,
                queue_seconds=outcome.queue_seconds,
                model_seconds=outcome.model_seconds,
                parse_seconds=outcome.parse_seconds,
                completion_tokens=outcome.completion_tokens,
                used=used,
            )
        )


async def _ended(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _closing(work: Sequence[Coroutine[Any, Any, T]]) -> Iterator[Coroutine[Any, Any, T]]:
    """One after the other; those that are not come to are closed."""
    try:
        yield from work
    finally:
        for each in work:
            each.close()


async def _in_order(tasks: Sequence["asyncio.Task[T]"]) -> AsyncIterator["asyncio.Task[T]"]:
    for task in tasks:
        await asyncio.wait([task])
        yield task


async def _as_they_end(tasks: Sequence["asyncio.Task[T]"]) -> AsyncIterator["asyncio.Task[T]"]:
    left = set(tasks)
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=tasks.index):
            yield task
