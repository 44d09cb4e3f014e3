"""A run's budget, enforced: what was used, and no further call once a limit is reached."""

from collections.abc import Iterable, Sequence

from msgspec import structs

from outrider.core.chat import Message, ToolSpec
from outrider.core.clock import Clock
from outrider.core.errors import BudgetSpent, InvalidInput
from outrider.policy.protocol import ChatPolicy, Completion, Probe, Sampling, Usage
from outrider.policy.spec import Budget

CHARACTERS_PER_TOKEN = 4
"""For servers that do not count tokens themselves: a limit must not lapse because of that."""


class Purse:
    """What is left of a budget. Time runs from the moment it is made, on from the seconds that were used before."""

    def __init__(self, budget: Budget, clock: Clock, *, used_seconds: float = 0.0) -> None:
        _require_prices(budget)
        self._budget = budget
        self._clock = clock
        self._began_at = clock.monotonic() - used_seconds
        self._n_prompt_tokens = 0
        self._n_completion_tokens = 0

    @property
    def n_tokens(self) -> int:
        return self._n_prompt_tokens + self._n_completion_tokens

    @property
    def money(self) -> float:
        budget = self._budget
        prompt = self._n_prompt_tokens * budget.prompt_price
        return (prompt + self._n_completion_tokens * budget.completion_price) / 1e6

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self._began_at

    def charge(self, usage: Usage) -> None:
        self._n_prompt_tokens += usage.prompt_tokens
        self._n_completion_tokens += usage.completion_tokens

    def check(self) -> None:
        """Raises `BudgetSpent`, which names the limit and what was used."""
        budget = self._budget
        if budget.tokens is not None and self.n_tokens >= budget.tokens:
            raise _spent(f"{self.n_tokens:,} tokens of {budget.tokens:,} are used")
        if budget.money is not None and self.money >= budget.money:
            raise _spent(f"{self.money:.4g} of {budget.money:g} in money is used")
        if budget.seconds is not None and self.seconds >= budget.seconds:
            raise _spent(f"{self.seconds:.0f} s of {budget.seconds:g} s have passed")


class BudgetedPolicy:
    """Any policy, until the budget is spent. Calls that are under way then are answered, and counted.

    With a `purse`, that is what its calls are paid from: several policies may share one.
    """

    def __init__(self, inner: ChatPolicy, budget: Budget, clock: Clock, *, purse: Purse | None = None) -> None:
        self._inner = inner
        self.purse = purse or Purse(budget, clock)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        self.purse.check()
        completion = await self._inner.complete(messages, tools=tools, sampling=sampling, session=session)
        if completion.usage == Usage():  # told as it is charged, so that totals agree with the budget
            completion = structs.replace(completion, usage=_estimate(messages, completion))
        self.purse.charge(completion.usage)
        return completion

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None:
        await self._inner.check(sampling, probe)

    async def close(self) -> None:
        await self._inner.close()


def _estimate(messages: Iterable[Message], completion: Completion) -> Usage:
    answer = completion.message
    n_answered = len(answer.content) + len(answer.reasoning) + sum(len(call.arguments) for call in answer.tool_calls)
    return Usage(
        prompt_tokens=sum(len(message.content) for message in messages) // CHARACTERS_PER_TOKEN + 1,
        completion_tokens=n_answered // CHARACTERS_PER_TOKEN + 1,
    )


def _spent(what: str) -> BudgetSpent:
    return BudgetSpent(f"the budget is spent: {what}. Raise it and go on with --resume", stage="policy.complete")


def _require_prices(budget: Budget) -> None:
    if budget.money is not None and not (budget.prompt_price or budget.completion_price):
        raise InvalidInput("budget: a limit in money needs a price per million tokens, for prompts or completions")
