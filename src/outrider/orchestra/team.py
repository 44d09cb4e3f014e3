"""A team at work on one sample: what its program calls.

Invariants:
- What a call is shown, its id, its seed and its place among the rows follow from the program alone, not from when other
  calls end. Whoever wants concurrency asks the team for it: `gather`, `first`, `quorum`, `parallel`.
- Failures too: of several calls or branches the first failure by order counts. What was said before it is kept, what
  comes after it is cut off and thrown away, whether they ran at once or one after the other.
- A call is recorded when it ends, and what became of it when the program has decided that: its verdict, and whether it
  was used. A call that was cancelled leaves no turn.
- Every task belongs to the call that started it, and has ended when that returns or raises.
- Calls for nothing are made between what the program does, never by it: they cannot change what it comes to.
"""

import asyncio
import json
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from outrider.agent.context import Context
from outrider.core.chat import Message, ToolCall, assistant
from outrider.core.errors import AgentError, AttemptError
from outrider.core.event import EventKind
from outrider.core.task import Task
from outrider.core.turn import CALL, CallOutcome, CallRecord, to_data
from outrider.env import Step
from outrider.orchestra.agent import PROGRAM, Agent, hint
from outrider.orchestra.caller import Caller, Made, Planned, Reply, Source
from outrider.orchestra.context import Entry, TeamContext
from outrider.orchestra.deadline import Deadline
from outrider.orchestra.owned import Tasks, failed
from outrider.orchestra.performance import Performance
from outrider.orchestra.profile import Span
from outrider.orchestra.state import State
from outrider.orchestra.verdict import Verdict

T = TypeVar("T")
Accept = Callable[[Reply], bool]
FOR_NOTHING = "~"
"""What the ids of such calls begin with: they have numbers of their own, so that those of others stay the same."""

AFTER_APPROVAL = "after approval"
"""The route of calls that are made although the sample is approved."""

_log = logging.getLogger("outrider.orchestra")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the program asked of an agent, to be asked again."""

    name: str
    values: Mapping[str, str] = field(default_factory=dict)


Steps = list["Asked | tuple[Steps, ...]"]
"""What a program did, one after the other; what stands in a tuple was done at once."""


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
        self._n_for_nothing = 0
        self._n_open = 0
        """Rounds within rounds that the program is in."""
        self._numbers: Counter[str] = Counter()
        self._done: Steps = []
        """What was asked in the rounds that are open, where it may have to be asked again."""
        self._owed: list[tuple[int, Steps]] = []
        """Rounds that an approved sample is still to be asked for nothing."""
        self._outcomes: list[CallOutcome] = []
        """What became of calls, in a branch: it is recorded when it is known whether the branch counts."""
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
        await self.settle()
        reply = self._kept(await self._caller.make(self._planned(name, route, values)))
        self._did(Asked(name, values))
        return reply

    async def gather(self, *names: str, route: str = "") -> tuple[Reply, ...]:
        """Ask several at once; none sees what the others say. Their words join the context in the order given.

        If some fail, the first failure by order is raised; the words of those named before it have joined the context.
        """
        for name in names:
            if waits_for := [other for other in self._needs.get(name, ()) if other in names]:
                raise AgentError(f"agent {name!r} needs {waits_for[0]!r} to have spoken: they cannot be asked at once")
        await self.settle()
        async with self._asking([self._planned(name, route, {}) for name in names], needs_all=True) as calls:
            replies = [self._kept(task.result()) async for task in calls]
        self._did(tuple([Asked(name)] for name in names))
        return tuple(replies)

    async def first(self, *names: str, accept: Accept, ordered: bool = True) -> Reply | None:
        """The first reply that is accepted; the calls that it makes needless are cancelled. None: none was.

        `ordered`: first by the order given, so that it is the same whoever is quicker; else by time. A call that fails
        is passed over; if all fail, their error is raised.
        """
        found = await self.quorum(1, *names, accept=accept, ordered=ordered)
        return found[0] if found else None

    async def quorum(self, k: int, *names: str, accept: Accept, ordered: bool = True) -> tuple[Reply, ...]:
        """The first `k` replies that are accepted, or fewer if there are not so many; see `first`."""
        if k < 1:
            raise AgentError(f"a quorum of {k} was asked for; give 1 or more", stage="team.quorum")
        await self.settle()
        accepted: list[Reply] = []
        failures: list[AttemptError] = []
        replied: list[Reply] = []
        async with self._asking([self._planned(name, "", {}) for name in names], ordered=ordered) as calls:
            async for task in calls:
                try:
                    made = task.result()
                except AttemptError as exc:
                    if exc.stops_run:
                        raise
                    failures.append(exc)
                    continue
                replied.append(self._kept(made))
                if accept(replied[-1]):
                    accepted.append(replied[-1])
                if len(accepted) == k:
                    break
        if failures and not replied:
            raise _all_failed(failures)
        self._did(tuple([Asked(reply.agent)] for reply in replied))
        return tuple(accepted)

    async def parallel(self, *programs: Callable[["Team"], Awaitable[T]]) -> tuple[T, ...]:
        """Run programs beside each other, each with a team of its own that begins from what this one knows.

        What their agents say joins this team's context afterwards, program by program. If some fail, the first failure
        by order is raised; what was said up to it, program by program, has joined the context.
        """
        await self.settle()
        branches = [self._branch() for _ in programs]

        async def run(program: Callable[["Team"], Awaitable[T]], branch: "Team") -> T:
            answer = await program(branch)
            await branch.settle()
            return answer

        answers: list[T] = []
        n_counting = 0
        work = [partial(run, program, branch) for program, branch in zip(programs, branches, strict=True)]
        try:
            async with Tasks(work, at_once=self._performance.enable_parallel_agents, needs_all=True) as tasks:
                async for task in tasks:
                    n_counting += 1
                    answers.append(task.result())
        finally:
            for place, branch in enumerate(branches):
                self._join(branch, counts=place < n_counting)
            self._state.join([branch._state for branch in branches[:n_counting]])  # noqa: SLF001 of its own kind
        self._did(tuple(branch._done for branch in branches))  # noqa: SLF001 of its own kind
        return tuple(answers)

    def rounds(self, n: int) -> Iterator[int]:
        """So many rounds, fewer once `approve` has said yes."""
        before = self._state.round
        n_done, self._n_open = len(self._done), self._n_open + 1
        self._state.approved = False
        try:
            for number in range(n):
                self._state.round = number
                n_before = len(self._done)
                yield number
                if self._state.approved:
                    again = self._done[n_before:]
                    self._owed += [(left, again) for left in range(number + 1, n) if again]
                    return
        finally:
            self._state.round = before
            self._n_open -= 1
            if not self._n_open and not self._path:
                del self._done[n_done:]

    def approve(self, verdict: "Reply | Verdict | bool") -> bool:
        """Take a verdict; whether the sample is approved."""
        found = verdict.verdict if isinstance(verdict, Reply) else verdict
        if found is None:
            raise AgentError("approve was given a reply without a verdict: give its agent parse=VerdictRule()")
        self._state.approved = found if isinstance(found, bool) else found.approved
        return self._state.approved

    def note(self, text: str, *, visible_to: Sequence[str] | None = None) -> None:
        """Put words of the program itself into the context."""
        seen_by = None if visible_to is None else frozenset(visible_to)
        self.context.append(self._entry(PROGRAM, text, "", seen_by))

    async def act(self, action: str | Message | Reply) -> Step:
        """Do this to the environment: a text, or a message with tool calls."""
        await self.settle()
        if isinstance(action, Reply):
            action = action.message
        began_at = self.ctx.clock.monotonic()
        step = await self.ctx.env.step(assistant(action) if isinstance(action, str) else action)
        self.spans.append(Span(agent="", call_id="", began_at=began_at, ended_at=self.ctx.clock.monotonic()))
        self._state.last_step = step
        self._state.observations.extend(message.content for message in step.observation)
        return step

    async def use(self, tool: str, **arguments: Any) -> str:
        """Call a tool of the environment; what it answers."""
        call = ToolCall(id=f"call-{len(self.observations)}", name=tool, arguments=json.dumps(arguments))
        step = await self.act(assistant("", (call,)))
        return "\n".join(message.content for message in step.observation)

    async def settle(self) -> None:
        """Make the calls that an approved sample owes, where it is not to end early. What they come to is thrown away.

        They do not count against the sample's deadline, and have together as long themselves.
        """
        owed, self._owed = self._owed, []
        if not owed:
            return
        deadline = Deadline.current()
        try:
            with deadline.held_up():
                async with asyncio.timeout(None if deadline.seconds == math.inf else deadline.seconds):
                    for number, steps in owed:
                        await self._again(number, steps)
        except TimeoutError:
            _log.info("calls after approval took longer than %g s and were cut off", deadline.seconds)

    async def _again(self, number: int, steps: Steps) -> None:
        for step in steps:
            if isinstance(step, Asked):
                await self._waste(number, step)
                continue
            work = [partial(self._again, number, each) for each in step]
            async with Tasks(work, at_once=self._performance.enable_parallel_agents) as tasks:
                async for task in tasks:
                    task.result()

    async def _waste(self, number: int, asked: Asked) -> None:
        try:
            planned = self._planned(asked.name, AFTER_APPROVAL, asked.values, for_nothing=number)
            self._tell(await self._caller.make(planned), used=False)
        except AttemptError as exc:
            _log.info("a call of %s after approval failed, which changes nothing: %s", asked.name, exc)

    def _did(self, step: "Asked | tuple[Steps, ...]") -> None:
        """Remember it if it may have to be done again."""
        if not self._performance.enable_early_termination and (self._n_open or self._path):
            self._done.append(step)

    def _branch(self) -> "Team":
        self._n_planned += 1
        return Team(
            self.ctx,
            self.agents,
            self._performance,
            self._caller,
            needs=self._needs,
            state=self._state.branch(),
            path=(*self._path, self._n_planned),
        )

    def _join(self, branch: "Team", *, counts: bool) -> None:
        """Take over what was done in a branch; nothing of it is used if it does not count."""
        for outcome in branch._outcomes:  # noqa: SLF001 of its own kind
            self._record(replace(outcome, used=outcome.used and counts))
        self.spans += [replace(span, used=span.used and (counts or not span.agent)) for span in branch.spans]

    @asynccontextmanager
    async def _asking(
        self, planned: Sequence[Planned], *, ordered: bool = True, needs_all: bool = False
    ) -> AsyncIterator[Tasks[Made]]:
        """Make the calls. Those that the block has not looked at are told of as wasted."""
        began_at = self.ctx.clock.monotonic()
        at_once = self._performance.enable_parallel_agents
        work = [partial(self._caller.make, each) for each in planned]
        calls = Tasks(work, at_once=at_once, ordered=ordered, needs_all=needs_all)
        try:
            async with calls:
                yield calls
        finally:
            self._discard(calls.left, planned, began_at)

    def _planned(self, name: str, route: str, values: Mapping[str, str], *, for_nothing: int | None = None) -> Planned:
        agent = self.agents.get(name)
        if agent is None:
            raise AgentError(f"the team has no agent {name!r}; {hint(name, self.agents)}", stage="team.call")
        number = self._state.round if for_nothing is None else for_nothing
        stem = f"{'' if for_nothing is None else FOR_NOTHING}{name}.{number}"
        k = self._numbers[stem]
        self._numbers[stem] += 1
        if for_nothing is None:
            self._n_planned += 1
        else:
            self._n_for_nothing += 1
        record = CallRecord(
            id="".join(f"{place}/" for place in self._path) + f"{stem}.{k}",
            agent=name,
            order=(*self._path, self._n_planned if for_nothing is None else -self._n_for_nothing),
            round=number,
            policy=agent.policy,
            route=route,
        )
        known: dict[str, Source] = {
            "question": lambda: self.task.question,
            "opening": lambda: "\n\n".join(message.content for message in self.ctx.opening),
            "observation": lambda: "\n\n".join(self.observations),
            "round": lambda: str(number + 1),
            "step": lambda: str(len(self.observations) + 1),
        }
        return self._caller.plan(agent, record, self.context, known, values)

    def _kept(self, made: Made) -> Reply:
        """The reply, part of the sample from now on."""
        self._tell(made, used=True)
        self.context.append(self._entry(made.reply.agent, made.reply.text, made.reply.id, None))
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

    def _tell(self, made: Made, *, used: bool) -> None:
        outcome = replace(made.outcome, used=used)
        self._record(outcome)
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

    def _record(self, outcome: CallOutcome) -> None:
        if self._path:
            self._outcomes.append(outcome)
        else:
            self.ctx.record(EventKind.LOG, CALL, to_data(outcome))

    def _discard(self, calls: Mapping[int, "asyncio.Task[Made]"], planned: Sequence[Planned], began_at: float) -> None:
        """Tell of calls that were made or begun and are not needed."""
        for place, task in calls.items():
            if not failed(task):
                self._tell(task.result(), used=False)
                continue
            now, call = self.ctx.clock.monotonic(), planned[place].record
            cut_off = Span(agent=call.agent, call_id=call.id, began_at=began_at, ended_at=now, used=False)
            self.spans.append(replace(cut_off, model_seconds=now - began_at))


def _all_failed(failures: Sequence[AttemptError]) -> AttemptError:
    """One error for all of them, on the side of the first."""
    if len(failures) == 1:
        return failures[0]
    kinds = {type(failure) for failure in failures}
    boundary = next(kind for kind in type(failures[0]).__mro__ if AttemptError in kind.__bases__)
    kind = kinds.pop() if len(kinds) == 1 else boundary
    error: AttemptError = kind(f"all {len(failures)} calls failed: {'; '.join(map(str, failures))}", stage="team.first")
    error.__cause__ = ExceptionGroup("all calls failed", failures)
    return error
