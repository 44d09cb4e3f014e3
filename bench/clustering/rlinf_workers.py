"""RLinf 0.3.0 in a process of its own: its worker groups, channel, and send and recv. Runs in the peers' environment.

Its `Cluster` joins any Ray that it finds on the machine, whosever that is, unless RAY_ADDRESS names one: so it is not
made before there is one for it alone.
"""

import asyncio
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from typing import Any

import ray
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker

from clustering import load
from clustering.names import (
    ASYNC,
    ASYNC_RECV_DIES,
    AT_ONCE,
    BATCH,
    CALL_DIES,
    CHANNEL_DIES,
    HANG_SECONDS,
    MANY,
    N_MANY,
    N_PRODUCERS,
    PIPELINED,
    RECV_DIES,
    RLINF_TENSOR,
    SYNC,
)
from subject import Answer, serve

OWN_RAY = """
import sys, ray
told = ray.init(address="local", include_dashboard=True, log_to_driver=False)
print(told.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


class Peer(Worker):
    """One of a group."""

    def __init__(self) -> None:
        Worker.__init__(self)

    def ping(self) -> None:
        return None

    def pid(self) -> int:
        return os.getpid()

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def feed(self, channel: Any, case: str, n: int) -> load.Span:
        def put_all(items: list[Any]) -> None:
            for handle in [channel.put(each, async_op=True) for each in items]:
                handle.wait()

        if case == PIPELINED:
            return load.feed(n, AT_ONCE[case], put_all)
        return load.feed(n, 1, lambda items: channel.put(items[0], weight=1))

    def drain(self, channel: Any, case: str, n: int) -> load.Span:
        def get_all(n_items: int) -> list[Any]:
            return [handle.wait() for handle in [channel.get(async_op=True) for _ in range(n_items)]]

        at_once, n_producers = AT_ONCE[case], N_PRODUCERS[case]
        if case == PIPELINED:
            return load.drain(n, n_producers, lambda left: get_all(min(left, at_once)))
        if case == BATCH:
            return load.drain(n, n_producers, lambda left: channel.get_batch(target_weight=min(left, at_once)))
        return load.drain(n, n_producers, lambda _: [channel.get()])

    def give(self, token: str, n: int, n_bytes: int, to: str, as_tensor: bool) -> list[float]:
        import torch  # noqa: PLC0415 imported by rlinf in the worker already

        send = self.send_tensor if as_tensor else self.send
        return load.send_paced(token, n, torch.from_numpy(load.array_of(n_bytes)), lambda tensor: send(tensor, to, 0))

    def take(self, token: str, n: int, n_bytes: int, of: str, as_tensor: bool) -> tuple[list[float], list[float]]:
        import torch  # noqa: PLC0415

        tensor = torch.from_numpy(load.array_of(n_bytes))

        def receive() -> Any:
            if not as_tensor:
                return self.recv(of, 0)
            self.recv_tensor(tensor, of, 0)
            return tensor

        return load.receive_paced(token, n, receive)

    def greet(self, to: str) -> None:
        self.send("hello", to, 0)

    def wait_for(self, of: str, is_async: bool) -> tuple[float, str]:
        self.recv(of, 0)
        if is_async:
            return load.told_when(lambda: self.recv(of, 0, async_op=True).wait())
        return load.told_when(lambda: self.recv(of, 0))

    def wait_in(self, channel: Any) -> tuple[float, str]:
        channel.get()
        return load.told_when(channel.get)


class Group:
    """A launched group and its name."""

    numbers = itertools.count()

    def __init__(self, size: int) -> None:
        self.name = f"peers{next(self.numbers)}"
        placement = NodePlacementStrategy([0] * size)
        self.workers = Peer.create_group().launch(cluster[0], placement, name=self.name)


cluster: list[Any] = []
groups: dict[int, Group] = {}
channels: list[Any] = []
doomed: list[Any] = []
head: list[subprocess.Popen[str]] = []


def start_ray() -> str:
    """The address of a Ray that nobody else uses."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_RAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    head.append(process)
    address = process.stdout.readline().strip()
    if not re.fullmatch(r"[\w.:\[\]]+:\d+", address):
        raise RuntimeError(f"no Ray of its own could be started for RLinf (it said {address!r})")
    return address


async def open_cluster() -> Answer:
    os.environ["RAY_ADDRESS"] = start_ray()
    cluster.append(Cluster(num_nodes=1))
    return {}


async def launch(size: int) -> Answer:
    groups[size] = Group(size)
    groups[size].workers.ping().wait()
    return {}


async def call(size: int, how: str, n: int) -> Answer:
    workers = groups[size].workers

    def many() -> None:
        for handle in [workers.ping() for _ in range(N_MANY)]:
            handle.wait()

    if how == SYNC:
        return {"ms": load.median_ms(n, lambda: workers.ping().wait())}
    if how == ASYNC:
        return {"ms": await load.median_ms_async(n, lambda: workers.ping().async_wait())}
    assert how == MANY
    return {"ms": load.ms_each(N_MANY, many)}


async def stream(case: str, n: int) -> Answer:
    """Puts come one by one: it has no call for many."""
    if not channels:
        channels.append(Channel.create("stream"))
    n_producers = N_PRODUCERS[case]

    def once(n: int) -> float:
        drained = groups[1].workers.drain(channels[0], case, n)
        producers = groups[4].workers.execute_on(*range(n_producers))
        fed = producers.feed(channels[0], case, n).wait()
        return load.items_per_second(n, fed, drained.wait()[0])

    once(load.N_WARM_ITEMS)
    return {"items_per_second": once(n), "n_items": n * n_producers}


async def carry(how: str, n_bytes: int, n: int) -> Answer:
    token, as_tensor = load.new_token(), how == RLINF_TENSOR
    giver, taker = groups[4], groups[1]
    sent = giver.workers.execute_on(0).give(token, n + load.N_WARM, n_bytes, taker.name, as_tensor)
    came = taker.workers.take(token, n + load.N_WARM, n_bytes, giver.name, as_tensor)
    return load.carried(sent.wait()[0], *came.wait()[0])


async def doom(how: str) -> Answer:
    victim, waiter = Group(1), Group(1)
    pid = victim.workers.pid().wait()[0]
    if how == CHANNEL_DIES:
        channel = Channel.create("doomed")
        actor = channel._main_channel_worker_actor  # noqa: SLF001 there is no other way to it
        pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
        waiting = waiter.workers.wait_in(channel)
        channel.put("hello")
    elif how == CALL_DIES:
        waiting = victim.workers.rest(60)
    else:
        assert how in (RECV_DIES, ASYNC_RECV_DIES)
        waiting = waiter.workers.wait_for(victim.name, how == ASYNC_RECV_DIES)
        victim.workers.greet(waiter.name).wait()
    doomed[:] = [pid, waiting]
    await asyncio.sleep(load.BEFORE_KILL_SECONDS)
    return {}


async def die() -> Answer:
    pid, waiting = doomed
    answers: list[Answer] = []
    killed = load.kill(pid)

    def wait() -> Any:
        return waiting.wait()[0]

    waiter = threading.Thread(target=lambda: answers.append(load.died(killed, wait)), daemon=True)
    waiter.start()
    await asyncio.to_thread(waiter.join, HANG_SECONDS)
    return answers[0] if answers else {"seconds": HANG_SECONDS, "raised": f"nothing within {HANG_SECONDS:g} s"}


async def close() -> Answer:
    ray.shutdown()
    for process in head:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=20)
    return {}


if __name__ == "__main__":
    works = {"open": open_cluster, "close": close}
    serve(works | {work.__name__: work for work in (launch, call, stream, carry, doom, die)})
