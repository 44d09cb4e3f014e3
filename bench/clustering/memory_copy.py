"""One copy of an array inside one process: what no transport between processes on this machine can beat by far."""

import time

import numpy as np

from clustering import load
from clustering.names import COPY_FRESH
from subject import Answer, serve


async def nothing() -> Answer:
    return {}


async def carry(how: str, n_bytes: int, n: int) -> Answer:
    array = load.array_of(n_bytes)
    target = np.zeros_like(array)
    began, came, read = [], [], []
    for number in range(n + load.N_WARM):
        array[0] = number
        began.append(time.monotonic())
        if how == COPY_FRESH:
            target = array.copy()
        else:
            np.copyto(target, array)
        came.append(time.monotonic())
        target.sum()
        read.append(time.monotonic())
        if how == COPY_FRESH:
            del target
    return load.carried(began, came, read)


if __name__ == "__main__":
    serve({"open": nothing, "carry": carry, "close": nothing})
