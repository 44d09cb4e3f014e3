"""What lets the attempts of one worker begin: leave from the scheduler, and a policy that is new enough."""

import asyncio
from dataclasses import dataclass
from typing import Self

from outrider.core.clock import Clock
from outrider.core.tasks import uninterrupted
from outrider.runner.gate import Gate
from outrider.runner.publications import Publications
from outrider.runner.published import PublishedPolicies
from outrider.store import Store


@dataclass(frozen=True, slots=True)
class Admission:
    """The gate, what is published, and the policies that follow from it. `run` keeps all three going."""

    gate: Gate
    publications: Publications
    policies: PublishedPolicies

    @classmethod
    def to(cls, store: Store, clock: Clock) -> Self:
        publications = Publications(store, clock)
        return cls(Gate(store, clock), publications, PublishedPolicies(publications))

    async def run(self) -> None:
        """Until cancelled; then the policies that were opened meanwhile are closed."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.gate.run())
                group.create_task(self.publications.run())
                group.create_task(self.policies.run())
        finally:
            await uninterrupted(self.policies.close())
