"""Mail with workers that are killed, or never were: an error within five seconds, and nothing that had come is lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest

from mailing import Member, Remote, World, receive, world
from outrider.cluster.address import WorkerAddress
from outrider.cluster.directory import DirectoryClient
from outrider.core.errors import ClusterError, UnknownWorker, WorkerDied
from promptly import within

RANKS = count()
HERE = WorkerAddress("here", 0)
NODES = pytest.mark.parametrize("node", ["", "a made-up one"], ids=["near", "far"])


@pytest.fixture(scope="module")
def workers() -> Iterator[World]:
    with world(here=1, witness=1, victims=40) as made:
        yield made


@pytest.fixture(scope="module")
def here(workers) -> Member:
    return workers.member("here:0")


@pytest.fixture
def victim(workers) -> Callable[..., Remote]:
    def born(**options: str) -> Remote:
        return workers.remote(f"victims:{next(RANKS)}", **options)

    return born


def seen(member: Member, service: str, n_th: int) -> threading.Event:
    """Set as soon as the `n_th` frame of a service has been taken."""
    take, event, frames = member.post.services[service], threading.Event(), count(1)

    def take_and_tell(*frame):
        reply = take(*frame)
        if next(frames) == n_th:
            event.set()
        return reply

    member.post.serve(service, take_and_tell)
    return event


def kill_at(member: Member, victim: Remote, service: str, n_th: int) -> threading.Event:
    """Kill the victim as soon as the `n_th` frame of a service has come from it and was taken."""
    take, killed, frames = member.post.services[service], threading.Event(), count(1)

    def take_and_kill(*frame):
        reply = take(*frame)
        if next(frames) == n_th:
            victim.kill()
            killed.set()
        return reply

    member.post.serve(service, take_and_kill)
    killed.restore = lambda: member.post.serve(service, take)
    return killed


def test_a_receiver_that_waits_is_told_at_once_when_its_peer_is_killed(here, victim):
    peer = victim()
    waiting = here.mail.recv(peer.address, async_op=True)
    buffered = here.mail.recv_tensor(bytearray(10), peer.address, async_op=True)
    with within(5):
        peer.kill()
        for pending in (waiting, buffered):
            with pytest.raises(WorkerDied, match=peer.address.get_name()):
                pending.wait(30)


@NODES
def test_what_a_dead_worker_had_sent_is_received_first(here, victim, node):
    peer = victim(node=node)

    def send(mail) -> None:
        for number, size in enumerate((10, 400_000, 100_000, 3_000_000)):
            mail.send((number, np.full(size, number, np.uint8)), WorkerAddress("here", 0))

    peer.do(send)
    peer.kill()
    for number, size in enumerate((10, 400_000, 100_000, 3_000_000)):
        got, array = here.mail.recv(peer.address, timeout=30)
        assert (got, array.size, array.min(), array.max()) == (number, size, number, number)
    with within(5), pytest.raises(WorkerDied):
        here.mail.recv(peer.address)


def test_what_waited_for_room_when_its_sender_was_killed_is_received(workers, victim):
    full, peer = workers.member(f"victims:{next(RANKS)}", room_bytes=930), victim()
    address = full.address
    second = seen(full, "mail.letter", 2)
    peer.do(lambda mail: mail.send(bytes(900), address))
    waiting = peer.start(lambda mail: mail.send(b"no room for this one", address))
    assert second.wait(30)
    peer.kill()
    with pytest.raises(ClusterError):
        waiting.result(30)
    assert [len(full.mail.recv(peer.address, timeout=30)) for _ in range(2)] == [900, 20]
    with within(5), pytest.raises(WorkerDied):
        full.mail.recv(peer.address)


def test_a_worker_that_died_before_first_contact_is_an_error_of_send_and_recv(here, victim):
    peer = victim()
    peer.kill()
    with within(5):
        for attempt in (here.mail.recv, lambda address: here.mail.send(1, address)):
            with pytest.raises(WorkerDied, match=peer.address.get_name()):
                attempt(peer.address)


def test_a_group_whose_name_is_misspelt_is_an_error_that_knows_the_right_one(here):
    misspelt = WorkerAddress("victmis", 0)
    with within(5):
        attempts = [
            here.mail.recv(misspelt, async_op=True),
            here.mail.send(1, misspelt, async_op=True),
            here.mail.send_tensor(b"1", misspelt, async_op=True),
            here.mail.recv_tensor(bytearray(1), misspelt, async_op=True),
        ]
        for attempt in attempts:
            with pytest.raises(UnknownWorker, match=r"no group 'victmis'.*did you mean 'victims'"):
                attempt.wait(30)


def test_a_rank_that_does_not_exist_is_an_error_that_names_those_there_are(here):
    with within(5):
        for attempt in (here.mail.recv, lambda address: here.mail.send(1, address)):
            with pytest.raises(UnknownWorker, match=r"here has workers 0 to 0, and no 1"):
                attempt(WorkerAddress("here", 1))


def test_a_worker_that_is_being_started_is_waited_for(here, workers):
    sent = here.mail.send("early", WorkerAddress("witness", 0), async_op=True)
    got = here.mail.recv(WorkerAddress("witness", 0), async_op=True)
    witness = workers.remote("witness:0")
    assert sent.wait(20) is None
    assert witness.do(receive(1, HERE)) == ["early"]
    witness.do(lambda mail: mail.send("here I am", WorkerAddress("here", 0)))
    assert got.wait(20) == "here I am"


@NODES
@pytest.mark.parametrize("send", ["send", "send_tensor"])
def test_a_large_message_to_a_worker_that_is_killed_meanwhile_is_an_error(here, victim, send, node):
    peer = victim(node=node)
    peer.process.send_signal(signal.SIGSTOP)
    pending = getattr(here.mail, send)(np.zeros(30_000_000, np.uint8), peer.address, async_op=True)
    small = here.mail.send("behind it", peer.address, async_op=True)
    assert not pending.done()
    with within(5):
        peer.kill()
        for one in (pending, small):
            with pytest.raises(WorkerDied, match=peer.address.get_name()):
                one.wait(30)


@pytest.mark.parametrize(
    ("node", "send", "frame"),
    [
        ("", "send_tensor", ("mail.segment", 1)),
        ("a made-up one", "send_tensor", ("mail.piece", 2)),
        ("a made-up one", "send", ("mail.piece", 2)),
    ],
    ids=["shared", "streamed", "streamed object"],
)
def test_a_sender_killed_in_the_middle_of_a_message_leaves_nothing_half_delivered(here, victim, node, send, frame):
    peer = victim(node=node)
    peer.do(lambda mail: mail.send("before", WorkerAddress("here", 0)))
    killed = kill_at(here, peer, *frame)
    tensor = np.zeros(200_000_000, np.uint8)
    way = {
        "send": here.mail.recv,
        "send_tensor": lambda *args, **kwargs: here.mail.recv_tensor(tensor, *args, **kwargs),
    }
    waiting = way[send](peer.address, async_op=True)
    try:
        sending = peer.start(lambda mail: getattr(mail, send)(np.ones(200_000_000, np.uint8), WorkerAddress("here", 0)))
        with within(5):
            if send == "send":
                assert waiting.wait(30) == "before"
                waiting = here.mail.recv(peer.address, async_op=True)
            with pytest.raises(WorkerDied, match=peer.address.get_name()):
                waiting.wait(30)
        assert killed.is_set()
        with pytest.raises(ClusterError):
            sending.result(30)
    finally:
        killed.restore()


def test_an_object_outlives_the_worker_that_sent_it(here, victim):
    peer = victim()
    peer.do(lambda mail: mail.send(np.full(5_000_000, 7, np.uint8), WorkerAddress("here", 0)))
    got = here.mail.recv(peer.address, timeout=30)
    peer.kill()
    assert got.min() == got.max() == 7
    got[:] = 8
    assert got.min() == 8


def test_a_worker_that_was_started_again_is_reached_where_it_is_now(here, victim, workers):
    peer = victim()
    here.mail.send(1, peer.address)
    peer.kill()
    with pytest.raises(WorkerDied):
        here.mail.send(2, peer.address)
    client = DirectoryClient(workers.driver, workers.driver.endpoint)
    workers.driver.run(client.expect(peer.address), timeout=30)
    again = workers.remote(peer.address.get_name())
    here.mail.send(np.arange(100_000), peer.address, timeout=30)
    assert (again.do(receive(1, HERE))[0] == np.arange(100_000)).all()


def test_closing_ends_what_waits(workers, victim):
    member = workers.member(f"victims:{next(RANKS)}")
    peer = victim()
    waiting = member.mail.recv(peer.address, async_op=True)
    with within(5):
        member.mail.close()
        with pytest.raises(ClusterError, match="closed"):
            waiting.wait(30)
        with pytest.raises(ClusterError, match="closed"):
            member.mail.send(1, peer.address)


def test_memory_that_a_dead_worker_had_is_let_go(here, victim):
    peer = victim()
    here.mail.send(np.zeros(3_000_000, np.uint8), peer.address, timeout=30)
    assert here.mail._outbox.segments.n_lent == 1
    peer.kill()
    with pytest.raises(WorkerDied):
        here.mail.recv(peer.address, timeout=30)
    assert here.mail._outbox.segments.n_lent == 0
