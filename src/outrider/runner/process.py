"""The program of a worker process, started by a supervisor: `python -m outrider.runner.process DESCRIPTOR MARK`.

Invariants:
- Nothing that an agent raises, in whatever task, ends the event loop; nothing it leaves behind keeps the process alive.
- How it ended is told over the channel. A process that ends without having told was ended by something else.
- A process that an agent forks off never runs this event loop.
"""

import asyncio
import atexit
import faulthandler
import logging
import os
import selectors
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import NoReturn

from outrider.core import wire
from outrider.core.errors import OutriderError
from outrider.core.forks import EXIT_FORKED
from outrider.core.loops import run_to_end
from outrider.core.undumpable import become_undumpable
from outrider.core.variables import withheld
from outrider.runner.channel import Report, WorkerEnd, WorkerExit
from outrider.runner.loop_watch import LoopWatch
from outrider.runner.runner import Runner
from outrider.runner.worker import WorkerSpec, exit_by, open_runner, own_error

EXIT_SECONDS = 5.0
"""How long the process may take to exit once its work is done: threads and exit handlers of agents may never end."""


class _WorkerSelector(selectors.DefaultSelector):
    """A selector for one process: a child that was forked off and comes back to the event loop ends here."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if os.getpid() != self._pid:
            os._exit(EXIT_FORKED)
        return super().select(timeout)


async def _work(spec: WorkerSpec, channel: WorkerEnd) -> WorkerExit:
    """Work until there is nothing more to do, a signal or the supervisor says stop, or the supervisor is gone."""
    loop = asyncio.get_running_loop()
    stopped_by: list[str] = []

    own_task = asyncio.current_task()
    runner: Runner | None = None
    n_run = 0

    def stop(name: str) -> None:
        stopped_by.append(name)
        if runner is not None:
            runner.stop()
        elif own_task is not None:  # it may wait for its store for long
            own_task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    watch = LoopWatch(spec.config.max_block_seconds, lambda found: channel.tell(Report(blockage=found)))

    def drain() -> None:
        watch.limit_to(spec.config.grace_seconds)
        loop.call_soon_threadsafe(stop, "")

    channel.listen(drain)
    try:
        async with open_runner(
            spec,
            lambda line: channel.tell(Report(line=line)),
            lambda reading: channel.tell(Report(reading=reading)),
            watch=watch,
            owns_process=True,
        ) as runner:
            channel.tell(Report())  # heard before agents' code runs, which may never let another word out
            channel.flush(EXIT_SECONDS)
            n_run = await runner.iter()
    except asyncio.CancelledError:
        if runner is not None or not stopped_by:
            raise
    if stopped_by and stopped_by[0]:
        return WorkerExit(failed=True, description=f"was stopped by a {stopped_by[0]} from outside")
    return WorkerExit(failed=False, description=f"ended after {n_run} rollouts")


async def _work_and_tell(spec: WorkerSpec, channel: WorkerEnd) -> int:
    """Work, and tell the supervisor how that ended; the exit code."""
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    if ready is not None:  # in a forked child nothing but the code that forked goes on
        os.register_at_fork(after_in_child=ready.clear)
    try:
        ended = await _work(spec, channel)
    except asyncio.CancelledError:
        ended = WorkerExit(failed=True, description="failed: code that it ran has cancelled all of its tasks")
    except BaseException as exc:  # noqa: BLE001 told to the supervisor
        if not isinstance(own_error(exc), OutriderError):
            traceback.print_exc()
        ended = exit_by(exc)
    channel.tell(Report(ended=ended))
    _exit_soon(int(ended.failed))
    return int(ended.failed)


def _exit_soon(code: int) -> None:
    """Exit whatever threads and exit handlers do."""

    def wait() -> None:
        time.sleep(EXIT_SECONDS)
        os._exit(code)

    threading.Thread(target=wait, name="exit", daemon=True).start()


def main() -> int:
    """The exit code is for people: the supervisor goes by what it is told."""
    become_undumpable()
    faulthandler.enable(os.dup(sys.stderr.fileno()), all_threads=False)  # whatever agents do to standard error
    channel = WorkerEnd(int(sys.argv[1]))
    spec = wire.from_record(channel.receive(), WorkerSpec)
    sys.path.extend(place for place in spec.path if place not in sys.path)
    logging.basicConfig(level=spec.log_level, format=f"Worker-{spec.index} %(levelname)s %(message)s")
    with withheld(spec.withheld, spec.pass_env):
        code = run_to_end(
            _work_and_tell(spec, channel), loop_factory=lambda: asyncio.SelectorEventLoop(_WorkerSelector())
        )
    channel.flush(EXIT_SECONDS)
    return code


def _exit(code: int) -> NoReturn:
    """Run exit handlers, as of agents, then end: taking the interpreter apart takes longer than all else at the end."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 as `multiprocessing` ends its processes
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit(main())
