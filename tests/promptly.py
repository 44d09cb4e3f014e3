"""That something happens in time, on a machine that may stand still meanwhile."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

TICK_SECONDS = 0.05


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer, not counting the time in which this process was given no turn."""
    stalled_seconds = 0.0
    over = threading.Event()

    def watch() -> None:
        nonlocal stalled_seconds
        last = time.monotonic()
        while not over.wait(TICK_SECONDS):
            now = time.monotonic()
            stalled_seconds += now - last - TICK_SECONDS
            last = now

    watcher = threading.Thread(target=watch, name="how late the machine is", daemon=True)
    began = time.monotonic()
    watcher.start()
    try:
        yield
        took = time.monotonic() - began
    finally:
        over.set()
        watcher.join()
    assert took - stalled_seconds < seconds, (
        f"took {took:.2f} s, of which the machine stood still {stalled_seconds:.2f}"
    )
