"""The program of a worker process: `python -m outrider.runner.process`, started and fed by a supervisor."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

from outrider.core import wire
from outrider.core.errors import OutriderError
from outrider.runner.worker import EXIT_INVALID, EXIT_STOPPED, REASON, WorkerSpec, exit_by, open_runner, own_error


async def _work(spec: WorkerSpec) -> None:
    """Work until there is nothing more to do, a signal says stop, or the supervisor is gone."""
    async with open_runner(spec, _say) as runner:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop)
        threading.Thread(target=_watch_supervisor, args=(loop, runner.stop), daemon=True).start()
        await runner.iter()


def _watch_supervisor(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Standard input ends when the supervisor does."""
    while os.read(sys.stdin.fileno(), 4096):
        continue
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop)


def _say(line: str) -> None:
    """Print a line whole, so that lines of several workers do not mix; nobody may be left to read it."""
    try:
        os.write(sys.stdout.fileno(), f"{line}\n".encode())
    except BrokenPipeError:
        return


def _read_spec() -> WorkerSpec:
    size = int.from_bytes(sys.stdin.buffer.read(4))
    return wire.from_record(sys.stdin.buffer.read(size), WorkerSpec)


def main() -> int:
    """Exit code 0: nothing more to do; 2: something given cannot be used; 3: the run must stop; 1: anything else."""
    spec = _read_spec()
    logging.basicConfig(level=spec.log_level, format=f"Worker-{spec.index} %(levelname)s %(message)s")
    try:
        asyncio.run(_work(spec))
    except (OutriderError, ExceptionGroup) as raised:
        exc = own_error(raised)
        if not isinstance(exc, OutriderError):
            raise
        _say(REASON + " ".join(str(exc).splitlines()))
        ended = exit_by(exc)
        return EXIT_INVALID if ended.invalid else EXIT_STOPPED if ended.stops_run else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
