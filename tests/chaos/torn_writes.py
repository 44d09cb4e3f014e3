"""A program killed inside SQLite's own writes, again and again, each time by a child that goes on with the file.

Arguments: the store's URL, how many deaths, a seed. It must be started with the library of `torn_writes.c` preloaded.
"""

import asyncio
import ctypes
import os
import random
import signal
import sys

from outrider import RolloutConfig, RolloutRequest, open_store
from outrider.core.errors import LeaseLost
from outrider.core.event import EventKind
from store_moves import log

MOST_WRITES = 300
"""A child dies at the latest in this write."""


async def live(url: str, rng: random.Random) -> None:
    """Every kind of write, for ever."""
    async with open_store(url) as store:
        for number in range(10_000):
            worker = f"{os.getpid()}"
            size = rng.choice((1, 100, 20_000))
            config = RolloutConfig(unresponsive_seconds=rng.choice((0.05, 30.0)), max_attempts=100)
            requests = [RolloutRequest(input={"text": "x" * size}, config=config) for _ in range(rng.randrange(1, 4))]
            await store.enqueue_many_rollouts(requests)
            for claimed in await store.dequeue_many_rollouts(2, worker_id=worker):
                ids = claimed.rollout_id, claimed.attempt.attempt_id
                try:
                    await store.append_events(*ids, [log("said", text="y" * size)] * 2)
                    status = rng.choice(("succeeded", "failed", "cancelled"))
                    await store.update_attempt(*ids, status=status, events=[log(EventKind.LOG)])
                except LeaseLost:
                    continue
            await store.put_resources({"number": number})


def main(url: str, n_deaths: int, seed: int) -> None:
    rng = random.Random(seed)
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for _ in range(n_deaths):
        n_writes, tears, own = rng.randrange(1, MOST_WRITES), rng.randrange(2), rng.random()
        if (pid := os.fork()) == 0:
            library.torn_arm(ctypes.c_long(n_writes), tears)
            asyncio.run(live(url, random.Random(own)))
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"a child ended by itself: {status}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
