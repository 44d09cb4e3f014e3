"""Budgets: counted, enforced, and told."""

import asyncio

import pytest

from outrider.core.chat import assistant, user
from outrider.core.errors import BudgetSpent, InvalidInput
from outrider.policy.budget import BudgetedPolicy, Purse
from outrider.policy.protocol import Completion, Usage
from outrider.policy.spec import Budget

MILLION = 1_000_000


def test_nothing_is_limited_without_a_limit(clock):
    purse = Purse(Budget(), clock)
    purse.charge(Usage(prompt_tokens=10 * MILLION))
    purse.check()


def test_tokens_of_prompts_and_completions_count_together(clock):
    purse = Purse(Budget(tokens=1000), clock)
    purse.charge(Usage(prompt_tokens=600, completion_tokens=399, cached_tokens=500))
    purse.check()
    purse.charge(Usage(completion_tokens=1))
    with pytest.raises(BudgetSpent, match="1,000 tokens of 1,000 are used"):
        purse.check()


def test_money_is_counted_by_the_price_of_a_million_tokens(clock):
    purse = Purse(Budget(money=5.0, prompt_price=2.0, completion_price=8.0), clock)
    purse.charge(Usage(prompt_tokens=MILLION // 2, completion_tokens=MILLION // 4))
    assert purse.money == pytest.approx(3.0)
    purse.check()
    purse.charge(Usage(completion_tokens=MILLION // 4))
    with pytest.raises(BudgetSpent, match="5 of 5 in money is used"):
        purse.check()


async def test_time_runs_by_the_clock(clock):
    purse = Purse(Budget(seconds=60.0), clock)
    await clock.advance(59.0)
    purse.check()
    await clock.advance(2.0)
    with pytest.raises(BudgetSpent, match="61 s of 60 s have passed") as caught:
        purse.check()
    assert caught.value.stops_run


def test_a_budget_of_nothing_is_spent_at_once(clock):
    with pytest.raises(BudgetSpent):
        Purse(Budget(tokens=0), clock).check()


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ({"tokens": -1}, "tokens is -1"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"prompt_price": -2.0}, "prompt_price"),
        ({"money": 1.0}, "needs a price"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(clock, budget, says):
    with pytest.raises(InvalidInput, match=says):
        Purse(Budget(**budget), clock)


class Talker:
    """A policy that says one thing, once it is let."""

    def __init__(self, usage):
        self.usage = usage
        self.n_calls = 0
        self.n_closed = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def complete(self, messages, *, tools=(), sampling=None, session=""):
        self.n_calls += 1
        await self.may_answer.wait()
        return Completion(message=assistant("x" * 40), usage=self.usage)

    async def check(self, sampling=None, probe=None):
        raise InvalidInput("checked")

    async def close(self):
        self.n_closed += 1


async def test_a_policy_makes_no_further_call_once_its_budget_is_spent(clock):
    inner = Talker(Usage(prompt_tokens=60, completion_tokens=40))
    policy = BudgetedPolicy(inner, Budget(tokens=250), clock)
    for _ in range(3):
        await policy.complete([user("hi")])
    with pytest.raises(BudgetSpent, match="300 tokens of 250"):
        await policy.complete([user("hi")])
    assert inner.n_calls == 3


async def test_calls_under_way_when_it_is_spent_are_answered_and_counted(clock):
    inner = Talker(Usage(completion_tokens=100))
    inner.may_answer.clear()
    policy = BudgetedPolicy(inner, Budget(tokens=100), clock)
    calls = [asyncio.ensure_future(policy.complete([user("hi")])) for _ in range(5)]
    await asyncio.sleep(0)
    inner.may_answer.set()
    await asyncio.gather(*calls)
    assert policy.purse.n_tokens == 500
    with pytest.raises(BudgetSpent):
        await policy.complete([user("hi")])


async def test_tokens_that_the_server_does_not_count_are_estimated(clock):
    policy = BudgetedPolicy(Talker(Usage()), Budget(tokens=100), clock)
    await policy.complete([user("y" * 400)])
    with pytest.raises(BudgetSpent):
        await policy.complete([user("y" * 400)])


async def test_the_rest_is_the_inner_policys_affair(clock):
    inner = Talker(Usage())
    policy = BudgetedPolicy(inner, Budget(), clock)
    with pytest.raises(InvalidInput, match="checked"):
        await policy.check()
    await policy.close()
    assert inner.n_closed == 1


async def test_a_jump_of_the_wall_clock_spends_no_time(clock):
    purse = Purse(Budget(seconds=60.0), clock)
    clock.jump(3600)
    await clock.advance(59)
    purse.check()
    clock.jump(-7200)
    await clock.advance(1)
    with pytest.raises(BudgetSpent, match="60 s"):
        purse.check()
