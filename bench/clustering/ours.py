"""Outrider in a process of its own: worker groups, channels, send and recv; on a Ray of its own, or without."""

import asyncio
import os
import time
from typing import Any

import numpy as np

from clustering import load
from clustering.names import (
    ASYNC,
    ASYNC_RECV_DIES,
    AT_ONCE,
    BATCH,
    CALL_DIES,
    CHANNEL_DIES,
    HANG_SECONDS,
    LOCAL_TENSOR,
    MANY,
    N_MANY,
    N_PRODUCERS,
    PIPELINED,
    RECV_DIES,
    SYNC,
    US_TENSOR,
)
from outrider.cluster import Cluster, NodePlacementStrategy, Worker, WorkerGroup
from outrider.cluster.channel import Channel
from subject import Answer, serve


class Peer(Worker):
    """One of a group."""

    def ping(self) -> None:
        return None

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def feed(self, channel: Channel, case: str, n: int) -> load.Span:
        def put_all(items: list[Any]) -> None:
            for handle in [channel.put(each, async_op=True) for each in items]:
                assert handle is not None
                handle.wait()

        if case == PIPELINED:
            return load.feed(n, AT_ONCE[case], put_all)
        if case == BATCH:
            return load.feed(n, AT_ONCE[case], channel.put_many)
        return load.feed(n, 1, lambda items: channel.put(items[0]))

    def drain(self, channel: Channel, case: str, n: int) -> load.Span:
        def get_all(n_items: int) -> list[Any]:
            return [handle.wait() for handle in [channel.get(async_op=True) for _ in range(n_items)]]

        at_once, n_producers = AT_ONCE[case], N_PRODUCERS[case]
        if case == PIPELINED:
            return load.drain(n, n_producers, lambda left: get_all(min(left, at_once)))
        if case == BATCH:
            return load.drain(n, n_producers, lambda left: channel.get_batch(min(left, at_once)))
        return load.drain(n, n_producers, lambda _: [channel.get()])

    def give(self, token: str, n: int, n_bytes: int, to: str, as_tensor: bool) -> list[float]:
        send = self.send_tensor if as_tensor else self.send
        return load.send_paced(token, n, load.array_of(n_bytes), lambda array: send(array, to, 0))

    def take(self, token: str, n: int, n_bytes: int, of: str, as_tensor: bool) -> tuple[list[float], list[float]]:
        array = np.zeros(n_bytes // 4, np.float32)

        def receive() -> Any:
            if not as_tensor:
                return self.recv(of, 0)
            self.recv_tensor(array, of, 0)
            return array

        return load.receive_paced(token, n, receive)

    def wait_for(self, of: str, is_async: bool) -> tuple[float, str]:
        if is_async:
            return load.told_when(lambda: self.recv(of, 0, async_op=True).wait(HANG_SECONDS))
        return load.told_when(lambda: self.recv(of, 0, timeout=HANG_SECONDS))

    def wait_in(self, channel: Channel) -> tuple[float, str]:
        return load.told_when(lambda: channel.get(timeout=HANG_SECONDS))


clusters: list[Cluster] = []
groups: dict[int, WorkerGroup[Peer]] = {}
channels: list[Channel] = []
doomed: list[Any] = []


async def open_cluster(local: bool) -> Answer:
    os.environ.pop("RAY_ADDRESS", None)
    clusters.append(Cluster(local=local))
    return {}


def started(size: int) -> WorkerGroup[Peer]:
    placement = NodePlacementStrategy([0] * size)
    return Peer.create_group().launch(clusters[0], placement, name=f"peers {load.new_token()}")


async def launch(size: int) -> Answer:
    groups[size] = started(size)
    groups[size].ping().wait()
    return {}


async def call(size: int, how: str, n: int) -> Answer:
    group = groups[size]

    def many() -> None:
        for handle in [group.ping() for _ in range(N_MANY)]:
            handle.wait()

    async def one() -> None:
        await group.ping()

    if how == SYNC:
        return {"ms": load.median_ms(n, lambda: group.ping().wait())}
    if how == ASYNC:
        return {"ms": await load.median_ms_async(n, one)}
    assert how == MANY
    return {"ms": load.ms_each(N_MANY, many)}


async def stream(case: str, n: int) -> Answer:
    if not channels:
        channels.append(Channel.create("stream", cluster=clusters[0]))
    producers = groups[4].execute_on(*range(N_PRODUCERS[case]))

    def once(n: int) -> float:
        drained = groups[1].drain(channels[0], case, n)
        fed = producers.feed(channels[0], case, n).wait()
        return load.items_per_second(n, fed, drained.wait()[0])

    once(load.N_WARM_ITEMS)
    return {"items_per_second": once(n), "n_items": n * N_PRODUCERS[case]}


async def carry(how: str, n_bytes: int, n: int) -> Answer:
    token, as_tensor = load.new_token(), how in (US_TENSOR, LOCAL_TENSOR)
    giver, taker = groups[4], groups[1]
    sent = giver.execute_on(0).give(token, n + load.N_WARM, n_bytes, taker.name, as_tensor)
    came = taker.take(token, n + load.N_WARM, n_bytes, giver.name, as_tensor)
    return load.carried(sent.wait()[0], *came.wait()[0])


async def doom(how: str) -> Answer:
    """Have somebody wait for something that `die` will kill."""
    victim, waiter = started(1), started(1)
    pid = victim.worker_info_list[0].pid
    if how == CHANNEL_DIES:
        name = f"doomed {load.new_token()}"
        channel = Channel.create(name, cluster=clusters[0])
        (info,) = clusters[0].post.run(clusters[0].directory.group(f"channel {name}"), timeout=10)
        assert info is not None
        pid, waiting = info.pid, waiter.wait_in(channel)
    elif how == CALL_DIES:
        waiting = victim.rest(60)
    else:
        assert how in (RECV_DIES, ASYNC_RECV_DIES)
        waiting = waiter.wait_for(victim.name, how == ASYNC_RECV_DIES)
    doomed[:] = [pid, waiting, victim, waiter]
    await asyncio.sleep(load.BEFORE_KILL_SECONDS)
    return {}


async def die() -> Answer:
    pid, waiting, *both = doomed
    answer = load.died(load.kill(pid), lambda: waiting.wait(HANG_SECONDS)[0])
    for group in both:
        group.close()
    return answer


async def close() -> Answer:
    channels.clear()
    groups.clear()
    clusters.pop().close()
    return {}


if __name__ == "__main__":
    works = {"open": open_cluster, "close": close}
    serve(works | {work.__name__: work for work in (launch, call, stream, carry, doom, die)})
