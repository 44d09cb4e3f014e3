"""Teams at play in tests: a model that answers by a function, after a while that the test chooses."""

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence

from outrider.core.chat import Message, ToolSpec, assistant
from outrider.orchestra import Agent, Orchestra, Team, VerdictRule
from outrider.policy import ChatPolicy, Completion, Sampling, Usage

Says = Callable[[str, int], str]
"""What the model says to a prompt, with a seed."""


def draw(*key: object) -> random.Random:
    return random.Random(zlib.crc32(repr(key).encode()))


class Speaker(ChatPolicy):
    """Answers by `says`; `seconds` tells how long the n-th call takes."""

    def __init__(self, says: Says, seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        self._says = says
        self._seconds = seconds
        self.prompts: list[str] = []
        self.n_cancelled = 0
        self.n_running = 0
        self.most_at_once = 0

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        prompt = "\n".join(message.content for message in messages)
        self.prompts.append(prompt)
        self.n_running += 1
        self.most_at_once = max(self.most_at_once, self.n_running)
        try:
            await asyncio.sleep(self._seconds(len(self.prompts)))
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        finally:
            self.n_running -= 1
        seed = 0 if sampling is None or sampling.seed is None else sampling.seed
        text = self._says(prompt, seed)
        return Completion(message=assistant(text), usage=Usage(completion_tokens=len(text.split())))

    async def check(self, sampling: Sampling | None = None) -> None: ...

    async def close(self) -> None: ...


SEARCH = Agent(name="search", prompt="Search for {question}.\n{context}")
CRITIC = Agent(name="critic", prompt="Judge round {round}.\n{context}", parse=VerdictRule(tag="critic"))


async def critic_loop(team: Team) -> str:
    """Search and critic, at most three rounds."""
    for _ in team.rounds(3):
        found = await team.call("search")
        team.approve(await team.call("critic"))
    return found.text


def critics(**settings: object) -> Orchestra:
    return Orchestra([SEARCH, CRITIC], critic_loop, **settings)  # type: ignore[arg-type]
