"""What every subject carries, and the clocks on it: this runs inside the workers of all of them.

The clock is the monotonic one, which all processes of a machine share.
"""

import multiprocessing
import os
import secrets
import signal
import socket
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from multiprocessing.connection import wait
from typing import Any

import numpy as np

TEXT = "x" * 950
PATIENCE_SECONDS = 60.0
N_WARM, N_WARM_ITEMS = 3, 32
BEFORE_KILL_SECONDS = 0.3

Span = tuple[float, float]


def item(number: int) -> dict[str, Any]:
    """1 KB when pickled."""
    return {"number": number, "text": TEXT, "reward": 0.5, "done": False}


def feed(n: int, at_once: int, put: Callable[[list[Any]], object]) -> Span:
    began = time.monotonic()
    for at in range(0, n, at_once):
        put([item(number) for number in range(at, min(at + at_once, n))])
    return began, time.monotonic()


def drain(n: int, n_producers: int, get: Callable[[int], Sequence[Any]]) -> Span:
    """Take what so many producers of `n` items put; `get` is told how many are left, and answers some."""
    began, left, total = time.monotonic(), n * n_producers, 0
    while left:
        items = get(left)
        left -= len(items)
        total += sum(each["number"] for each in items)
    ended = time.monotonic()
    if total != n_producers * n * (n - 1) // 2:
        raise AssertionError("other items were taken than were put")
    return began, ended


def items_per_second(n: int, fed: Sequence[Span], drained: Span) -> float:
    """From the first put until the last item has been taken."""
    return n * len(fed) / (drained[1] - min(began for began, _ in fed))


def array_of(n_bytes: int) -> Any:
    return (np.arange(n_bytes // 4) % 251).astype(np.float32)


def end_with_parent() -> None:
    """For a process of `multiprocessing`, whose parent may be killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


def new_token() -> str:
    return secrets.token_hex(8)


def send_paced(token: str, n: int, array: Any, send: Callable[[Any], object]) -> list[float]:
    """When each of `n` arrays was sent: one at a time, when the receiver says that it waits."""
    sent = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as pace:
        pace.settimeout(PATIENCE_SECONDS)
        pace.bind(f"\0outrider-bench-{token}")
        for number in range(n):
            array[0] = number
            pace.recv(1)
            sent.append(time.monotonic())
            send(array)
    return sent


def receive_paced(token: str, n: int, receive: Callable[[], Any]) -> tuple[list[float], list[float]]:
    """When each of `n` arrays was here, and when all of it had been read."""
    came, read = [], []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as pace:
        for number in range(n):
            _say_go(pace, f"\0outrider-bench-{token}")
            array = receive()
            came.append(time.monotonic())
            array.sum()
            read.append(time.monotonic())
            if array[0] != number:
                raise AssertionError("another array came than was sent")
            del array
    return came, read


def _say_go(pace: socket.socket, address: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            pace.sendto(b".", address)
        except ConnectionRefusedError:  # the sender is not there yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)
        else:
            return


def carried(sent: Iterable[float], came: Iterable[float], read: Iterable[float]) -> dict[str, float]:
    """The answer to `carry`. The first ones are left out: they make the connection, and find memory."""
    times = list(zip(sent, came, read, strict=True))[N_WARM:]
    return {
        "ms": 1000 * statistics.median(here - begun for begun, here, _ in times),
        "read_ms": 1000 * statistics.median(done - begun for begun, _, done in times),
    }


def median_ms(n: int, call: Callable[[], object]) -> float:
    times = []
    for _ in range(n):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


async def median_ms_async(n: int, call: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(n):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def ms_each(n: int, call: Callable[[], object]) -> float:
    """Of calls that are all made in one go."""
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began) / n


def told_when(operation: Callable[[], object]) -> tuple[float | None, str]:
    """When it raised an error, and which; no time if it raised none."""
    try:
        operation()
    except Exception as exc:  # noqa: BLE001 whatever it is, it is the answer
        return time.monotonic(), type(exc).__name__
    return None, "no error"


def kill(pid: int) -> float:
    """When it was killed."""
    now = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return now


def died(killed: float, operation: Callable[[], Any]) -> dict[str, Any]:
    """The answer to `die`: the operation raises what the death is to it, or returns what `told_when` said elsewhere."""
    answers: list[Any] = []
    told, raised = told_when(lambda: answers.append(operation()))
    if answers and isinstance(answers[0], tuple):
        told, raised = answers[0]
    return {"seconds": None if told is None else told - killed, "raised": raised}
