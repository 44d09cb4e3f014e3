import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import to_builtins

from guessing import memory, scripted
from leaks import no_leaks
from outrider import Store
from outrider.agent.lending import Loan, Reopening
from outrider.core.chat import Message, assistant
from outrider.core.clock import Clock, SystemClock
from outrider.core.errors import InvalidInput, PolicyError, StoreUnavailable
from outrider.core.published import POLICY_KEY, PublishedPolicy, Served
from outrider.policy import ChatPolicy, Completion, Sampling
from outrider.policy.spec import PolicySpec
from outrider.runner.publications import PIN_SECONDS, UNAVAILABLE_SECONDS, Publications
from outrider.runner.published import PublishedPolicies
from outrider.store import Resources
from outrider.testing import FakeClock, eventually

OWN = PolicySpec(model="first", base_urls=("http://one",))


class Named(ChatPolicy):
    """Says its name."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.is_closed = False

    async def complete(self, messages: Sequence[Message], **_: Any) -> Completion:
        return Completion(message=assistant(self.spec.model))

    async def check(self, sampling: Sampling | None = None) -> None: ...

    async def close(self) -> None:
        self.is_closed = True


class Desk:
    """Policies on a store of their own, and all that were opened for them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.own = scripted()
        self.publications = Publications(store, clock)
        self.policies = PublishedPolicies(self.publications)
        self.opened: list[Named] = []
        self.reopening: Reopening | None = Reopening(spec=OWN, open=self._open)

    async def _open(self, spec: PolicySpec) -> ChatPolicy:
        if spec.model == "broken":
            raise InvalidInput("no such endpoint")
        self.opened.append(Named(spec))
        return self.opened[-1]

    async def publish(self, version: int, **fields: Any) -> None:
        published = PublishedPolicy(version=version, **fields)
        await self.store.put_resources({POLICY_KEY: to_builtins(published)})

    async def sees(self, version: int) -> None:
        async def seen() -> bool:
            return self.publications.newest.version == version

        await eventually(seen)

    @asynccontextmanager
    async def lend(self, pin: int | PublishedPolicy | None = None, name: str = "") -> AsyncIterator[Loan]:
        loan = await self.policies.lend(self.own, self.reopening, pin=pin, seconds=600.0, name=name)
        try:
            yield loan
        finally:
            loan.give_back()

    async def borrowed(self, pin: int | PublishedPolicy | None = None, name: str = "") -> tuple[ChatPolicy, int]:
        """The policy and its version, of a call that has ended."""
        async with asyncio.timeout(10), self.lend(pin, name) as loan:
            return loan.policy, loan.version


@asynccontextmanager
async def desk(clock: Clock | None = None) -> AsyncIterator[Desk]:
    async with memory() as store:
        made = Desk(store, clock or SystemClock())
        duties = [asyncio.create_task(made.publications.run()), asyncio.create_task(made.policies.run())]
        try:
            yield made
        finally:
            for duty in duties:
                duty.cancel()
            await asyncio.wait(duties)
            await made.policies.close()
        assert all(duty.cancelled() for duty in duties)


async def test_as_long_as_nothing_needs_it_the_worker_s_own_policy_is_lent_and_the_store_not_asked():
    async with no_leaks(), desk() as here:
        await here.publish(3, paused=True)
        assert await here.borrowed() == (here.own, 0)
        assert here.publications.newest.version == 0


async def test_a_loan_has_the_newest_version_at_its_beginning():
    async with no_leaks(), desk() as here:
        await here.publish(3)
        here.publications.need()
        async with here.lend() as loan:
            assert (loan.policy, loan.version) == (here.own, 3)
            await here.publish(4)
            await here.sees(4)
            assert loan.version == 3
        assert (await here.borrowed())[1] == 4


async def test_without_any_publication_the_version_is_zero():
    async with desk() as here:
        here.publications.need()
        assert await here.borrowed() == (here.own, 0)


async def test_reached_waits_for_the_version_or_a_newer_one():
    async with no_leaks(), desk() as here:
        here.publications.need()
        waiting = asyncio.create_task(here.publications.reached(2))
        await here.publish(1)
        await here.sees(1)
        assert not waiting.done()
        await here.publish(5)
        async with asyncio.timeout(10):
            await waiting


async def test_no_loan_is_given_while_the_policy_is_paused():
    async with no_leaks(), desk() as here:
        await here.publish(1, paused=True)
        here.publications.need()
        waiting = asyncio.create_task(here.borrowed())
        await here.sees(1)
        assert not waiting.done()
        await here.publish(1)
        assert (await waiting)[1] == 1


async def test_another_endpoint_is_opened_once_and_the_earlier_one_closed_when_its_last_call_has_ended():
    async with no_leaks(), desk() as here:
        here.publications.need()
        await here.publish(1, model="second", base_urls=("http://two",))
        await here.sees(1)
        loans = await asyncio.gather(*(here.borrowed() for _ in range(10)))
        [second] = here.opened
        assert {id(policy) for policy, _ in loans} == {id(second)}
        assert (second.spec.model, second.spec.base_urls) == ("second", ("http://two",))

        async with here.lend() as loan:
            await here.publish(2, model="third")
            await here.sees(2)
            newer = await here.borrowed()
            for _ in range(20):
                await asyncio.sleep(0)
            assert loan.policy is second
            assert not second.is_closed
        third = here.opened[1]
        assert newer == (third, 2)
        assert third.spec.base_urls == ("http://two",), "what is not published is as before"

        async def is_closed() -> bool:
            return second.is_closed

        await eventually(is_closed)
        assert not third.is_closed
    assert third.is_closed


async def test_a_version_without_an_endpoint_is_served_as_the_one_before_it():
    async with desk() as here:
        here.publications.need()
        await here.publish(1, model="second")
        await here.sees(1)
        first, _ = await here.borrowed()
        await here.publish(2)
        await here.sees(2)
        assert await here.borrowed() == (first, 2)


async def test_what_is_published_as_the_worker_has_it_needs_nothing_new():
    async with desk() as here:
        await here.publish(1, model=OWN.model, base_urls=OWN.base_urls)
        here.publications.need()
        assert (await here.borrowed())[0] is here.own
        assert here.opened == []


async def test_a_policy_that_cannot_be_opened_anew_serves_every_version():
    async with desk() as here:
        here.reopening = None
        await here.publish(4, model="second")
        here.publications.need()
        assert await here.borrowed() == (here.own, 4)


async def test_an_endpoint_that_cannot_be_used_is_a_failure_of_the_policy():
    async with no_leaks(), desk() as here:
        await here.publish(1, model="broken")
        here.publications.need()
        with pytest.raises(PolicyError, match="version 1 cannot be used as it was published: no such endpoint"):
            await here.borrowed()


async def test_a_pinned_loan_keeps_to_its_version_when_newer_ones_come():
    async with no_leaks(), desk() as here:
        here.publications.need()
        await here.publish(1, model="second")
        await here.sees(1)
        await here.publish(2, model="third")
        await here.sees(2)

        pinned, version = await here.borrowed(pin=1)
        assert isinstance(pinned, Named)
        assert (version, pinned.spec.model) == (1, "second")
        assert (await here.borrowed())[1] == 2


async def test_a_loan_that_is_pinned_to_a_publication_needs_not_have_seen_it():
    """As that of a rollout which is pinned to old resources."""
    async with no_leaks(), desk() as here:
        here.publications.need()
        await here.publish(1, model="second")
        await here.sees(1)
        await here.publish(5, model="sixth")
        await here.sees(5)
        pinned, version = await here.borrowed(pin=PublishedPolicy(version=3, model="fourth"))
        assert isinstance(pinned, Named)
        assert (version, pinned.spec.model) == (3, "fourth")
        pinned, version = await here.borrowed(pin=PublishedPolicy(version=1))
        assert isinstance(pinned, Named)
        assert (version, pinned.spec.model) == (1, "second"), "what it leaves out is as it was then"


async def test_a_pin_waits_for_a_version_to_come():
    async with desk() as here:
        waiting = asyncio.create_task(here.borrowed(pin=2))
        await here.publish(1)
        await here.sees(1)
        assert not waiting.done()
        await here.publish(2)
        assert (await waiting)[1] == 2


async def test_a_pin_that_never_comes_is_a_failure_of_the_policy(clock: FakeClock):
    async with no_leaks(), desk(clock) as here:
        here.publications.need()
        await here.publish(1)
        await here.sees(1)
        waiting = asyncio.create_task(here.borrowed(pin=9))
        await clock.advance(PIN_SECONDS - 1)
        assert not waiting.done()
        await clock.advance(1)
        with pytest.raises(PolicyError, match=r"pinned to policy version 9, .* not published within 60 s"):
            await waiting


async def test_a_pin_to_a_version_that_was_missed_fails_at_once(clock: FakeClock):
    async with desk(clock) as here:
        await here.publish(3)
        with pytest.raises(PolicyError, match=r"pinned to policy version 2, .*: there is 3 by now"):
            await here.borrowed(pin=2)


async def test_resources_that_hold_no_readable_policy_are_passed_over(caplog: pytest.LogCaptureFixture):
    async with desk() as here:
        here.publications.need()
        await here.publish(1)
        await here.sees(1)
        await here.store.put_resources({POLICY_KEY: {"version": "two"}})

        async def is_told() -> bool:
            return "resources 2 hold a policy that cannot be read" in caplog.text

        await eventually(is_told)
        await here.store.put_resources({"prompt": "other things"})
        assert (await here.borrowed())[1] == 1
        await here.publish(2)
        await here.sees(2)


class OutOfReach:
    """A store that cannot be reached for the first two looks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.outage = store.outage
        self.n_looks = 0

    async def get_latest_resources(self, *, after: int = 0, wait: float = 0.0) -> Resources | None:
        self.n_looks += 1
        if self.n_looks <= 2:
            raise StoreUnavailable("out of reach")
        return await self._store.get_latest_resources(after=after, wait=wait)


async def test_a_store_that_cannot_be_reached_is_looked_at_again(clock: FakeClock):
    async with no_leaks(), memory() as store:
        await store.put_resources({POLICY_KEY: {"version": 6}})
        publications = Publications(OutOfReach(store), clock)  # type: ignore[arg-type]
        duty = asyncio.create_task(publications.run())
        publications.need()
        waiting = asyncio.create_task(publications.reached(0))
        for _ in range(2):
            await clock.advance(0)
            assert not waiting.done(), "nothing is known before the first look"
            await clock.advance(UNAVAILABLE_SECONDS)
        async with asyncio.timeout(10):
            await waiting
        assert publications.newest.version == 6
        duty.cancel()
        await asyncio.wait([duty])


async def test_a_further_policy_goes_where_it_is_published_and_its_earlier_ones_are_closed_though_the_own_one_stays():
    async with no_leaks(), desk() as here:
        here.publications.need()
        for version in (1, 2, 3):
            await here.publish(version, further={"critic": Served(model=f"critic-{version}")})
            await here.sees(version)
            assert await here.borrowed() == (here.own, version), "the run's own was not moved"
            critic, at = await here.borrowed(name="critic")
            assert (critic.spec.model, critic.spec.base_urls, at) == (f"critic-{version}", ("http://one",), version)

        async def are_closed() -> bool:
            return [one.is_closed for one in here.opened] == [True, True, False]

        await eventually(are_closed)
        await here.publish(4)
        await here.sees(4)
        assert await here.borrowed(name="critic") == (here.opened[-1], 4), "where it is served is kept"
        assert (await here.borrowed(pin=2, name="critic"))[0].spec.model == "critic-2"
