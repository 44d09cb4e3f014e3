"""Signals, told to the innermost part of a command that listens to them."""

import asyncio
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


def _tell(number: signal.Signals) -> None:
    _listeners[number][-1]()
