"""Workers that send each other mail, in this process and in others: `python mailing.py NAME NODE DIRECTORY` is one."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import cloudpickle
import msgspec
from msgspec.structs import replace

from outrider.cluster.address import WorkerAddress
from outrider.cluster.collective import CollectiveGroup
from outrider.cluster.directory import Directory, DirectoryClient
from outrider.cluster.info import WorkerInfo
from outrider.cluster.post import Endpoint, Link, Message, Post
from outrider.cluster.post.parcel import pack, unpack
from posting import KEY

START_SECONDS = 20.0


class Member:
    """A worker in this process: a post, a place in the directory, and its mail."""

    def __init__(self, name: str, directory: Endpoint, *, node: str = "", **options: Any) -> None:
        self.address = WorkerAddress.from_name(name)
        self.post = Post(name, KEY)
        if node:
            self.post.endpoint = replace(self.post.endpoint, node=node)
        self.directory = DirectoryClient(self.post, directory)
        self.mail = CollectiveGroup(self.address, self.post, self.directory, **options)
        self.post.serve("do", self._do)
        info = WorkerInfo(address=self.address, rank=self.address.rank, node_id=0)
        self.post.run(self.directory.join(info), timeout=START_SECONDS)

    async def _do(self, _: Link, __: Any, parts: tuple[memoryview, ...]) -> Message:
        function = unpack(parts)
        return Message(None, pack(await asyncio.to_thread(function, self.mail)))

    def close(self) -> None:
        self.mail.close()
        self.post.close()


class Remote:
    """A worker in another process, as this one sees it."""

    def __init__(self, address: WorkerAddress, process: subprocess.Popen[bytes], driver: Post, at: Endpoint) -> None:
        self.address = address
        self.process = process
        self._driver = driver
        self._at = at

    def start(self, function: Callable[[CollectiveGroup], Any]) -> "Future[Any]":
        """Run a function on its mail, over there."""
        return self._driver.submit(self._ask(cloudpickle.dumps(function)))

    def do(self, function: Callable[[CollectiveGroup], Any]) -> Any:
        return self.start(function).result(60)

    async def _ask(self, function: bytes) -> Any:
        link = await self._driver.link(self._at)
        return unpack((await link.ask("do", None, [function])).parts)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class World:
    """A directory, and the workers that were started in it."""

    def __init__(self, groups: dict[str, int]) -> None:
        self._stack = ExitStack()
        self.driver = Post("driver", KEY)
        self._stack.callback(self.driver.close)
        Directory(self.driver)
        client = DirectoryClient(self.driver, self.driver.endpoint)
        for name, world_size in groups.items():
            self.driver.run(client.declare(name, world_size), timeout=START_SECONDS)
        self.find = client.find

    def member(self, name: str, **options: Any) -> Member:
        member = Member(name, self.driver.endpoint, **options)
        self._stack.callback(member.close)
        return member

    def remote(self, name: str, *, node: str = "") -> Remote:
        where = msgspec.json.encode(self.driver.endpoint).decode()
        process = subprocess.Popen([sys.executable, __file__, name, node, where], stdin=subprocess.PIPE)
        self._stack.callback(process.wait, 20)
        self._stack.callback(process.kill)
        self._stack.enter_context(process.stdin)
        address = WorkerAddress.from_name(name)
        at = self.driver.run(self.find(address), timeout=START_SECONDS)
        return Remote(address, process, self.driver, at)

    def close(self) -> None:
        self._stack.close()


@contextmanager
def world(**groups: int) -> Iterator[World]:
    made = World(groups)
    try:
        yield made
    finally:
        made.close()


def _live(name: str, node: str, directory: str) -> None:
    member = Member(name, msgspec.json.decode(directory, type=Endpoint), node=node)
    sys.stdin.read()
    member.close()


def receive(n: int, source: WorkerAddress) -> Callable[[CollectiveGroup], list[Any]]:
    """So many objects, one after the other."""
    return partial(_receive, n, source)


def _receive(n: int, source: WorkerAddress, mail: CollectiveGroup) -> list[Any]:
    return [mail.recv(source, timeout=20) for _ in range(n)]


def send_back(address: WorkerAddress) -> Callable[[CollectiveGroup], None]:
    """One object."""
    return partial(_send_back, address)


def _send_back(address: WorkerAddress, mail: CollectiveGroup) -> None:
    mail.send(mail.recv(address, timeout=20), address, timeout=20)


if __name__ == "__main__":
    _live(*sys.argv[1:])
