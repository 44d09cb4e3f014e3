"""What both model clients are asked to do. Only the standard library is used: the SDK runs in its own environment."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from subject import Answer, Work

MODEL = "test-model"
ANSWER = " ".join(f"word{number}" for number in range(20))
HISTORY_MESSAGES = 40
HISTORY_CHARACTERS = 1300


class PolicyWorkload(ABC):
    """One client; a subclass says how it makes a call."""

    @abstractmethod
    async def open(self, url: str) -> Answer: ...

    @abstractmethod
    async def close(self) -> Answer: ...

    @abstractmethod
    async def call(self, texts: Sequence[str], *, stream: bool) -> str:
        """The answer to a conversation of user and assistant in turns, from its beginning."""

    async def calls(self, n: int, concurrency: int, history: bool, stream: bool) -> Answer:
        texts = ["x" * HISTORY_CHARACTERS] * HISTORY_MESSAGES if history else ["Say your words."]
        left = iter(range(n))

        async def caller() -> int:
            done = 0
            for _ in left:
                if await self.call(texts, stream=stream) != ANSWER:
                    raise ValueError("the answer is not the one that was given")
                done += 1
            return done

        return {"n": sum(await asyncio.gather(*[caller() for _ in range(concurrency)]))}

    def works(self) -> dict[str, Work]:
        return {"open": self.open, "close": self.close, "calls": self.calls}
