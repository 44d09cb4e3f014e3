"""Tensors that two workers of one GPU hand over there; a stand-in keeps the GPU's memory in this process."""

import threading
from collections.abc import Iterator
from itertools import count
from typing import ClassVar

import numpy as np
import pytest

from mailing import Member, World, world
from outrider.cluster.collective.devices import Gpus, Landing, Offer
from outrider.core.errors import CallLate, TensorMismatch, WorkerDied
from promptly import within

RANKS = count()
N_BYTES = 4_000_000


class OnGpu(np.ndarray):
    """An array that passes for a tensor on a GPU."""


def on_gpu(value: int, n_bytes: int = N_BYTES) -> OnGpu:
    return np.full(n_bytes, value, np.uint8).view(OnGpu)


class StandIn(Gpus):
    """A GPU of that name: what one of them offers, another can pull. `gate` keeps pulls waiting."""

    memory: ClassVar[dict[bytes, OnGpu]] = {}

    def __init__(self, name: str = "one") -> None:
        self.name = name
        self.gate = threading.Event()
        self.gate.set()
        self.has_begun = threading.Event()
        self.pulls: list[int] = []

    def is_far(self, tensor):
        return isinstance(tensor, OnGpu)

    def ready(self, tensors):
        return list(tensors)

    def offers(self, tensors):
        self.memory.update({str(id(tensor)).encode(): tensor for tensor in tensors.values()})
        return tuple(
            Offer(part, tensor.nbytes, self.name, 0, str(id(tensor)).encode(), 0) for part, tensor in tensors.items()
        )

    def has(self, offers):
        return all(offer.gpu == self.name for offer in offers)

    def landing(self, tensor=None):
        return Landing({}, tensor)

    def pull(self, offers, landing):
        self.pulls.append(offers[0].n_bytes)
        self.has_begun.set()
        assert self.gate.wait(20)
        landing.tensor[:] = self.memory[offers[0].handle]
        return {0: landing.tensor}


@pytest.fixture(scope="module")
def workers() -> Iterator[World]:
    with world(worker=40) as made:
        yield made


@pytest.fixture
def pair(workers):
    def born(*gpus: Gpus, **options: str) -> tuple[Member, ...]:
        return tuple(workers.member(f"worker:{next(RANKS)}", gpus=gpu, **options) for gpu in gpus)

    return born


def test_a_receiver_that_waits_copies_on_the_gpu(pair):
    gpu = StandIn()
    a, b = pair(StandIn(), gpu)
    targets = [on_gpu(0) for _ in range(3)]
    waiting = [b.mail.recv_tensor(target, a.address, async_op=True) for target in targets]
    for value in (1, 2, 3):
        a.mail.send_tensor(on_gpu(value), b.address, timeout=20)
    for one in waiting:
        one.wait(20)
    assert gpu.pulls == [N_BYTES] * 3
    assert [target[-1] for target in targets] == [1, 2, 3]


def test_what_nobody_asks_for_goes_through_the_hosts_memory(pair):
    gpu = StandIn()
    a, b = pair(StandIn(), gpu)
    for value in (1, 2):
        a.mail.send_tensor(on_gpu(value), b.address, timeout=20)
    target = on_gpu(0)
    for value in (1, 2):
        b.mail.recv_tensor(target, a.address, timeout=20)
        assert (target == value).all()
    assert gpu.pulls == []


@pytest.mark.parametrize("other", [StandIn("two"), Gpus()], ids=["another GPU", "no torch"])
def test_workers_without_a_gpu_in_common_use_the_hosts_memory(pair, other):
    a, b = pair(StandIn(), other)
    target = on_gpu(0)
    waiting = b.mail.recv_tensor(target, a.address, async_op=True)
    a.mail.send_tensor(on_gpu(7), b.address, timeout=20)
    waiting.wait(20)
    assert (target == 7).all()
    assert getattr(other, "pulls", []) == []


def test_another_node_gets_no_offer(pair):
    gpu = StandIn()
    (a,), (b,) = pair(StandIn()), pair(gpu, node="a made-up one")
    target = on_gpu(0)
    waiting = b.mail.recv_tensor(target, a.address, async_op=True)
    a.mail.send_tensor(on_gpu(7), b.address, timeout=20)
    waiting.wait(20)
    assert (target == 7).all()
    assert gpu.pulls == []


def test_a_buffer_in_the_hosts_memory_is_filled_by_way_of_it(pair):
    gpu = StandIn()
    a, b = pair(StandIn(), gpu)
    target = np.zeros(N_BYTES, np.uint8)
    waiting = b.mail.recv_tensor(target, a.address, async_op=True)
    a.mail.send_tensor(on_gpu(7), b.address, timeout=20)
    waiting.wait(20)
    assert (target == 7).all()
    assert gpu.pulls == []


def test_sending_ends_after_the_copy(pair):
    gpu = StandIn()
    a, b = pair(StandIn(), gpu)
    gpu.gate.clear()
    waiting = b.mail.recv_tensor(on_gpu(0), a.address, async_op=True)
    sending = a.mail.send_tensor(on_gpu(1), b.address, async_op=True)
    assert gpu.has_begun.wait(20)
    assert not sending.done()
    gpu.gate.set()
    sending.wait(20)
    waiting.wait(20)


def test_what_its_sender_gives_up_during_the_copy_is_not_received(pair):
    gpu = StandIn()
    a, b = pair(StandIn(), gpu)
    gpu.gate.clear()
    target = on_gpu(0)
    waiting = b.mail.recv_tensor(target, a.address, async_op=True)
    with pytest.raises(CallLate):
        a.mail.send_tensor(on_gpu(1), b.address, timeout=0.2)
    gpu.gate.set()
    a.mail.send_tensor(on_gpu(2), b.address, timeout=20)
    waiting.wait(20)
    assert (target == 2).all()


def test_a_receiver_that_gives_up_during_the_copy_leaves_it_to_the_next(pair):
    gpu = StandIn()
    a, b = pair(StandIn(), gpu)
    gpu.gate.clear()
    waiting = b.mail.recv_tensor(on_gpu(0), a.address, async_op=True, timeout=0.2)
    sending = a.mail.send_tensor(on_gpu(1), b.address, async_op=True)
    assert gpu.has_begun.wait(20)
    with pytest.raises(CallLate):
        waiting.wait(20)
    gpu.gate.set()
    sending.wait(20)
    target = on_gpu(0)
    b.mail.recv_tensor(target, a.address, timeout=20)
    assert (target == 1).all()


def test_a_sender_that_ends_during_the_copy_is_told(pair):
    gpu = StandIn()
    a, b = pair(StandIn(), gpu)
    gpu.gate.clear()
    waiting = b.mail.recv_tensor(on_gpu(0), a.address, async_op=True)
    a.mail.send_tensor(on_gpu(1), b.address, async_op=True)
    assert gpu.has_begun.wait(20)
    with within(5):
        a.close()
        with pytest.raises(WorkerDied):
            waiting.wait(20)
    gpu.gate.set()


def test_a_buffer_of_another_size_is_refused_and_what_came_for_it_dropped(pair):
    a, b = pair(StandIn(), StandIn())
    waiting = b.mail.recv_tensor(on_gpu(0, 2_000_000), a.address, async_op=True)
    a.mail.send_tensor(on_gpu(1), b.address, timeout=20)
    with pytest.raises(TensorMismatch, match="2000000"):
        waiting.wait(20)
    target = on_gpu(0)
    a.mail.send_tensor(on_gpu(2), b.address, timeout=20)
    b.mail.recv_tensor(target, a.address, timeout=20)
    assert (target == 2).all()


def test_without_torch_there_are_no_gpus():
    gpus = Gpus()
    assert not gpus.is_far(np.zeros(N_BYTES))
    assert gpus.landing().streams == {}
    assert not gpus.has([Offer(0, N_BYTES, "a GPU", 0, b"", 0)])
