"""Workers for the tests of the worker interface; they are imported by the workers' processes too."""

import asyncio
import os
import socket
import time
from typing import Any

import numpy as np

from outrider.cluster import SpreadPlacementStrategy, Worker

SEND_GROUP_NAME = "send_worker_group"
RECV_GROUP_NAME = "recv_worker_group"
VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
AT_IMPORT = {name: os.environ.get(name) for name in VARIABLES}


class MyWorker(Worker):
    def __init__(self):
        super().__init__()
        self.at_init = {name: os.environ.get(name) for name in VARIABLES}

    def initialize(self):
        """What a process group needs: everybody meets rank 0 at the address that all of them have."""
        place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self._rank:
            with _connected(place) as met:
                met.sendall(b"1")
                return int.from_bytes(met.recv(4))
        with socket.create_server(place) as door:
            door.settimeout(20)
            others = [door.accept()[0] for _ in range(self._world_size - 1)]
            total = 1 + sum(int(other.recv(1)) for other in others)
            for other in others:
                other.sendall(total.to_bytes(4))
                other.close()
        return total

    def hello(self):
        return self._rank

    def variables(self):
        return AT_IMPORT, self.at_init

    def info(self):
        return self.worker_info

    def process(self):
        return os.getpid()

    def has_children(self):
        with MyWorker.create_group().launch(self.cluster, SpreadPlacementStrategy(2), parent=self) as children:
            return [info.address.get_name() for info in children.worker_info_list], children.hello().wait(20)


class SendWorker(Worker):
    def __init__(self):
        super().__init__()

    def hello_recv(self):
        msg = f"Hello from SendWorker Rank {self._rank}!"
        self.send(msg, dst_group_name=RECV_GROUP_NAME, dst_rank=self._rank)
        reply = self.recv(src_group_name=RECV_GROUP_NAME, src_rank=self._rank)

        dst_rank = (self._rank + 1) % self._world_size
        tensor = np.ones((1, 1), np.float32)
        self.send(tensor, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank)
        tensor_list = [np.float32(1.0).reshape(()) for _ in range(4)]
        self.send(tensor_list, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank)
        tensor_dict = {"tensor1": np.array(2.0), "tensor2": np.array(3.0)}
        self.send(tensor_dict, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank)

        tensor = np.ones((2, 1), np.float32)
        self.send_tensor(tensor, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank)
        return reply

    def hello_recv_async(self):
        dst_rank = (self._rank + 1) % self._world_size
        tensor = np.ones((3, 1), np.float32)
        async_send_work = self.send(tensor, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank, async_op=True)
        async_send_work.wait()

        async def send_tensor_async():
            tensor = np.ones((4, 1), np.float32)
            async_send_work = self.send(tensor, dst_group_name=RECV_GROUP_NAME, dst_rank=dst_rank, async_op=True)
            await async_send_work.async_wait()

        asyncio.run(send_tensor_async())


class RecvWorker(Worker):
    def __init__(self):
        super().__init__()

    def hello_recv(self):
        msg = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=self._rank)
        reply = f"Hello from RecvWorker Rank {self._rank}!"
        self.send(reply, dst_group_name=SEND_GROUP_NAME, dst_rank=self._rank)

        src_rank = (self._rank - 1) % self._world_size
        tensor = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank)
        tensor_list = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank)
        tensor_dict = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank)
        buffer = np.empty((2, 1), np.float32)
        self.recv_tensor(buffer, src_group_name=SEND_GROUP_NAME, src_rank=src_rank)
        sums = [float(sum(tensor_list)), float(sum(tensor_dict.values()))]
        return msg, tensor.tolist(), *sums, buffer.tolist()

    def hello_recv_async(self):
        src_rank = (self._rank - 1) % self._world_size
        async_recv_work = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank, async_op=True)
        tensor = async_recv_work.wait()

        async def recv_tensor_async():
            async_recv_work = self.recv(src_group_name=SEND_GROUP_NAME, src_rank=src_rank, async_op=True)
            return await async_recv_work.async_wait()

        return tensor.shape, asyncio.run(recv_tensor_async()).shape


class Producer(Worker):
    def produce(self, n_items: int) -> None:
        channel = self.create_channel("numbers", node_id=0, maxsize=2)
        for number in range(n_items):
            channel.put(number)


class Consumer(Worker):
    def consume(self, n_items: int) -> list[Any]:
        channel = self.connect_channel("numbers")
        return [channel.get(), *channel.get_batch(2), *(channel.get() for _ in range(n_items - 3))]


def _connected(place: tuple[str, int]) -> socket.socket:
    """A connection to rank 0, who may not have got so far yet."""
    ends_at = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(place, timeout=20)
        except ConnectionRefusedError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.01)
