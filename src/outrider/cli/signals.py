"""Signals, told to the innermost part of a command that listens to them, and to a thread if its loop may be blocked."""

import asyncio
import os
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_listeners: defaultdict[signal.Signals, list[Callable[[], object]]] = defaultdict(list)


@contextmanager
def listening(heard: Callable[[], object], *numbers: signal.Signals) -> Iterator[None]:
    """Within the block these signals call `heard`; after it they go to whoever listened before."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        _listeners[number].append(heard)
        loop.add_signal_handler(number, _tell, number)
    try:
        yield
    finally:
        for number in numbers:
            _listeners[number].pop()
            if not _listeners[number]:
                loop.remove_signal_handler(number)


@contextmanager
def overhearing(heard: Callable[[], object]) -> Iterator[None]:
    """Within the block `heard` is also called, in a thread, at each SIGINT and SIGTERM, though the loop be blocked.

    For a block within that of `listening`: the loop hears of its signals through here.
    """
    ours, its = socket.socketpair()
    its.setblocking(False)
    loops = signal.set_wakeup_fd(its.fileno(), warn_on_full_buffer=False)

    def relay() -> None:
        while numbers := ours.recv(4096):
            with suppress(BlockingIOError):  # the loop has enough to wake up for
                os.write(loops, numbers)
            for number in numbers:
                if number in (signal.SIGINT, signal.SIGTERM):
                    heard()

    thread = threading.Thread(target=relay, name="overhear signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(loops, warn_on_full_buffer=False)
        its.close()
        thread.join()
        ours.close()


def _tell(number: signal.Signals) -> None:
    _listeners[number][-1]()
