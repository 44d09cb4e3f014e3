"""The program of a worker's process on a local cluster: `python -m outrider.cluster.engines.process`.

It reads who to be from its standard input, and ends when that ends.
"""

import atexit
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import BinaryIO

import msgspec

from outrider.cluster.engines.local import LENGTH_BYTES, Order
from outrider.cluster.failure import Failure
from outrider.cluster.post import Post
from outrider.cluster.seat import Seated
from outrider.core.decoding import msgpack_decoder

GRACE_SECONDS = 2.0
REPORT_SECONDS = 10.0


def main() -> None:
    """Be a worker, until the starter says that it is over, or is gone."""
    atexit.register(_end_session)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    lifeline = _take_stdin()
    order = _read(lifeline)
    seated = Seated(order.spec)
    threading.Thread(target=_end_with, args=(lifeline, order, seated), name="lifeline", daemon=True).start()
    failure = seated.open()
    _report(seated, order, failure)
    if failure is not None:
        return
    seated.desk.staff((order.spec.max_concurrency or 1) - 1, f"desk of {order.spec.address}")
    seated.desk.serve()
    seated.close()


def _take_stdin() -> BinaryIO:
    """The pipe from the starter. The user's code finds an empty standard input instead."""
    lifeline = os.fdopen(os.dup(0), "rb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return lifeline


def _read(lifeline: BinaryIO) -> Order:
    length = int.from_bytes(lifeline.read(LENGTH_BYTES), "big")
    text = lifeline.read(length)
    if not length or len(text) < length:
        sys.exit("the program that started this worker is gone")
    order: Order = msgpack_decoder(Order).decode(text)
    return order


def _report(seated: Seated, order: Order, failure: Failure | None) -> None:
    """Tell the starter how the start went; a post that the failure has closed is replaced for the purpose."""
    spec = order.spec
    post = seated.station.post if seated.station is not None and failure is None else Post(spec.address, spec.key)
    endpoint = msgspec.to_builtins(post.endpoint)
    told = None if failure is None else msgspec.to_builtins(failure, builtin_types=(bytes,))

    async def tell() -> None:
        link = await post.link(order.starter)
        await link.ask("seat.opened", (spec.seat_id, endpoint, told))

    post.run(tell(), timeout=REPORT_SECONDS)
    if failure is not None:
        post.close()


def _end_with(lifeline: BinaryIO, order: Order, seated: Seated) -> None:
    """Wait until it is over, then end in order, or by force if a method goes on too long."""
    _until_over(lifeline, order.starter_pid)
    seated.desk.stop()
    time.sleep(GRACE_SECONDS)
    _end_session()


def _until_over(lifeline: BinaryIO, starter_pid: int) -> None:
    """Wait for the end of the pipe, or of the process that started this one."""
    watched: list[BinaryIO | int] = [lifeline]
    if hasattr(os, "pidfd_open"):
        try:
            watched.append(os.pidfd_open(starter_pid))
        except ProcessLookupError:
            return
        if os.getppid() != starter_pid:
            return
    select.select(watched, [], [])


def _end_session() -> None:
    """End this process and all that it started in its session."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with suppress(ProcessLookupError):  # not the leader of a session: somebody runs the program by hand
        os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
