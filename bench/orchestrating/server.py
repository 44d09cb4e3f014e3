"""The model of ORCHESTRA-1 behind the policy for engines: real prompts, real token ids, times by the rule."""

import asyncio
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from orchestrating.workload import ADMISSION_SECONDS, LATENCY_SECONDS, approved, response, tail_ms
from outrider.core.chat import Message
from outrider.core.clock import Clock
from outrider.policy import Completion
from outrider.policy.engine import EnginePolicy, Tokenizer, TokenReply, TokenRequest

SPEAKER = re.compile(r"Round (\d+)\. Speak as the ([\w ]+)\.$")
"""How each prompt ends."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which call it is: what is said to it, and how long that takes, follow from this. `sid` -1: of no sample."""

    agent: str
    sid: int
    rnd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A batch whose members are approved at a `rate`; with a `tail`, some calls take much longer than others."""

    batch: int
    rate: float
    tail: bool

    def reply(self, asked: Asked) -> str:
        return response(asked.agent, asked.sid, asked.rnd, approved(asked.sid, self.batch, self.rate, asked.rnd))

    def seconds(self, asked: Asked) -> float:
        return LATENCY_SECONDS + (tail_ms(asked.agent, asked.sid, asked.rnd) / 1000 if self.tail else 0.0)


class Replies:
    """What the model says, in tokens: they are its own work, so they are made before anything is measured."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, TokenReply] = {}

    def of(self, text: str) -> TokenReply:
        found = self._known.get(text)
        if found is None:
            ids = array("i", [*self._tokenizer.encode(text), *self._end])
            found = self._known[text] = TokenReply(ids=ids, logprobs=array("f", [-0.5] * len(ids)))
        return found

    @cached_property
    def _end(self) -> Sequence[int]:
        return self._tokenizer.encode("<|im_end|>")


class Server:
    """Takes one request after the other, 2 ms each, and answers each by itself, in its own time."""

    def __init__(self, world: World, replies: Replies) -> None:
        self._world = world
        self._replies = replies
        self._free_at = 0.0
        self._at = 0.0
        self._n_running = 0
        self.coming = Asked("", -1, 0)
        """Whose request is given to `ask` next."""

        self.n_samples = 0
        self.n_for_nothing = 0
        self.prompt_tokens = 0
        self.running_seconds = 0.0
        """Summed over requests that are under way."""

    async def ask(self, request: TokenRequest) -> tuple[TokenReply, float]:
        """As a coalescer does, and without collecting anything."""
        asked, now = self.coming, asyncio.get_running_loop().time()
        self.prompt_tokens += len(request.prompt_ids)
        self._free_at = max(now, self._free_at) + ADMISSION_SECONDS
        if asked.sid < 0:
            self.n_for_nothing += 1
            reply, seconds = TokenReply(ids=()), LATENCY_SECONDS
        else:
            self.n_samples += 1
            reply, seconds = self._replies.of(self._world.reply(asked)), self._world.seconds(asked)
        self._count(1)
        try:
            await asyncio.sleep(self._free_at + seconds - now)
        finally:
            self._count(-1)
        return reply, 0.0

    async def close(self) -> None: ...

    def _count(self, change: int) -> None:
        now = asyncio.get_running_loop().time()
        self.running_seconds += self._n_running * (now - self._at)
        self._at, self._n_running = now, self._n_running + change


class ServedPolicy(EnginePolicy):
    """Our policy over token ids, with a server that takes requests one by one where engines take batches."""

    def __init__(self, server: Server, tokenizer: Tokenizer, *, clock: Clock, whole_batch: bool = False) -> None:
        super().__init__(_Nobody(), tokenizer, clock=clock)
        self._coalescer = self._server = server
        self._batch = _WholeBatch() if whole_batch else None

    async def complete(self, messages: Sequence[Message], *, session: str = "", **options: Any) -> Completion:
        asked = _asked(messages, session)
        self._server.coming = asked  # nothing is waited for until the server takes it
        if self._batch is None:
            return await super().complete(messages, session=session, **options)
        self._batch.enter(asked.sid, messages)
        try:
            return await super().complete(messages, session=session, **options)
        finally:
            for left_out in self._batch.leave():
                self._rendering.prompt(left_out, (), "")


class _WholeBatch:
    """Who takes no part in a call of the batch, and is tokenised all the same."""

    def __init__(self) -> None:
        self._prompts: dict[int, Sequence[Message]] = {}
        self._taking_part: set[int] = set()
        self._n_running = 0

    def enter(self, sid: int, messages: Sequence[Message]) -> None:
        self._n_running += 1
        if sid >= 0:
            self._prompts[sid] = messages
            self._taking_part.add(sid)

    def leave(self) -> list[Sequence[Message]]:
        """The last prompts of all others, when the call is over."""
        self._n_running -= 1
        if self._n_running:
            return []
        others = [messages for sid, messages in self._prompts.items() if sid not in self._taking_part]
        self._taking_part.clear()
        return others


class _Nobody:
    async def generate(self, requests: Sequence[TokenRequest]) -> Sequence[TokenReply]:
        raise NotImplementedError("the server takes requests one by one")


def _asked(messages: Sequence[Message], session: str) -> Asked:
    found = SPEAKER.search(messages[-1].content, len(messages[-1].content) - 80)
    assert found is not None, messages[-1].content[-80:]
    sid = int(session.partition(":")[0]) if session else -1
    return Asked(found[2], sid, int(found[1]) - 1)
