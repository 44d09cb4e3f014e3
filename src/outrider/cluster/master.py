"""Where the workers of a group meet: the address and port that rank 0 offers and all of them are told."""

import asyncio
import socket
from typing import Any

from outrider.cluster.post import Endpoint, Link, Message, Post


class Masters:
    """A service of the driver's post. The first offer of a group holds, so that a restarted rank 0 finds the others."""

    def __init__(self, post: Post) -> None:
        self._offers: dict[str, asyncio.Future[tuple[str, int]]] = {}
        post.serve("master.agree", self._agree)
        post.serve("master.forget", self._forget)

    async def _agree(self, _: Link, head: Any, __: tuple[memoryview, ...]) -> Message:
        group_id, offer = head
        agreed = self._offers.setdefault(group_id, asyncio.get_running_loop().create_future())
        if offer is not None and not agreed.done():
            agreed.set_result(tuple(offer))
        return Message(await asyncio.shield(agreed))

    def _forget(self, _: Link, head: Any, __: tuple[memoryview, ...]) -> None:
        if (agreed := self._offers.pop(head, None)) is not None:
            agreed.cancel()


async def agree(post: Post, directory: Endpoint, group_id: str, rank: int) -> tuple[str, int]:
    """Host and port for this group; rank 0 offers a free port of its own node, the others wait for it."""
    host = post.endpoint.host
    link = await post.link(directory)
    answer = await link.ask("master.agree", (group_id, (host, free_port(host)) if rank == 0 else None))
    return answer.head[0], answer.head[1]


async def forget(post: Post, directory: Endpoint, group_id: str) -> None:
    link = await post.link(directory)
    await link.ask("master.forget", group_id)


def free_port(host: str) -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
