"""Processes that other processes of the same user cannot look into."""

import sys

_PR_SET_DUMPABLE = 4


def become_undumpable() -> None:
    """Keep other processes of this user out of our memory and variables, where the keys of models are.

    From now on only root can attach a debugger to this process or read its `/proc/PID/environ`, and it leaves no core
    file. Programs that it starts are not affected. Every program of ours that has keys calls this first. Workers of a
    cluster that run a user's classes do not: they share memory, which others open through their `/proc/PID/fd`.
    """
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415 there is no need of it elsewhere

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot become undumpable")
