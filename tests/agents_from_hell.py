"""Agents that do the worst they can to their worker, and what each should be failed with; None: with nothing."""

import time
from collections.abc import Mapping, Sequence

from outrider import RolloutConfig, Store
from outrider.core.errors import Boundary
from outrider.core.status import RolloutStatus
from processes import marked
from store_invariants import check_invariants

AGENTS = """
import asyncio, ctypes, os, signal, stat, subprocess, sys, time

class Weird(BaseException):
    def __str__(self):
        raise KeyboardInterrupt

# -- what raises

async def raises_cancelled():
    raise asyncio.CancelledError

async def exits():
    sys.exit(0)

async def exits_in_a_task():
    async def leave():
        sys.exit(2)
    await asyncio.create_task(leave())

async def interrupts():
    raise KeyboardInterrupt

async def is_weird():
    raise Weird

async def reads_input():
    input("name? ")

async def recurses():
    def deeper(n):
        return deeper(n + 1) + 1
    deeper(0)

async def raises_much():
    raise ValueError("x" * 50_000_000)

async def exhausts_descriptors():
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        await asyncio.sleep(1.5)
        raise
    finally:
        for descriptor in held:
            os.close(descriptor)

async def closes_the_loop():
    asyncio.get_running_loop().close()

# -- what dies

async def exits_at_once():
    os._exit(0)

async def exits_as_if_invalid():
    os._exit(2)

async def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)

async def segfaults():
    ctypes.string_at(0)

async def cancels_everything():
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(10)

async def closes_all_descriptors():
    os.closerange(3, 256)
    await asyncio.sleep(10)

async def terminates_itself():
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.1)
    return 1.0

# -- what hangs

async def blocks():
    time.sleep(1e9)

async def blocks_in_a_library():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)  # the second time for ever, and no signal interrupts it

async def blocks_in_a_task():
    async def block():
        time.sleep(1e9)
    await asyncio.create_task(block())

async def holds_the_lock():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # the second time for ever

async def stops_itself():
    os.kill(os.getpid(), signal.SIGSTOP)

async def swallows_cancellation():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            await asyncio.sleep(1e9)
        except BaseException:
            pass

async def writes_to_all_sockets():
    for descriptor in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, bytes([255]) * 4)
        except OSError:
            pass
    time.sleep(1e9)

# -- what leaves something behind, and is harmless but for that

async def forks_and_raises():
    if os.fork() == 0:
        raise ValueError("in the child")
    await asyncio.sleep(0.3)

async def forks_and_returns():
    if os.fork() == 0:
        return 2.0
    await asyncio.sleep(0.3)

async def forks_and_awaits():
    if os.fork() == 0:
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(0.3)

async def forks_and_exits():
    if os.fork() == 0:
        sys.exit(3)
    await asyncio.sleep(0.3)

async def closes_output():
    os.close(1)
    os.close(2)

async def prints_much():
    sys.stdout.write("x" * 30_000_000)
    sys.stdout.flush()

async def starts_a_daemon():
    subprocess.Popen(["setsid", "--fork", "sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)

async def rearranges():
    os.chdir("/")
    os.umask(0o777)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)

async def stops_the_loop():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.1)

async def forges_output():
    print(chr(0x1e) + "{}")
    print(chr(0x1f) + "the end")

async def agent(task, ctx):
    if "hell" not in task:
        await asyncio.sleep(0.05)
        return 1.0
    return await globals()[task["hell"]]()

def plain(task, ctx):
    if "hell" not in task:
        time.sleep(0.05)
        return 1.0
    return asyncio.run(globals()[task["hell"]]())
"""

RAISE = {
    "raises_cancelled": "nobody had cancelled",
    "exits": "SystemExit: 0",
    "exits_in_a_task": "SystemExit: 2",
    "interrupts": "KeyboardInterrupt",
    "is_weird": "__str__ raised",
    "reads_input": "EOFError",
    "recurses": "RecursionError",
    "raises_much": "more characters",
    "exhausts_descriptors": "Too many open files",
    "closes_the_loop": "Cannot close a running event loop",
    "closes_output": None,
}
DIE = {
    "exits_at_once": "exited with code 0",
    "exits_as_if_invalid": "exited with code 2",
    "kills_itself": "SIGKILL",
    "segfaults": "SIGSEGV",
    "cancels_everything": "cancelled all of its tasks",
    "closes_all_descriptors": "exited with code 1",
    "terminates_itself": None,
    "writes_to_all_sockets": "has written to our channel",
}
HANG = {
    "blocks": "in blocks",
    "blocks_in_a_library": "in blocks_in_a_library",
    "blocks_in_a_task": "in block",
    "swallows_cancellation": "timeout_seconds",
}
FALL_SILENT = {
    "holds_the_lock": "in holds_the_lock",
    "stops_itself": "said nothing",
}
LITTER = {
    "forks_and_raises": None,
    "forks_and_returns": None,
    "forks_and_awaits": None,
    "forks_and_exits": None,
    "prints_much": None,
    "starts_a_daemon": None,
    "rearranges": None,
    "stops_the_loop": None,
    "forges_output": None,
}
IN_THREADS = {
    "exits": "SystemExit: 0",
    "interrupts": "KeyboardInterrupt",
    "is_weird": "__str__ raised",
    "raises_cancelled": "CancelledError",
    "forks_and_raises": None,
    "forks_and_exits": None,
    "exits_at_once": "exited with code 0",
}

IN_ONE_PROCESS = {
    "exits": "SystemExit: 0",
    "exits_in_a_task": "SystemExit: 2",
    "interrupts": "KeyboardInterrupt",
    "raises_cancelled": "nobody had cancelled",
    "swallows_cancellation": "timeout_seconds",
    "stops_the_loop": None,
}

BLAMED = {*RAISE, "blocks", "blocks_in_a_library", "blocks_in_a_task"}
"""Those whose failure is known to be the agent's own."""

N_INNOCENT = 12
GONE_SECONDS = 5.0


async def enqueue_hell(store: Store, hell: Mapping[str, str | None]) -> list[str]:
    """One rollout for each of these agents, by its name, and innocent ones, whose ids are returned."""
    config = RolloutConfig(max_attempts=1, timeout_seconds=40)
    innocent = [(await store.enqueue_rollout({}, config=config)).rollout_id for _ in range(N_INNOCENT)]
    for name in hell:
        limited = RolloutConfig(max_attempts=1, timeout_seconds=3 if name.startswith("swallows") else 40)
        await store.enqueue_rollout({"hell": name}, rollout_id=name, config=limited, priority=1)
    return innocent


async def check_hell(store: Store, hell: Mapping[str, str | None], innocent: Sequence[str]) -> None:
    """Each has failed as it should have, and all that are innocent have succeeded."""
    await check_invariants(store)
    rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
    for name, says in hell.items():
        rollout = rollouts[name]
        if says is None:
            assert (rollout.status, rollout.n_failures) == (RolloutStatus.SUCCEEDED, 0), (name, rollout.failure)
        else:
            assert rollout.status is RolloutStatus.FAILED, name
            assert rollout.failure is not None
            assert says in rollout.failure.message, name
            assert rollout.failure.boundary is (Boundary.AGENT if name in BLAMED else rollout.failure.boundary)
    for rollout_id in innocent:
        rollout = rollouts[rollout_id]
        assert (rollout.status, rollout.n_failures) == (RolloutStatus.SUCCEEDED, 0), rollout.failure


def none_left(mark: str) -> None:
    """Fails unless all processes with this variable, NAME=value, are gone within a moment."""
    deadline = time.monotonic() + GONE_SECONDS
    while left := marked(mark):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)
