"""Plain Ray in a process of its own: actors, its queue, its object store."""

import asyncio
import os
import time
from typing import Any

import ray
from ray.util.queue import Empty, Queue

from clustering import load
from clustering.names import (
    ASYNC,
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
    STORE_COPY,
    SYNC,
)
from subject import Answer, serve

RETRY_SECONDS = 0.001


@ray.remote(num_cpus=0)
class Actor:
    """One of a group."""

    def ping(self) -> None:
        return None

    def pid(self) -> int:
        return os.getpid()

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def feed(self, queue: Queue, case: str, n: int) -> load.Span:
        async def put_all(items: list[Any]) -> None:
            await asyncio.gather(*(queue.put_async(each) for each in items))

        if case == PIPELINED:
            with asyncio.Runner() as runner:
                return load.feed(n, AT_ONCE[case], lambda items: runner.run(put_all(items)))
        if case == BATCH:
            return load.feed(n, AT_ONCE[case], queue.put_nowait_batch)
        return load.feed(n, 1, lambda items: queue.put(items[0]))

    def drain(self, queue: Queue, case: str, n: int) -> load.Span:
        async def get_all(n_items: int) -> list[Any]:
            return await asyncio.gather(*(queue.get_async() for _ in range(n_items)))

        at_once, n_producers = AT_ONCE[case], N_PRODUCERS[case]
        if case == PIPELINED:
            with asyncio.Runner() as runner:
                return load.drain(n, n_producers, lambda left: runner.run(get_all(min(left, at_once))))
        if case == BATCH:
            return load.drain(n, n_producers, lambda left: get_batch(queue, min(left, at_once)))
        return load.drain(n, n_producers, lambda _: [queue.get()])

    def make(self, n_bytes: int) -> None:
        self.array = load.array_of(n_bytes)

    def give(self, number: int) -> Any:
        self.array[0] = number
        return self.array

    def fetch(self, giver: Any, n: int, copies: bool) -> tuple[list[float], list[float], list[float]]:
        asked, came, read = [], [], []
        for number in range(n):
            asked.append(time.monotonic())
            array = ray.get(giver.give.remote(number))
            if copies:
                array = array.copy()
            came.append(time.monotonic())
            array.sum()
            read.append(time.monotonic())
            assert array[0] == number
            del array
        return asked, came, read

    def wait_for(self, peer: Any) -> tuple[float, str]:
        return load.told_when(lambda: ray.get(peer.rest.remote(60), timeout=HANG_SECONDS))

    def wait_in(self, queue: Queue) -> tuple[float, str]:
        return load.told_when(queue.get)


def get_batch(queue: Queue, n: int) -> list[Any]:
    """Its batches do not wait: one has to ask again."""
    while True:
        try:
            return queue.get_nowait_batch(n)
        except Empty:
            time.sleep(RETRY_SECONDS)


groups: dict[int, list[Any]] = {}
queues: list[Queue] = []
doomed: list[Any] = []


async def open_cluster() -> Answer:
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    return {}


async def launch(size: int) -> Answer:
    """A group that has answered."""
    groups[size] = [Actor.remote() for _ in range(size)]
    ray.get([actor.ping.remote() for actor in groups[size]])
    return {}


async def call(size: int, how: str, n: int) -> Answer:
    actors = groups[size]

    def refs() -> list[Any]:
        return [actor.ping.remote() for actor in actors]

    def many() -> None:
        for each in [refs() for _ in range(N_MANY)]:
            ray.get(each)

    if how == SYNC:
        return {"ms": load.median_ms(n, lambda: ray.get(refs()))}
    if how == ASYNC:
        return {"ms": await load.median_ms_async(n, lambda: asyncio.gather(*refs()))}
    assert how == MANY
    return {"ms": load.ms_each(N_MANY, many)}


async def stream(case: str, n: int) -> Answer:
    """`n` items from each producer."""
    if not queues:
        queues.append(Queue())
    producers, consumer = groups[4][: N_PRODUCERS[case]], groups[1][0]

    def once(n: int) -> float:
        drained = consumer.drain.remote(queues[0], case, n)
        fed = ray.get([producer.feed.remote(queues[0], case, n) for producer in producers])
        return load.items_per_second(n, fed, ray.get(drained))

    once(load.N_WARM_ITEMS)
    return {"items_per_second": once(n), "n_items": n * len(producers)}


async def carry(how: str, n_bytes: int, n: int) -> Answer:
    giver, taker = groups[4][0], groups[1][0]
    ray.get(giver.make.remote(n_bytes))
    return load.carried(*ray.get(taker.fetch.remote(giver, n + load.N_WARM, how == STORE_COPY)))


async def doom(how: str) -> Answer:
    """Have somebody wait for something that `die` will kill."""
    victim, waiter = Actor.remote(), Actor.remote()
    pid = ray.get(victim.pid.remote())
    if how == CHANNEL_DIES:
        queue = Queue()
        pid = ray.get(queue.actor.__ray_call__.remote(lambda _: os.getpid()))
        waiting = waiter.wait_in.remote(queue)
    elif how == RECV_DIES:
        waiting = waiter.wait_for.remote(victim)
    else:
        assert how == CALL_DIES
        waiting = victim.rest.remote(60)
    doomed[:] = [pid, waiting]
    await asyncio.sleep(load.BEFORE_KILL_SECONDS)
    return {}


async def die() -> Answer:
    pid, waiting = doomed
    killed = load.kill(pid)
    return load.died(killed, lambda: ray.get(waiting, timeout=HANG_SECONDS))


async def close() -> Answer:
    groups.clear()
    queues.clear()
    ray.shutdown()
    return {}


if __name__ == "__main__":
    works = {"open": open_cluster, "close": close}
    serve(works | {work.__name__: work for work in (launch, call, stream, carry, doom, die)})
