"""Channels and their users in processes of their own, for tests."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from outrider.cluster.channel.channel import Channel
from outrider.cluster.channel.host import ChannelHost
from outrider.cluster.post import Endpoint, Post
from processes import line, program

KEY = b"the key of a channel's test"

START = """
import sys
import msgspec
from outrider.cluster.channel.channel import Channel
from outrider.cluster.channel.host import ChannelHost
from outrider.cluster.post import Endpoint, Post

post = Post("a process of a test", bytes.fromhex(sys.argv[1]))
"""

HOST = f"""{START}
ChannelHost(post, int(sys.argv[2]))
print(msgspec.json.encode(post.endpoint).decode(), flush=True)
sys.stdin.readline()
"""

USER = f"""{START}
channel = Channel(post, msgspec.json.decode(sys.argv[2], type=Endpoint), "work")
channel.qsize()
"""


@contextmanager
def channel_process(maxsize: int = 0) -> Iterator[tuple[subprocess.Popen[str], Endpoint]]:
    """A channel in a process of its own."""
    with program(HOST, KEY.hex(), str(maxsize)) as process:
        yield process, msgspec.json.decode(line(process), type=Endpoint)


@contextmanager
def user_process(endpoint: Endpoint, source: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has `channel`. It speaks with its test in lines."""
    with program(USER + source, KEY.hex(), msgspec.json.encode(endpoint).decode()) as process:
        yield process


@contextmanager
def opened(endpoint: Endpoint, *, far: bool = False) -> Iterator[Channel]:
    """The channel, for the test itself; `far`: as from another node."""
    post = Post("the test", KEY)
    if far:
        post.endpoint = msgspec.structs.replace(post.endpoint, node="another node")
    try:
        yield Channel(post, endpoint, "work")
    finally:
        post.close()


@contextmanager
def channel_here(maxsize: int = 0, max_bytes: int = 0) -> Iterator[Channel]:
    """A channel that this process serves on one post and uses by another."""
    post = Post("the channel", KEY)
    try:
        ChannelHost(post, maxsize, max_bytes)
        with opened(post.endpoint) as channel:
            yield channel
    finally:
        post.close()
