"""Workers for tests of groups, in a module that their processes can import."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from outrider import open_store
from outrider.cluster import Cluster, Worker, WorkerGroup
from outrider.train import EnvManagerConfig, RolloutScheduler, SchedulerConfig


class Calculator(Worker):
    """Has no `__init__` of its own."""

    async def meet(self, n: int) -> int:
        """Ends when so many of these run at once in this worker."""
        met = self.__dict__.setdefault("met", asyncio.Condition())
        self.__dict__["there"] = self.__dict__.get("there", 0) + 1
        async with met:
            met.notify_all()
            await met.wait_for(lambda: self.__dict__["there"] >= n)
        return n

    def add(self, x, y=0):
        return 100 * self._rank + x + y

    def identity(self):
        return self._rank, self._world_size, self._local_rank, self._group_name, self.worker_address.get_name()

    def variables(self, *names):
        return [os.environ.get(name) for name in names]

    def pid(self):
        return os.getpid()

    def fail(self, rank):
        if self._rank == rank:
            raise KeyError("no such thing")
        return self._rank

    def fail_oddly(self):
        class Unknown(Exception):
            """No other process can know it."""

        raise Unknown("this and that")

    def leave(self):
        sys.exit(3)

    def lock(self):
        return threading.Lock()

    def die(self, rank):
        if self._rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._rank

    def hold(self, path):
        """Runs until the file is there."""
        while not Path(path).exists():
            time.sleep(0.01)
        return self._rank

    def hold_if(self, rank, path):
        return self.hold(path) if self._rank == rank else self._rank

    def write(self, path):
        Path(path).write_text(str(self._rank))

    async def forever(self, path):
        try:
            Path(f"{path}.began").touch()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            Path(path).touch()
            raise

    def overlap(self, n: int) -> bool:
        """Ends when so many threads of this worker are in it at once; False if they never are."""
        barrier = self.__dict__.setdefault("barrier", threading.Barrier(n))
        try:
            barrier.wait(30)
        except threading.BrokenBarrierError:
            return False
        return True

    def call_others(self, name, x):
        return WorkerGroup.from_group_name(Calculator, name).add(x).wait(30)

    def _secret(self):
        return None


class Broken(Worker):
    def __init__(self, rank):
        super().__init__()
        if self._rank == rank:
            raise ValueError(f"rank {rank} does not like it")
        time.sleep(60)


class Doomed(Worker):
    """Does not survive its own `__init__`."""

    def __init__(self):
        os.kill(os.getpid(), signal.SIGKILL)


class CountsPickles:
    """Counts, where it is pickled, how often it is."""

    n_pickled = 0

    def __init__(self, size):
        self.size = size

    def __reduce__(self):
        type(self).n_pickled += 1
        return CountsPickles, (self.size,)


class Parent(Worker):
    """Starts children in all ways there are."""

    def __init__(self, offset=0):
        self.offset = offset
        self.children = None

    def launch_children(self, n):
        group = Calculator.create_group().launch(self.cluster, ",".join(map(str, range(n))), parent=self)
        self.children = group
        return [info.address.get_name() for info in group.worker_info_list], group.pid().wait(30)

    def hear_from_process(self, program):
        self.start_program(program)
        return self.recv(self.worker_address.get_name(), 1, timeout=30)

    def start_program(self, program):
        return subprocess.Popen([sys.executable, "-c", program]).pid


class Clashing(Worker):
    def close(self):
        return None


def forking_driver_program() -> None:
    """A driver whose forked process outlives it and holds what the driver held."""
    with Cluster(local=True) as cluster:
        group = Calculator.create_group().launch(cluster)
        pids = group.pid().wait(30)
        forked = os.fork()
        if not forked:
            time.sleep(60)
            os._exit(0)
        print(forked, *pids, flush=True)
        time.sleep(60)


def driver_program() -> None:
    """A driver that starts workers and children, prints their process ids, and waits to be killed."""
    with Cluster(local=True, num_nodes=2) as cluster:
        group = Parent.create_group().launch(cluster)
        children = [pid for _, pids in group.launch_children(1).wait(30) for pid in pids]
        print(*[info.pid for info in group.worker_info_list], *children, flush=True)
        time.sleep(60)


class Trainer(Worker):
    """A trainer and its scheduler as an actor: like everyone else they need the store only."""

    async def train(self, store_url: str, n_steps: int) -> list[int]:
        config = SchedulerConfig(
            train_env_manager=EnvManagerConfig(tags=("FrozenLake",), num_env_groups=2, group_size=2),
            async_generation_ratio=1,
        )
        sizes = []
        async with open_store(store_url) as store, RolloutScheduler(store, config) as scheduler:
            for _ in range(n_steps):
                batch = await scheduler.get_batch(timeout=30)
                sizes.append(len(batch.batch.trajectories))
                await scheduler.publish()
        return sizes
