"""Running an event loop to the end of one piece of work, whatever other code does to the loop meanwhile."""

import asyncio
import ctypes
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from outrider.core.errors import described

R = TypeVar("R")

_log = logging.getLogger(__name__)

LEFTOVER_SECONDS = 3.0
"""How long tasks that are left when the work is done may take to end once they are cancelled."""


def run_to_end(
    work: Coroutine[Any, Any, R], *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> R:
    """`asyncio.run`, but a task beside the work that raises `SystemExit` or stops the loop does not end the work.

    Nor does one that ignores its cancellation keep this from returning.
    """
    runner = asyncio.Runner(loop_factory=loop_factory)
    loop = runner.get_loop()
    task = loop.create_task(work)
    try:
        while True:
            try:
                return runner.run(_joined(task))
            except BaseException as exc:
                if task.done() and not task.cancelled():
                    return task.result()
                if task.done() or not _is_attack(exc):
                    raise
                _log.error("code beside the work tried to end the event loop: %s", described(exc))
    finally:
        if not task.done():
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
        if _cancel_rest(loop):
            runner.close()


def _is_attack(error: BaseException) -> bool:
    """Whether other code has stopped the loop, which is well; not the user's Ctrl-C, where nobody handles that."""
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    return isinstance(error, SystemExit | RuntimeError | asyncio.CancelledError)


async def _joined(task: "asyncio.Task[R]") -> R:
    return await task


def _cancel_rest(loop: asyncio.AbstractEventLoop) -> bool:
    """Cancel what is left; whether it has stopped."""
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if not rest:
        return True
    try:
        _, pending = loop.run_until_complete(asyncio.wait(rest, timeout=LEFTOVER_SECONDS))
    except BaseException as exc:  # noqa: BLE001 a task may raise anything here too
        _log.error("code beside the work tried to end the event loop: %s", described(exc))
        return False
    for task in pending:
        _log.error("%s does not stop, and is left behind", task.get_name())
        # Never freed: as the interpreter exits, a coroutine that swallows GeneratorExit too would run for ever.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
    return not pending
