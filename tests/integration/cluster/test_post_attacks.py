"""Attacks on posts: by processes that do not have the key of the cluster, and by members that are not the right one."""

import asyncio
import os
import resource
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from man_in_the_middle import ASK, HEADER, REFUSAL, SECONDS, TELL, at_abstract, frame, read_frame, relay, to_abstract
from outrider.cluster.post import Endpoint, Link, Message, Post
from outrider.cluster.post.handshake import Challenge, Claim, Handshake, Way
from outrider.core.errors import ClusterError, PeerLost
from posting import KEY

NOBODY = 65534
N_STRANGERS = 90
NOTHING = b"\xc0"
"""The head of a frame, in MessagePack."""


@contextmanager
def posted(name: str) -> Iterator[Post]:
    post = Post(name, KEY)
    post.serve("echo", lambda _, head, parts: Message(head, parts))
    try:
        yield post
    finally:
        post.close()


@pytest.fixture
def member() -> Iterator[Post]:
    with posted("Member:0") as post:
        yield post


@pytest.fixture
def other() -> Iterator[Post]:
    with posted("Other:0") as post:
        yield post


@pytest.fixture
def dead() -> Endpoint:
    """Where a member was that is gone: anybody may take its name."""
    with posted("Dead:0") as post:
        return post.endpoint


@pytest.fixture
def evidence(tmp_path: Path) -> Iterator[Path]:
    """A file that an attacker would make; nobody may."""
    yield tmp_path / "it ran"
    assert not list(tmp_path.iterdir()), "the attacker has run code"


def pickle_that_makes(path: Path) -> bytes:
    return b"cposix\nmkdir\n(V%s\ntR." % os.fsencode(path)


def ask(post: Post, endpoint: Endpoint, head: object = None) -> object:
    async def asking() -> object:
        link = await post.link(endpoint)
        return (await link.ask("echo", head)).head

    return post.run(asking(), timeout=SECONDS)


@pytest.mark.parametrize("target", ["other", "member"])
def test_who_takes_a_dead_members_name_and_relays_the_handshake_is_not_believed(
    member, dead, target, evidence, request
):
    """The attacker lets a member prove itself to another, or to itself, and then answers in its place."""
    name = request.getfixturevalue(target).endpoint.unix

    def answer_with_a_pickle(data: bytes, answer: Callable[[bytes], None]) -> list[bytes]:
        if data[0] != ASK:
            return [data]
        answer(frame(REFUSAL, HEADER.unpack_from(data)[3], NOTHING, pickle_that_makes(evidence)))
        return []

    with relay(at_abstract(dead.unix), partial(to_abstract, name), answer_with_a_pickle) as attacker:
        with pytest.raises(PeerLost, match="not the one that was meant"):
            ask(member, dead)
        assert attacker.there, "the member should have been lured"


def test_a_claim_that_was_overheard_cannot_be_used_again(member, other):
    claims: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as overheard:
        overheard.settimeout(SECONDS)
        overheard.connect(f"\0{other.endpoint.unix}")
        _, _, head = read_frame(overheard)
        client = Handshake(KEY, member.endpoint, way=Way.UNIX, wanted=other.endpoint)
        claims.append(frame(TELL, 0, msgspec.msgpack.encode(client.take(msgspec.msgpack.decode(head)))))
        overheard.sendall(claims[0])
        assert read_frame(overheard)[0] == TELL, "it is good the first time"
    with to_abstract(other.endpoint.unix) as again:
        read_frame(again)
        again.sendall(claims[0])
        with pytest.raises(ConnectionError):
            read_frame(again)


def member_on_a_raw_socket(post: Post, own: Endpoint) -> socket.socket:
    """A connection to a post by somebody who knows the key."""
    connection = to_abstract(post.endpoint.unix)
    client = Handshake(KEY, own, way=Way.UNIX, wanted=post.endpoint)
    _, _, head = read_frame(connection)
    connection.sendall(frame(TELL, 0, msgspec.msgpack.encode(client.take(msgspec.msgpack.decode(head)))))
    _, _, head = read_frame(connection)
    client.take(msgspec.msgpack.decode(head))
    assert client.peer == post.endpoint
    return connection


@pytest.mark.parametrize("head", [NOTHING, msgspec.msgpack.encode(["posix", "mkdir", "", ["here"], {}])])
def test_even_a_members_error_is_never_unpickled(member, other, evidence, head):
    asked = []
    other.serve("come", lambda link, _, __: asked.append(link))
    with member_on_a_raw_socket(other, member.endpoint) as connection:
        connection.sendall(frame(ASK, 1, msgspec.msgpack.encode(["come", None])))
        read_frame(connection)

        async def ask_back() -> None:
            await asked[0].ask("anything")

        answer = other.submit(ask_back())
        _, number, _ = read_frame(connection)
        connection.sendall(frame(REFUSAL, number, head, pickle_that_makes(evidence)))
        with pytest.raises(ClusterError):
            answer.result(SECONDS)


@pytest.mark.parametrize(
    "mistaken",
    [lambda right: replace(right, name="Another:0"), lambda right: replace(right, unix="outrider-of-a-dead-one")],
    ids=["name", "address"],
)
def test_a_member_that_is_not_the_one_that_was_meant_is_not_taken_for_it(member, other, mistaken):
    """As when another member listens where a dead one did."""
    member.endpoint = replace(member.endpoint, node="elsewhere")
    assert ask(member, other.endpoint, 1) == 1
    with pytest.raises(PeerLost, match="not the one that was meant"):
        ask(member, mistaken(other.endpoint))


@contextmanager
def on_the_path(member: Post, other: Post, meddle: Callable[..., list[bytes]]) -> Iterator[list[bytes]]:
    """Everything between two nodes goes through an attacker; what it saw."""
    member.endpoint = replace(member.endpoint, node="elsewhere")
    real = other.endpoint.port
    listener = socket.create_server(("127.0.0.1", 0))
    other.endpoint = replace(other.endpoint, port=listener.getsockname()[1])
    with relay(listener, lambda: socket.create_connection(("127.0.0.1", real), SECONDS), meddle) as attacker:
        yield attacker.there


def test_who_is_on_the_path_between_nodes_reads_nothing(member, other):
    with on_the_path(member, other, lambda data, _: [data]) as seen:
        assert ask(member, other.endpoint, "the secret of this test") == "the secret of this test"
        assert seen
        assert b"secret" not in b"".join(seen)
        assert b"Member:0" not in b"".join(seen)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: [data, data],
        lambda data: [data[:-1] + bytes([data[-1] ^ 1])],
        lambda data: [data[: len(data) // 2], data[len(data) // 2 + 1 :], b"\0"],
        lambda data: [frame(ASK, 9, msgspec.msgpack.encode(["count", None])), data],
    ],
    ids=["repeated", "changed", "cut", "inserted"],
)
def test_what_is_repeated_changed_or_inserted_on_the_path_ends_the_connection_and_does_nothing(member, other, change):
    meddles, served = [], []
    other.serve("count", lambda _, head, __: served.append(head))
    with on_the_path(member, other, lambda data, _: meddles[0](data) if meddles else [data]):

        async def count(number: int) -> None:
            await (await member.link(other.endpoint)).ask("count", number)

        member.run(count(1), timeout=SECONDS)
        link = member.run(member.link(other.endpoint), timeout=SECONDS)
        meddles.append(change)
        try:
            member.run(count(2), timeout=SECONDS)
        except PeerLost:
            pass
        else:  # the repetition comes behind what it repeats

            async def lost() -> None:
                await link.ended

            member.run(lost(), timeout=SECONDS)
        assert served in ([1], [1, 2]), "nothing is done twice, and nothing that was not asked"


def as_nobody(source: str, *arguments: str) -> subprocess.Popen[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    command = ["/usr/bin/env", "python3", "-c", source, *arguments]
    return subprocess.Popen(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_process_of_another_user_hears_not_even_a_challenge(other):
    source = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.settimeout(20)
one.connect("\\0" + sys.argv[1])
try:
    print(one.recv(100))
except ConnectionResetError:
    print(b"")
"""
    with as_nobody(source, other.endpoint.unix) as process:
        assert process.communicate(timeout=60)[0] == "b''\n"


def test_a_process_of_another_user_that_has_taken_a_dead_members_name_is_told_nothing(member, dead):
    source = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
print("ready", flush=True)
one, _ = listener.accept()
one.settimeout(20)
try:
    one.sendall(bytes.fromhex(sys.argv[2]))
    print(one.recv(100))
except (ConnectionResetError, BrokenPipeError):
    print(b"")
"""
    challenge = frame(TELL, 0, msgspec.msgpack.encode(Challenge(2, bytes(32))))
    with as_nobody(source, dead.unix, challenge.hex()) as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(PeerLost):
            ask(member, dead)
        assert process.communicate(timeout=60)[0] == "b''\n"


GARBAGE = {
    "too large": HEADER.pack(TELL, 0, 1 << 31, 0),
    "too many parts": HEADER.pack(TELL, 999_999, 1, 0) + bytes(100_000),
    "huge parts": HEADER.pack(TELL, 1, 1, 0) + b"\xff" * 8,
    "no kind": b"\x09" * 100,
    "not a claim": frame(TELL, 0, msgspec.msgpack.encode({"nonce": 3})),
    "a request first": frame(ASK, 1, msgspec.msgpack.encode(["echo", None])),
    "wrong proof": frame(
        TELL,
        0,
        msgspec.msgpack.encode(
            Claim(bytes(32), Endpoint("a", "b", "c", "d", 1), Endpoint("a", "b", "c", "d", 1), bytes(32))
        ),
    ),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_what_is_not_a_claim_ends_the_connection(other, member, what):
    with to_abstract(other.endpoint.unix) as stranger:
        read_frame(stranger)
        stranger.sendall(GARBAGE[what])
        with pytest.raises(ConnectionError):
            read_frame(stranger)
    assert ask(member, other.endpoint, 1) == 1


def test_half_a_claim_is_not_waited_for_for_ever(other, monkeypatch):
    monkeypatch.setattr("outrider.cluster.post.post.CONNECT_SECONDS", 0.2)
    with to_abstract(other.endpoint.unix) as stranger:
        read_frame(stranger)
        stranger.sendall(HEADER.pack(TELL, 0, 100, 0))
        with pytest.raises(ConnectionError):
            read_frame(stranger)


def n_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("place", ["near", "far"])
def test_members_that_come_all_at_once_wait_for_each_other_and_are_all_let_in(member, other, place, monkeypatch):
    monkeypatch.setattr("outrider.cluster.post.post.MAX_UNPROVEN", 3)
    if place == "far":
        member.endpoint = replace(member.endpoint, node="elsewhere")

    async def come() -> list[Link]:
        return await asyncio.gather(*(member._connect(other.endpoint) for _ in range(30)))

    links = member.run(come(), timeout=SECONDS)
    assert [link.name for link in links] == ["Other:0"] * 30
    for link in links:
        member.loop.call_soon_threadsafe(link.close)


def test_a_process_that_is_out_of_files_accepts_again_when_it_has_some(member, other, monkeypatch):
    monkeypatch.setattr("outrider.cluster.post.post.PAUSE_SECONDS", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as stranger, socket.socket(socket.AF_UNIX) as witness:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(witness.fileno(), stranger.fileno()) + 1, hard))
        try:
            taken = list(iter(_one_more_file, None))
            stranger.connect(f"\0{other.endpoint.unix}")
            stranger.settimeout(0.2)
            with pytest.raises(TimeoutError):
                stranger.recv(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for number in taken:
                os.close(number)
        stranger.settimeout(SECONDS)
        assert stranger.recv(1), "now it is heard"
    assert ask(member, other.endpoint, 1) == 1


def _one_more_file() -> int | None:
    try:
        return os.open("/dev/null", os.O_RDONLY)
    except OSError:
        return None


@pytest.mark.parametrize("place", ["near", "far"])
def test_any_number_of_silent_strangers_leaves_room_for_a_member(member, other, place, monkeypatch):
    monkeypatch.setattr("outrider.cluster.post.post.MAX_UNPROVEN", N_STRANGERS // 3)
    monkeypatch.setattr("outrider.cluster.post.post.CROWDED_SECONDS", 0.1)
    if place == "far":
        member.endpoint = replace(member.endpoint, node="elsewhere")
    address = (other.endpoint.host, other.endpoint.port) if place == "far" else f"\0{other.endpoint.unix}"
    with ExitStack() as stack:
        for _ in range(N_STRANGERS):
            stranger = stack.enter_context(socket.socket(socket.AF_INET if place == "far" else socket.AF_UNIX))
            stranger.settimeout(SECONDS)
            stranger.connect(address)
        n_strangers_files = n_files()
        assert ask(member, other.endpoint, 1) == 1
        assert n_files() <= n_strangers_files + N_STRANGERS // 3 + 4
