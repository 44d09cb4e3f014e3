"""Two processes that send tensors to each other by torch.distributed's gloo; runs in the environment of the peers."""

import multiprocessing
import os
import socket
from datetime import timedelta
from typing import Any

from clustering import load
from subject import Answer, serve

SECONDS = 120.0


def take_part(rank: int, port: int, orders: Any, answers: Any) -> None:
    import torch  # noqa: PLC0415 the process that starts this one does not need it
    import torch.distributed as group  # noqa: PLC0415

    load.end_with_parent()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    group.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS))
    while (order := orders.get()) is not None:
        token, n, n_bytes = order
        tensor = torch.from_numpy(load.array_of(n_bytes))

        def receive(tensor: Any = tensor) -> Any:
            group.recv(tensor, 0)
            return tensor

        if rank == 0:
            answers.put(load.send_paced(token, n, tensor, lambda tensor: group.send(tensor, 1)))
        else:
            answers.put(load.receive_paced(token, n, receive))
    group.destroy_process_group()


class Pair:
    """The two of them."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.orders = [context.Queue() for _ in range(2)]
        self.answers = [context.Queue() for _ in range(2)]
        self.all = [
            context.Process(target=take_part, args=(rank, port, self.orders[rank], self.answers[rank]), daemon=True)
            for rank in range(2)
        ]
        for process in self.all:
            process.start()

    def carry(self, n_bytes: int, n: int) -> Answer:
        token = load.new_token()
        for orders in self.orders:
            orders.put((token, n + load.N_WARM, n_bytes))
        sent = self.answers[0].get(timeout=SECONDS)
        return load.carried(sent, *self.answers[1].get(timeout=SECONDS))

    def close(self) -> None:
        for orders in self.orders:
            orders.put(None)
        for process in self.all:
            process.join(timeout=10)


opened: list[Pair] = []


async def open_pair() -> Answer:
    opened.append(Pair())
    opened[0].carry(1024, 1)
    return {}


async def carry(how: str, n_bytes: int, n: int) -> Answer:  # noqa: ARG001 there is one way
    return opened[0].carry(n_bytes, n)


async def close() -> Answer:
    opened.pop().close()
    return {}


if __name__ == "__main__":
    serve({"open": open_pair, "carry": carry, "close": close})
