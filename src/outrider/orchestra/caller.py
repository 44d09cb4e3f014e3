"""How one call of a team is made: its prompt, its seed, its record, and what its answer is read as."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from msgspec.structs import replace

from outrider.agent.context import Context
from outrider.agent.conversation import RecordedPolicy
from outrider.core.chat import Message, system, user
from outrider.core.errors import AgentError
from outrider.core.turn import CallOutcome, CallRecord
from outrider.orchestra.agent import Agent
from outrider.orchestra.context import TeamContext
from outrider.orchestra.prompt import Piece, Prompt
from outrider.orchestra.verdict import Verdict, VerdictKind

Count = Callable[[str], int]
"""How many tokens a text has."""

Source = Callable[[], str]
"""Makes the text of a place, where a prompt has that place."""

CHARACTERS_PER_TOKEN = 4
CONTEXT = Piece("context", is_place=True)
_MAX_REASON = 500
"""Characters of a parser's complaint that are told: it may quote the whole reply."""
_SEED_BITS = 0x7FFF_FFFF


def estimated(text: str) -> int:
    """Four characters a token, for teams whose policies do not say."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an agent said. `value` is what its `parse` made of the text."""

    id: str
    agent: str
    round: int
    text: str
    value: Any
    message: Message

    @property
    def verdict(self) -> Verdict | None:
        return self.value if isinstance(self.value, Verdict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A call before it is made."""

    agent: Agent
    record: CallRecord
    messages: tuple[Message, ...]
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A call that came to its end."""

    reply: Reply
    outcome: CallOutcome
    began_at: float


class Pacing:
    """When calls may be made: at once."""

    async def enter(self, sample: str, planned: Planned) -> None:
        """Return when the call may be made."""


class Caller:
    """Makes the calls of one sample."""

    def __init__(self, ctx: Context, *, count: Count, max_tokens: int | None, pacing: Pacing) -> None:
        self._ctx = ctx
        self.count = count
        self._max_tokens = max_tokens
        self._pacing = pacing

    def plan(
        self,
        agent: Agent,
        record: CallRecord,
        context: TeamContext,
        known: Mapping[str, Source],
        values: Mapping[str, str],
    ) -> Planned:
        """The call as it will be made, whatever happens until then. `known` and `values` fill the places of its prompt.

        What does not fit is left out before anything is joined, and all is joined once.
        """
        prompt = _prompt(agent.prompt, tuple(values))
        filled = {**{name: source() for name, source in known.items() if name in prompt.places}, **values}
        opening = (system(agent.system),) if agent.system else ()
        bare = prompt.filled({**filled, "context": ""})
        room = self._room(agent, opening, bare)
        shown: tuple[str, ...] = ()
        if "context" in prompt.places:
            view = context.view(agent.name, reads=agent.reads, budget=room, eviction=agent.eviction, count=self.count)
            shown = view.parts
            record = replace(
                record,
                reads=tuple(entry.call_id for entry in view.entries if entry.call_id),
                dropped=tuple(entry.call_id for entry in view.dropped if entry.call_id),
            )
        parts = [shown if piece == CONTEXT else (text,) for piece, text in zip(prompt.pieces, bare, strict=True)]
        messages = (*opening, user("".join(chain.from_iterable(parts))))
        return Planned(agent=agent, record=record, messages=messages, seed=self._seed(record.id))

    def _seed(self, call_id: str) -> int | None:
        if self._ctx.seed is None:
            return None
        text = f"{self._ctx.seed}/{self._ctx.identity}/{call_id}"
        return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=4).digest()) & _SEED_BITS

    def _room(self, agent: Agent, opening: tuple[Message, ...], bare: tuple[str, ...]) -> int | None:
        """How many tokens are left for the words of others. Pieces are counted alone, so that each is once."""
        most = agent.max_context_tokens or self._max_tokens
        if most is None:
            return None
        taken = sum(map(self.count, bare)) + sum(self.count(message.content) for message in opening)
        if taken > most:
            raise AgentError(
                f"agent {agent.name!r} may have {most} tokens, and its question and instructions alone take {taken}; "
                "raise max_context_tokens",
                stage="team.call",
            )
        return most - taken

    async def make(self, planned: Planned) -> Made:
        """Ask the model and read its answer."""
        agent, clock, sample = planned.agent, self._ctx.clock, self._ctx.identity
        policy = self._ctx.policy_named(agent.policy)
        assert isinstance(policy, RecordedPolicy)
        sampling = agent.sampling if planned.seed is None else replace(agent.sampling, seed=planned.seed)
        asked_at = clock.monotonic()
        await self._pacing.enter(sample, planned)
        completion, seconds = await policy.ask(planned.messages, sampling=sampling, call=planned.record)
        answered_at = clock.monotonic()
        value = _parsed(agent, completion.message.content)
        outcome = CallOutcome(
            id=planned.record.id,
            verdict=_named(value) if isinstance(value, Verdict) else "",
            queue_seconds=max(answered_at - asked_at - seconds, 0.0) + completion.queue_seconds,
            model_seconds=max(seconds - completion.queue_seconds, 0.0),
            parse_seconds=clock.monotonic() - answered_at,
            completion_tokens=completion.usage.completion_tokens,
        )
        reply = Reply(
            id=planned.record.id,
            agent=agent.name,
            round=planned.record.round,
            text=completion.message.content,
            value=value,
            message=completion.message,
        )
        return Made(reply=reply, outcome=outcome, began_at=asked_at)


@lru_cache(maxsize=1024)
def _prompt(text: str, places: tuple[str, ...]) -> Prompt:
    return Prompt(text, places=places)


def _named(verdict: Verdict) -> str:
    """Yes or no where it was clear, and otherwise why it was not."""
    return ("approve" if verdict.approved else "reject") if verdict.kind is VerdictKind.CLEAR else verdict.kind


def _parsed(agent: Agent, text: str) -> Any:
    try:
        return agent.parse(text)
    except Exception as exc:
        raise AgentError(f"parse of agent {agent.name!r} failed: {exc!r:.{_MAX_REASON}}", stage="team.parse") from exc
