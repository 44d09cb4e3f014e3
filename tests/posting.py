"""A post in another process: `python posting.py NAME HOST` prints where it listens, and serves a little."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from outrider.cluster.post import Endpoint, Link, Message, Post

KEY = b"the key of these tests"


@contextmanager
def other_post(
    name: str = "other", *, host: str = "127.0.0.1", within: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], Endpoint]]:
    """A process with a post; `within` is a command that runs another one, such as in a network namespace."""
    command = [*within, sys.executable, __file__, name, host]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process, msgspec.json.decode(process.stdout.readline(), type=Endpoint)
        finally:
            process.kill()


def _serve(name: str, host: str) -> None:
    post = Post(name, KEY, host=host)
    given_up: list[str] = []

    async def wait(_: Link, head: object, __: object) -> Message:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(str(head))
        return Message()

    def fail(_: Link, head: object, __: object) -> Message:
        raise ValueError(head)

    post.serve("echo", lambda _, head, parts: Message(head, parts))
    post.serve("wait", wait)
    post.serve("fail", fail)
    post.serve("given_up", lambda *_: Message(given_up))
    print(json.dumps(msgspec.to_builtins(post.endpoint)), flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
