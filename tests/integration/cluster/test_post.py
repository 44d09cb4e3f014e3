"""Posts of different processes: what is asked is answered, and who is gone is known to be gone."""

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest
import uvloop
from msgspec.structs import replace

from outrider.cluster.post import Endpoint, Message, Part, Post
from outrider.core.errors import ClusterError, PeerLost
from outrider.testing import eventually
from posting import KEY, other_post
from promptly import within


@pytest.fixture
def post() -> Iterator[Post]:
    post = Post("test", KEY)
    yield post
    post.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("post of")]


@pytest.fixture
def other() -> Iterator[Endpoint]:
    with other_post() as (_, endpoint):
        yield endpoint


def near(post: Post) -> None:
    """As it is."""


def far(post: Post) -> None:
    """As if the post were on another node."""
    post.endpoint = replace(post.endpoint, node="elsewhere")


NEAR_AND_FAR = pytest.mark.parametrize("place", [near, far])


async def ask(
    post: Post, endpoint: Endpoint, service: str, head: object = None, parts: tuple[Part, ...] = ()
) -> Message:
    link = await post.link(endpoint)
    return await link.ask(service, head, parts)


@NEAR_AND_FAR
@pytest.mark.parametrize("size", [0, 1, 1000, 300_000, 5_000_000])
def test_what_is_sent_comes_back_as_it_was(post, other, place, size):
    place(post)
    sent = (os.urandom(size), b"", bytearray(b"x" * size))
    answer = post.run(ask(post, other, "echo", {"a": [1, None]}, sent), timeout=20)
    assert answer.head == {"a": [1, None]}
    assert [bytes(part) for part in answer.parts] == [bytes(part) for part in sent]
    assert all(not part.readonly for part in answer.parts)


def test_a_program_may_prefer_other_event_loops(other):
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        post = Post("test", KEY)
    finally:
        asyncio.set_event_loop_policy(before)
    try:
        assert post.run(ask(post, other, "echo", "by a socket that uvloop cannot use"), timeout=20).head
    finally:
        post.close()


def test_frames_of_all_sizes_on_one_link_keep_apart(post, other):
    async def many() -> list[Message]:
        link = await post.link(other)
        sizes = [(number * 7919) % 400_000 for number in range(100)]
        return await asyncio.gather(*(link.ask("echo", size, (b"p" * size, b"q")) for size in sizes))

    for answer in post.run(many(), timeout=30):
        assert [len(part) for part in answer.parts] == [answer.head, 1]


def test_an_error_over_there_is_an_error_here_and_the_link_lives(post, other):
    with pytest.raises(ClusterError, match="ValueError: of mine"):
        post.run(ask(post, other, "fail", "of mine"), timeout=30)
    with pytest.raises(ClusterError, match="no service 'missing'"):
        post.run(ask(post, other, "missing"), timeout=30)
    assert post.run(ask(post, other, "echo", 7), timeout=30).head == 7


async def test_who_gives_up_cancels_what_was_asked(post, other):
    waiting = post.submit(ask(post, other, "wait", "this one"))
    await eventually(lambda: asyncio.to_thread(lambda: post.run(ask(post, other, "echo", 1), timeout=30).head == 1))
    waiting.cancel()

    async def was_given_up() -> bool:
        answer = await asyncio.wrap_future(post.submit(ask(post, other, "given_up")))
        return answer.head == ["this one"]

    await eventually(was_given_up)


def test_a_killed_peer_is_known_at_once_to_all_who_wait(post):
    with other_post() as (process, endpoint):
        waiting = [post.submit(ask(post, endpoint, "wait")) for _ in range(1000)]
        post.run(ask(post, endpoint, "echo"), timeout=30)
        with within(5):
            process.send_signal(signal.SIGKILL)
            for future in waiting:
                with pytest.raises(PeerLost, match="other"):
                    future.result(30)
        with pytest.raises(PeerLost, match="nobody answers"):
            post.run(ask(post, endpoint, "echo"), timeout=30)


@NEAR_AND_FAR
def test_a_stranger_without_the_key_is_not_heard(other, place):
    stranger = Post("stranger", b"another key")
    place(stranger)
    try:
        with pytest.raises(PeerLost, match="does not know the key"):
            stranger.run(ask(stranger, other, "echo"), timeout=30)
    finally:
        stranger.close()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 10, b"\0" * 100, b"\x04" + b"\xff" * 200])
def test_garbage_ends_its_own_connection_only(post, other, garbage):
    with socket.create_connection((other.host, other.port), timeout=10) as stranger:
        stranger.sendall(garbage)
        while stranger.recv(4096):
            continue
    far(post)
    assert post.run(ask(post, other, "echo", 1), timeout=30).head == 1


@pytest.fixture
def other_network() -> Iterator[tuple[str, str]]:
    """A network namespace, connected by a cable: its name, and the name of the cable's end on this side."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a network namespace")
    space, cable = f"or{os.getpid()}", f"or{os.getpid()}a"

    def run(*command: str) -> None:
        subprocess.run(command, check=True, timeout=10)

    run("ip", "netns", "add", space)
    try:
        run("ip", "link", "add", cable, "type", "veth", "peer", "name", "inside", "netns", space)
        run("ip", "addr", "add", "10.213.77.1/30", "dev", cable)
        run("ip", "link", "set", cable, "up")
        run("ip", "-n", space, "addr", "add", "10.213.77.2/30", "dev", "inside")
        run("ip", "-n", space, "link", "set", "inside", "up")
        yield space, cable
    finally:
        run("ip", "netns", "delete", space)


def test_a_node_that_vanishes_without_a_word_is_lost_within_five_seconds(post, other_network):
    space, cable = other_network
    with other_post(host="10.213.77.2", within=("ip", "netns", "exec", space)) as (_, endpoint):
        waiting = post.submit(ask(post, endpoint, "wait"))
        assert post.run(ask(post, endpoint, "echo", 3), timeout=30).head == 3
        with within(5):
            subprocess.run(["ip", "link", "set", cable, "down"], check=True, timeout=10)
            with pytest.raises(PeerLost):
                waiting.result(30)
