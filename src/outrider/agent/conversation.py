"""What is said in one attempt, recorded as it happens: every model call as a turn, every environment step as a step.

Invariants:
- A failure is attributed here, to the side it came from, whatever agent code it passes through afterwards.
- What is recorded is what the other side saw: a text that no store can keep is mended before it is handed on.
- A completion that was made is counted, whatever becomes of it; one that was cut off is not. Nothing is asked of the
  model once the attempt has ended.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import asdict, replace

from outrider.agent.context import Context
from outrider.agent.lending import Loan
from outrider.agent.limits import Stopwatch
from outrider.core.chat import Message, ToolSpec
from outrider.core.clock import Clock
from outrider.core.errors import AgentError, AttemptError, EnvError, InvalidInput, PolicyError, boundary
from outrider.core.event import EventKind
from outrider.core.turn import RESET, CallRecord, StepRecord, Transcript, TurnRecord, to_data
from outrider.env import Environment, Observation, Score, Step
from outrider.policy import ChatPolicy, Completion, Probe, Sampling

Lend = Callable[[], Awaitable[Loan]]
"""Lends the policy for one call."""

_SEED_BITS = 0x7FFF_FFFF
"""Seeds of 31 bits are understood by every server."""


class Conversation:
    """The record of one attempt, and its sums. Concurrent calls are recorded in the order in which they end."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.reward = 0.0
        self.stopwatch = Stopwatch(ctx.limits, ctx.clock)
        self._transcript = Transcript()

    @property
    def metrics(self) -> dict[str, float]:
        return self.ctx.spending.metrics

    def turn(
        self, request: tuple[Message, ...], completion: Completion, seconds: float, call: CallRecord | None = None
    ) -> Message:
        """Record a model call: its reply, as the record holds it."""
        self.ctx.spending.turn(completion, seconds)
        reply = completion.message
        kept, added = self._transcript.ask(request)
        try:
            self._write_turn(kept, added, reply, completion, seconds=seconds, call=call)
        except (InvalidInput, UnicodeError):
            reply, added = _mended(reply), tuple(map(_mended, added))
            self._write_turn(kept, added, reply, completion, seconds=seconds, call=call)
        self._transcript.extend((reply,))
        return reply

    def step(self, name: str, step: Step, seconds: float) -> Observation:
        """Record a step of the environment: its observation, as the record holds it."""
        if name == RESET:
            self.ctx.spending.reset(seconds)
        else:
            self.ctx.spending.step(seconds)
        observation = step.observation
        try:
            self._write_step(name, step, observation, seconds)
        except (InvalidInput, UnicodeError):
            observation = tuple(map(_mended, observation))
            self._write_step(name, step, observation, seconds)
        self._transcript.extend(observation)
        self.reward += step.reward
        return observation

    def _write_turn(
        self,
        kept: int,
        added: tuple[Message, ...],
        reply: Message,
        completion: Completion,
        *,
        seconds: float,
        call: CallRecord | None,
    ) -> None:
        usage, tokens = completion.usage, completion.tokens
        record = TurnRecord(
            kept=kept,
            added=added,
            reply=reply,
            finish_reason=completion.finish_reason,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            tokens=None if tokens is None else asdict(tokens),
            model=completion.model,
            policy_version=completion.policy_version,
            n_retries=completion.n_retries,
            seconds=seconds,
            call=call,
        )
        self.ctx.record(EventKind.TURN, "" if call is None else call.agent, to_data(record))

    def _write_step(self, name: str, step: Step, observation: Observation, seconds: float) -> None:
        record = StepRecord(
            observation=observation,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            info=step.info,
            seconds=seconds,
        )
        self.ctx.record(EventKind.STEP, name, to_data(record))


class RecordedPolicy(ChatPolicy):
    """The model as one attempt sees it. What a call leaves open in its sampling, the run's own sampling fills in.

    A seed is drawn for each turn if the rollout has one, from that, the session and the turn's number: rollouts of one
    group share their seed and must still differ.
    """

    def __init__(
        self, lend: Lend, conversation: Conversation, *, session: str, sampling: Sampling, seed: int | None
    ) -> None:
        self._lend = lend
        self._conversation = conversation
        self._session = session
        self._sampling = sampling
        self._seed = seed
        self._n_calls = 0

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        completion, _ = await self.ask(messages, tools=tools, sampling=sampling, session=session)
        return completion

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
        call: CallRecord | None = None,
    ) -> tuple[Completion, float]:
        """Complete as `call` of a team: the completion, and the seconds that the model took for it."""
        request = tuple(messages)
        chosen = self._filled(sampling)
        ctx = self._conversation.ctx
        caller = ctx.begin_call()
        try:
            with _attributed(PolicyError, "policy.complete"):
                return await self._completed(request, tools, chosen, session or self._session, call)
        finally:
            ctx.end_call(caller)

    async def _completed(
        self,
        request: tuple[Message, ...],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        session: str,
        call: CallRecord | None,
    ) -> tuple[Completion, float]:
        """Nothing may be waited for between the completion and its record, so that it is counted where it was made."""
        loan = await self._lend()
        try:
            completion, seconds = await self._conversation.stopwatch.time(
                "policy.complete",
                lambda: loan.policy.complete(request, tools=tools, sampling=sampling, session=session),
            )
            if loan.version and completion.policy_version <= 0:
                completion = replace(completion, policy_version=loan.version)
            reply = self._conversation.turn(request, completion, seconds, call)
        finally:
            loan.give_back()
        return completion if reply is completion.message else replace(completion, message=reply), seconds

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None:
        loan = await self._lend()
        try:
            await loan.policy.check(sampling, probe)
        finally:
            loan.give_back()

    async def close(self) -> None:
        """It is the worker's to close."""

    def _filled(self, sampling: Sampling | None) -> Sampling:
        self._n_calls += 1
        chosen = self._sampling
        if sampling is not None:
            said = {name: value for name, value in asdict(sampling).items() if _is_said(value)}
            chosen = replace(chosen, **said)
        if chosen.seed is None and self._seed is not None:
            text = f"{self._seed}/{self._session}/{self._n_calls}"
            drawn = int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=4).digest())
            chosen = replace(chosen, seed=drawn & _SEED_BITS)
        return chosen


class RecordedEnvironment(Environment):
    """The environment as the agent sees it: its tools and its steps. The rest of its life is the episode's."""

    def __init__(self, inner: Environment, conversation: Conversation, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._conversation = conversation
        self.terminated = False
        self.truncated = False

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        with _attributed(EnvError, "env.tools"):
            return tuple(self._inner.tools)

    @property
    def has_ended(self) -> bool:
        return self.terminated or self.truncated

    async def open(self, seed: int | None) -> Observation:
        """Reset it, for the episode."""
        clock = self._clock
        began = clock.monotonic()
        with _attributed(EnvError, "env.reset"):
            opening = _messages(await self._inner.reset(seed))
            return self._conversation.step(RESET, Step(opening), clock.monotonic() - began)

    async def reset(self, seed: int | None = None) -> Observation:  # noqa: ARG002 it has been reset
        raise AgentError("the environment was reset before the agent began; see ctx.opening", stage="agent")

    async def step(self, action: Message) -> Step:
        if self.has_ended:
            raise AgentError("the episode has ended: look at the step's `terminated` and `truncated`", stage="agent")
        with _attributed(EnvError, "env.step"):
            answer, seconds = await self._conversation.stopwatch.time("env.step", lambda: self._inner.step(action))
            step = _plain(Step(*answer))
            observation = self._conversation.step("", step, seconds)
        self.terminated, self.truncated = step.terminated, step.truncated
        return step._replace(observation=observation)

    async def score(self) -> Score | None:
        raise AgentError("the environment is scored when the agent is done; return from it", stage="agent")

    async def close(self) -> None:
        """It is the episode's to close."""


def _is_said(value: object) -> bool:
    return value is not None and value is not False and value != ()


@contextmanager
def _attributed(error: type[AttemptError], stage: str) -> Iterator[None]:
    """Like `boundary`; a failure that names no call gets this one's name."""
    try:
        with boundary(error, stage):
            yield
    except AttemptError as exc:
        exc.stage = exc.stage or stage
        raise


def _plain(step: Step) -> Step:
    """The step in the types it promises, whatever numbers the environment computes with."""
    observation, reward, terminated, truncated, info = step
    return Step(_messages(observation), float(reward), bool(terminated), bool(truncated), info)


def _messages(observation: Observation) -> Observation:
    for message in observation:
        if not isinstance(message, Message):
            raise TypeError(f"an observation is a tuple of messages; this one holds {type(message).__name__}")
    return tuple(observation)


def _mended(message: Message) -> Message:
    """The message without the half characters that cut texts and strange file names have."""

    def mend(text: str) -> str:
        return text.encode(errors="replace").decode()

    calls = tuple(
        replace(call, id=mend(call.id), name=mend(call.name), arguments=mend(call.arguments))
        for call in message.tool_calls
    )
    call_id = None if message.tool_call_id is None else mend(message.tool_call_id)
    return replace(
        message,
        content=mend(message.content),
        reasoning=mend(message.reasoning),
        tool_calls=calls,
        tool_call_id=call_id,
    )
