"""The workers that one worker talks to: where they are, and whether they are gone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from outrider.cluster.address import WorkerAddress
from outrider.cluster.post import Endpoint, Link, Post
from outrider.core.errors import ClusterError, PeerLost, WorkerDied

SILENCE_SECONDS = 1.0
"""A dead worker's connections end by themselves; so long is waited for what was still on its way in them."""

VERDICT_SECONDS = 3.0
"""A connection that ended mostly means a death, of which the directory hears within this time."""


class WhoIsWhere(Protocol):
    """What must be known about other workers; the directory of the cluster knows it."""

    async def find(self, address: WorkerAddress) -> Endpoint: ...

    async def until_dead(self, address: WorkerAddress) -> str: ...


class Peers:
    """Lives on the post's event loop. `silence` waits until nothing more comes from the worker of that name."""

    def __init__(self, post: Post, directory: WhoIsWhere, silence: Callable[[str], Awaitable[None]]) -> None:
        self._post = post
        self._directory = directory
        self._silence = silence
        self._links: dict[WorkerAddress, Link] = {}
        self._deaths: dict[WorkerAddress, asyncio.Task[str]] = {}

    async def link(self, address: WorkerAddress) -> Link:
        """A link to this worker. One that was started again is found where it is now."""
        known = self._links.get(address)
        if known is not None and not known.is_lost:
            return known
        linking, death = self._post.loop.create_task(self._opened(address)), self.death(address)
        waiting: set[asyncio.Future[Any]] = {linking, death}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not linking.done():
                raise died(address, death)
        finally:
            linking.cancel()
        self._links[address] = linking.result()
        return linking.result()

    async def _opened(self, address: WorkerAddress) -> Link:
        return await self._post.link(await self._directory.find(address))

    def death(self, address: WorkerAddress) -> "asyncio.Task[str]":
        """Ends with the cause when the worker dies and nothing more comes from it; fails if there is no such worker."""
        if address not in self._deaths:
            task = self._deaths[address] = self._post.loop.create_task(
                self._until_dead(address), name=f"watch {address.get_name()}"
            )
            task.add_done_callback(lambda task: self._ended(address, task))
        return self._deaths[address]

    def _ended(self, address: WorkerAddress, task: "asyncio.Task[str]") -> None:
        del self._deaths[address]
        if not task.cancelled():
            task.exception()

    async def _until_dead(self, address: WorkerAddress) -> str:
        cause = await self._directory.until_dead(address)
        self._links.pop(address, None)
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._silence(address.get_name())
        except TimeoutError:
            pass
        return cause

    async def verdict(self, address: WorkerAddress, loss: PeerLost) -> ClusterError:
        """What to raise when the connection to this worker ended."""
        death = self.death(address)
        done, _ = await asyncio.wait({death}, timeout=VERDICT_SECONDS)
        return died(address, death) if done else loss

    def close(self) -> None:
        for task in list(self._deaths.values()):
            task.cancel()


def died(address: WorkerAddress, death: "asyncio.Task[str]") -> ClusterError:
    """The error that stands for a death that has ended."""
    if death.cancelled():
        return ClusterError("this worker is being closed")
    error = death.exception()
    if error is None:
        return WorkerDied(address.get_name(), death.result())
    if isinstance(error, ClusterError):
        return error
    return ClusterError(f"whether {address.get_name()} lives cannot be found out: {error}")
