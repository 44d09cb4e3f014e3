"""Bringing a store up to date takes seconds for each million rollouts: those who wait for it are told."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

SLOW_SECONDS = 2.0

_MESSAGE = (
    "bringing %s from schema %d to %d, which takes about 10 s for each million rollouts; it happens once and is undone "
    "if it is interrupted"
)


@contextmanager
def announced(store: str, version: int, known: int) -> Iterator[None]:
    """Say what is going on, once it has taken `SLOW_SECONDS`."""
    timer = threading.Timer(
        SLOW_SECONDS,
        _log.warning,
        (_MESSAGE, store, version, known),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
