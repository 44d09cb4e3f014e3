"""Mail between workers in different processes: what is sent arrives as it was, in order, and within its deadline."""

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest

from mailing import Member, Remote, World, receive, send_back, world
from outrider.cluster.address import WorkerAddress
from outrider.cluster.collective import segments
from outrider.cluster.post import Endpoint
from outrider.core.errors import CallLate, ClusterError, InvalidInput, TensorMismatch, UnknownWorker
from outrider.testing import eventually

MB = 1_000_000
RANKS = count()


@pytest.fixture(scope="module")
def workers() -> Iterator[World]:
    threads = set(threading.enumerate())
    with world(here=1, near=1, far=1, other=40) as made:
        yield made
    for thread in set(threading.enumerate()) - threads:
        thread.join(5)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def here(workers) -> Member:
    return workers.member("here:0")


@pytest.fixture(scope="module")
def near(workers) -> Remote:
    return workers.remote("near:0")


@pytest.fixture(scope="module")
def far(workers) -> Remote:
    return workers.remote("far:0", node="a made-up one")


@pytest.fixture(params=["near", "far"])
def peer(request) -> Remote:
    return request.getfixturevalue(request.param)


@pytest.fixture
def others(workers) -> Callable[..., Member]:
    """Further workers in this process, each with a rank of its own."""

    def another(**options: object) -> Member:
        return workers.member(f"other:{next(RANKS)}", **options)

    return another


@pytest.mark.parametrize("size", [0, 1000, 100_000, 300_000, 7 * MB])
def test_an_object_arrives_as_it_was_sent_and_may_be_written_to(here, peer, size):
    array = np.frombuffer(bytearray(os.urandom(size)), np.uint8)
    item = {"a": array, "b": [array[: size // 2], "text", None], "c": (1, {2.5}), "d": bytes(array)}
    echo = peer.start(send_back(here.address))
    here.mail.send(item, peer.address, timeout=20)
    got = here.mail.recv(peer.address, timeout=20)
    echo.result(20)
    assert (got["a"] == array).all()
    assert (got["b"][0] == array[: size // 2]).all()
    assert (got["b"][1:], got["c"], got["d"]) == (["text", None], (1, {2.5}), bytes(array))
    got["a"][:] = 0


def test_an_object_of_thousands_of_small_arrays_arrives(here, peer):
    arrays = [np.full(3, number) for number in range(40_000)]
    address = here.address
    got = peer.start(lambda mail: [int(array[1]) for array in mail.recv(address, timeout=20)])
    here.mail.send(arrays, peer.address, timeout=20)
    assert got.result(20) == list(range(40_000))


def test_messages_of_all_sizes_sent_without_waiting_arrive_in_the_order_of_the_calls(here, peer):
    sizes = [(number * 7919) % 700_000 for number in range(100)]
    sent = [here.mail.send((n, b"x" * size), peer.address, async_op=True) for n, size in enumerate(sizes)]
    got = peer.do(receive(100, here.address))
    assert [(number, len(content)) for number, content in got] == list(enumerate(sizes))
    assert all(pending.wait(20) is None for pending in sent)


def test_messages_of_several_threads_arrive_in_the_order_of_their_calls(here, near):
    lock, calls, sent = threading.Lock(), [], []

    def send(thread: int) -> None:
        for number in range(50):
            with lock:
                calls.append((thread, number))
                sent.append(here.mail.send((thread, number), near.address, async_op=True))

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    got = near.do(receive(200, here.address))
    for thread in threads:
        thread.join(10)
    assert got == calls
    assert all(pending.wait(20) is None for pending in sent)


async def test_receivers_that_wait_are_served_in_the_order_of_their_calls(here, near):
    waiting = [here.mail.recv(near.address, async_op=True, timeout=20) for _ in range(20)]
    near.do(lambda mail: [mail.send(number, WorkerAddress("here", 0)) for number in range(20)])
    assert [await pending for pending in waiting] == list(range(20))


@pytest.mark.parametrize("is_awaited", [True, False], ids=["waiting", "later"])
@pytest.mark.parametrize("size", [0, 1000, 300_000, 20 * MB])
def test_a_tensor_arrives_in_the_buffer_that_waits_for_it(here, peer, size, is_awaited):
    tensor = np.frombuffer(os.urandom(32 * (size // 32)), np.float64).reshape(-1, 2, 2)
    buffer = np.zeros_like(tensor)

    def send(mail, tensor=tensor) -> None:
        mail.send_tensor(tensor, WorkerAddress("here", 0), timeout=20)

    if is_awaited:
        waiting = here.mail.recv_tensor(buffer, peer.address, async_op=True, timeout=20)
        peer.do(send)
        assert waiting.wait(20) is None
    else:
        peer.do(send)
        here.mail.recv_tensor(buffer, peer.address, timeout=20)
    assert buffer.tobytes() == tensor.tobytes()


@pytest.mark.parametrize("size", [100, MB])
def test_a_tensor_of_another_size_is_an_error_of_the_receiver_alone(here, peer, size):
    buffer = np.zeros((size, 2), np.float32)

    def send(mail, size=size) -> None:
        mail.send_tensor(np.ones(size, np.float32), WorkerAddress("here", 0), timeout=20)
        mail.send_tensor(np.ones(2 * size, np.float32), WorkerAddress("here", 0), timeout=20)

    sent = peer.start(send)
    words = rf"{4 * size} bytes from {peer.address.get_name()} .*\({size}, 2\) and type float32.* has {8 * size}"
    with pytest.raises(TensorMismatch, match=words):
        here.mail.recv_tensor(buffer, peer.address, timeout=20)
    here.mail.recv_tensor(buffer, peer.address, timeout=20)
    assert buffer.sum() == 2 * size
    sent.result(20)


def test_waiting_for_one_kind_while_the_other_came_is_an_error_that_says_so(others, near):
    buffer = np.zeros(10)
    first, second = others(mix_up_seconds=0.2), others(mix_up_seconds=0.2)
    places = first.address, second.address
    waiting = first.mail.recv(near.address, async_op=True, timeout=20)
    near.do(lambda mail: mail.send_tensor(np.ones(10), places[0]))
    with pytest.raises(ClusterError, match=r"recv waits for near:0, but .* tensor of 80 bytes.* recv_tensor"):
        waiting.wait(30)
    first.mail.recv_tensor(buffer, near.address, timeout=20)
    assert buffer.sum() == 10
    near.do(lambda mail: mail.send("text", places[1]))
    with pytest.raises(ClusterError, match=r"recv_tensor waits for near:0, but .* object .* with recv$"):
        second.mail.recv_tensor(buffer, near.address, timeout=20)
    assert second.mail.recv(near.address, timeout=20) == "text"


def test_one_kind_may_lie_unclaimed_while_a_thread_that_receives_it_is_busy(others, near):
    receiver = others(mix_up_seconds=0.05)
    place, buffer = receiver.address, bytearray(3)
    near.do(lambda mail: mail.send_tensor(b"one", place))
    receiver.mail.recv_tensor(buffer, near.address, timeout=20)
    waiting = receiver.mail.recv(near.address, async_op=True, timeout=20)
    near.do(lambda mail: mail.send_tensor(b"two", place))
    with pytest.raises(CallLate):
        waiting.wait(0.3)
    near.do(lambda mail: mail.send("three", place))
    assert waiting.wait(30) == "three"
    receiver.mail.recv_tensor(buffer, near.address, timeout=20)
    assert buffer == b"two"


def test_objects_and_tensors_are_queued_apart(here, near):
    near.do(
        lambda mail: (mail.send_tensor(b"tensor", WorkerAddress("here", 0)), mail.send(1, WorkerAddress("here", 0)))
    )
    buffer = bytearray(6)
    assert here.mail.recv(near.address, timeout=20) == 1
    here.mail.recv_tensor(buffer, near.address, timeout=20)
    assert buffer == b"tensor"


def test_a_worker_may_send_to_itself(here):
    array = np.arange(100_000)
    here.mail.send(array, here.address, timeout=20)
    assert (here.mail.recv(here.address, timeout=20) == array).all()


def test_a_deadline_that_passes_names_the_peer(here, near):
    with pytest.raises(CallLate, match=r"recv at here:0 from near:0 did not end within 0\.05 s"):
        here.mail.recv(near.address, timeout=0.05)
    with pytest.raises(CallLate, match=r"near:0"):
        here.mail.recv_tensor(bytearray(8), near.address, async_op=True, timeout=0.05).wait(30)
    near.do(lambda mail: mail.send("after all", WorkerAddress("here", 0)))
    assert here.mail.recv(near.address, timeout=20) == "after all"


@pytest.mark.parametrize("size", [60_000, 400_000])
def test_senders_wait_when_too_much_waits_for_the_receiver(here, others, size):
    full = others(room_bytes=2 * size + 1000)
    for number in range(2):
        here.mail.send((number, bytes(size)), full.address, timeout=20)
    with pytest.raises(CallLate, match=f"send from here:0 to {full.address.get_name()}"):
        here.mail.send(("late", bytes(size)), full.address, timeout=0.1)
    waiting = here.mail.send((2, bytes(size)), full.address, async_op=True, timeout=20)
    assert not waiting.done()
    assert [full.mail.recv(here.address, timeout=20)[0] for _ in range(2)] == [0, 1]
    assert waiting.wait(20) is None
    assert full.mail.recv(here.address, timeout=20)[0] == 2


def test_a_full_mailbox_lets_in_what_its_owner_waits_for(here, others):
    full, third = others(room_bytes=1000), others()
    here.mail.send(bytes(2000), full.address, timeout=20)
    behind = here.mail.send("behind", full.address, async_op=True, timeout=20)
    wanted = full.mail.recv(third.address, async_op=True, timeout=20)
    third.mail.send("wanted", full.address, timeout=20)
    assert wanted.wait(20) == "wanted"
    blocked = third.mail.send("also wanted", full.address, async_op=True, timeout=20)
    assert full.mail.recv(third.address, timeout=20) == "also wanted"
    assert not behind.done()
    assert [len(full.mail.recv(here.address, timeout=20)) for _ in range(2)] == [2000, 6]
    assert behind.wait(20) is blocked.wait(20) is None


def test_a_cancelled_receiver_leaves_the_message_to_the_next(here, near):
    given_up = here.mail.recv(near.address, async_op=True)
    assert given_up.cancel()
    near.do(lambda mail: [mail.send(number, WorkerAddress("here", 0)) for number in range(2)])
    assert [here.mail.recv(near.address, timeout=20) for _ in range(2)] == [0, 1]


class Slow:
    """Takes its time to be unpickled."""

    is_opening = threading.Event()
    may_go_on = threading.Event()

    def __reduce__(self) -> tuple[Callable[[], str], tuple[()]]:
        return opened_slowly, ()


def opened_slowly() -> str:
    Slow.is_opening.set()
    Slow.may_go_on.wait(30)
    return "opened"


def test_a_receiver_cancelled_while_it_opens_the_message_leaves_it_to_the_next(here, others):
    sender = others()
    given_up = here.mail.recv(sender.address, async_op=True)
    sender.mail.send(Slow(), here.address, timeout=20)
    assert Slow.is_opening.wait(30)
    assert given_up.cancel()
    Slow.may_go_on.set()
    assert here.mail.recv(sender.address, timeout=20) == "opened"


async def test_memory_that_is_still_used_is_not_written_to_and_free_memory_is_used_again(here, others):
    sender = others()
    segments_of = sender.mail._outbox.segments  # whether memory is used again shows in speed only
    kept = []
    for number in range(4):
        sender.mail.send(np.full(MB, number, np.uint8), here.address, timeout=20)
        kept.append(here.mail.recv(sender.address, timeout=20))
    assert [set(array.tolist()) for array in kept] == [{0}, {1}, {2}, {3}]
    assert segments_of.n_lent == 4
    part = kept[0][10:20]
    kept.clear()
    gc.collect()

    async def are_back() -> bool:
        return segments_of.n_lent == 1

    await eventually(are_back)
    n_free = segments_of.n_free_bytes
    await asyncio.to_thread(sender.mail.send, np.full(MB, 9, np.uint8), here.address, timeout=20)
    assert segments_of.n_free_bytes < n_free
    assert part.tolist() == [0] * 10
    assert (await asyncio.to_thread(here.mail.recv, sender.address, timeout=20)).min() == 9


def test_memory_that_the_receiver_cannot_open_is_streamed_instead(here, others, monkeypatch):
    sender = others()

    def refused(_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(segments, "_mapped", refused)
    for _ in range(2):
        sender.mail.send(np.arange(MB), here.address, timeout=20)
        assert (here.mail.recv(sender.address, timeout=20) == np.arange(MB)).all()
    buffer = np.zeros(MB)
    sender.mail.send_tensor(np.ones(MB), here.address, timeout=20)
    here.mail.recv_tensor(buffer, sender.address, timeout=20)
    assert buffer.sum() == MB


def test_what_cannot_be_pickled_is_refused_where_it_is_sent(here, near):
    with pytest.raises(InvalidInput, match=r"send from here:0 to near:0: this dict cannot be pickled"):
        here.mail.send({"lock": threading.Lock()}, near.address)


def test_a_letter_for_another_worker_is_refused(here, near, workers, others):
    class Misled:
        async def find(self, _: WorkerAddress) -> Endpoint:
            return await sender.directory.find(near.address)

        async def until_dead(self, _: WorkerAddress) -> str:
            await asyncio.Event().wait()
            return ""

    sender = others()
    sender.mail._peers._directory = Misled()  # what it knows is out of date
    with pytest.raises(UnknownWorker, match=r"here:0 is not here: near:0 has taken its place"):
        sender.mail.send(1, here.address, timeout=20)
