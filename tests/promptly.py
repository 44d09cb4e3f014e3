"""That something happens in time, on a machine that may be busy with something else, or stand still, meanwhile."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ray_nodes import descendants

TICK_SECONDS = 0.05


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer, not counting the time in which it had to wait for a CPU.

    It waits when a thread of this process, or of a process below it, can run and is given no turn.
    """
    stalled_seconds = 0.0
    over = threading.Event()

    def watch() -> None:
        nonlocal stalled_seconds
        last, waited = time.monotonic(), _waited()
        while not over.wait(TICK_SECONDS):
            now, waited_now = time.monotonic(), _waited()
            late = now - last - TICK_SECONDS
            longest = max((delay - waited.get(thread, 0.0) for thread, delay in waited_now.items()), default=0.0)
            stalled_seconds += min(max(late, longest), now - last)
            last, waited = now, waited_now

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
        f"took {took:.2f} s, of which {stalled_seconds:.2f} were spent waiting for a CPU"
    )


def _waited() -> dict[str, float]:
    """How long each thread of this process and those below it has waited for a CPU since it began."""
    found = {}
    for pid in (os.getpid(), *descendants(os.getpid())):
        with suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found
