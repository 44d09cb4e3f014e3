"""A trainer in a process of its own: takes batches, notes each in a journal that survives it, publishes.

Started again, it goes on by itself. Arguments: the store's URL, the journal, and after how many acknowledged batches it
is done. With `freeze` before them it takes one batch and waits for a line of input, to see what it can do by then.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from outrider import open_store
from outrider.core.errors import LedgerLost
from outrider.core.ledger import GroupState
from outrider.store import Store
from outrider.train.delivery import RolloutBatch
from outrider.train.scheduler import RolloutScheduler
from walking import CONFIG, LEDGER

TRAIN_SECONDS = 0.05
PAUSED_EVERY = 5
"""How often a step also loads its weights while model calls are paused."""


def note(journal: Path, line: dict[str, Any]) -> None:
    """Append a line that no crash takes away again."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def line_of(batch: RolloutBatch) -> dict[str, Any]:
    return {
        "number": batch.number,
        "version": batch.version,
        "staleness": batch.batch.staleness.tolist(),
        "groups": {group.group_id: [one.rollout_id for one in group.trajectories] for group in batch.batch.groups},
    }


async def is_done(store: Store, n_batches: int) -> bool:
    acknowledged = await store.query_groups(LEDGER, states=[GroupState.ACKNOWLEDGED], batch=n_batches - 1, limit=0)
    return acknowledged.total > 0


async def train(url: str, journal: Path, n_batches: int) -> None:
    async with open_store(url) as store, RolloutScheduler(store, CONFIG, name=LEDGER) as scheduler:
        while not await is_done(store, n_batches):
            batch = await scheduler.get_batch()
            note(journal, line_of(batch))
            await asyncio.sleep(TRAIN_SECONDS)
            if batch.number % PAUSED_EVERY == 0:
                await scheduler.pause()
            await scheduler.publish()
            if batch.number % PAUSED_EVERY == 0:
                await scheduler.resume()
        await scheduler.stop(abort=True)


async def freeze(url: str, journal: Path) -> None:
    async with open_store(url) as store:
        scheduler = RolloutScheduler(store, CONFIG, name=LEDGER)
        await scheduler.start()
        batch = await scheduler.get_batch()
        note(journal, line_of(batch))
        print("taken", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        acts: dict[str, Any] = {
            "publish": scheduler.publish,
            "acknowledge": lambda: scheduler.acknowledge(batch),
            "pause": scheduler.pause,
            "get_batch": scheduler.get_batch,
        }
        for name, act in acts.items():
            try:
                await act()
                print(f"{name}: accepted", flush=True)
            except LedgerLost:
                print(f"{name}: refused", flush=True)
        await scheduler.stop(abort=True)
        print("stopped", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "freeze":
        asyncio.run(freeze(sys.argv[2], Path(sys.argv[3])))
    else:
        asyncio.run(train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
