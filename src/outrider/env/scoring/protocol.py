"""A scorer: tells how good an answer to a task is."""

from typing import Protocol

from outrider.core.task import Task
from outrider.env.protocol import Score


class Scorer(Protocol):
    """Compares an answer with a task. One scorer serves many episodes at once."""

    async def score(self, answer: str, task: Task) -> Score:
        """`reward` from 0 to 1. What the agent got wrong scores low; an exception means that scoring itself failed."""
        ...

    def check_task(self, task: Task) -> None:  # noqa: ARG002 there is nothing to check in most
        """Raise `InvalidInput` if no answer to this task could be scored, such as when it has no expected answer."""
        return

    async def check(self) -> None:
        """Raise `InvalidInput` if this scorer cannot work here: a missing extra, a judge that cannot be reached."""
        return

    async def close(self) -> None:
        """Give back what the scorer holds."""
        return
