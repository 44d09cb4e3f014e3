"""`multiprocessing.Queue` between processes that stay, in a process of its own."""

import multiprocessing
from multiprocessing.process import BaseProcess
from typing import Any

from clustering import load
from clustering.names import N_PRODUCERS
from subject import Answer, serve

SECONDS = 120.0


def produce(orders: Any, queue: Any, answers: Any) -> None:
    load.end_with_parent()
    while (n := orders.get()) is not None:
        answers.put(load.feed(n, 1, lambda items: queue.put(items[0])))


def consume(orders: Any, queue: Any, answers: Any) -> None:
    load.end_with_parent()
    while (order := orders.get()) is not None:
        answers.put(load.drain(*order, lambda _: [queue.get()]))


class Processes:
    """Four producers and a consumer."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.queue, self.fed, self.drained = context.Queue(), context.Queue(), context.Queue()
        self.orders = [context.Queue() for _ in range(5)]
        jobs = [(produce, (orders, self.queue, self.fed)) for orders in self.orders[:4]]
        jobs.append((consume, (self.orders[4], self.queue, self.drained)))
        self.all: list[BaseProcess] = [context.Process(target=job, args=args, daemon=True) for job, args in jobs]
        for process in self.all:
            process.start()

    def stream(self, n: int, n_producers: int) -> float:
        self.orders[4].put((n, n_producers))
        for orders in self.orders[:n_producers]:
            orders.put(n)
        fed = [self.fed.get(timeout=SECONDS) for _ in range(n_producers)]
        return load.items_per_second(n, fed, self.drained.get(timeout=SECONDS))

    def close(self) -> None:
        for orders in self.orders:
            orders.put(None)
        for process in self.all:
            process.join(timeout=10)


opened: list[Processes] = []


async def open_all() -> Answer:
    opened.append(Processes())
    opened[0].stream(10, 4)
    return {}


async def stream(case: str, n: int) -> Answer:
    rate = opened[0].stream(n, N_PRODUCERS[case])
    return {"items_per_second": rate, "n_items": n * N_PRODUCERS[case]}


async def close() -> Answer:
    opened.pop().close()
    return {}


if __name__ == "__main__":
    serve({"open": open_all, "stream": stream, "close": close})
