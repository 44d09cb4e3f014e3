"""The sandbox with real parts: both mechanisms, as root and as an ordinary user; and Python tasks from end to end."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from leaks import no_leaks
from ordinary_user import ORDINARY_USER, with_open_ways
from outrider.core.chat import Message, Role, ToolCall, assistant
from outrider.core.errors import EnvError, InvalidInput, ScoreError
from outrider.core.task import Task
from outrider.env.protocol import Environment, Score
from outrider.env.python import PythonEnvironments
from outrider.env.registry import bundled_tasks
from outrider.env.sandbox import KillReason, Limits, Program, Sandbox, SandboxKind, running
from outrider.env.sandbox.census import family
from outrider.env.sandbox.enclosure import SPARE_IDS
from outrider.env.sandbox.program import MIB
from outrider.env.scoring.python import PythonTestsConfig, PythonTestsScorer
from outrider.policy.scripted.policy import ScriptedPolicy, ScriptOptions
from outrider.policy.scripted.python import PythonScript
from outrider.testing import eventually
from processes import program
from promptly import within


def others_can_read_python() -> bool:
    parents = Path(os.path.realpath(sys._base_executable)).parents
    return all(parent.stat().st_mode & 0o001 for parent in parents)


KINDS = ["bubblewrap", "subprocess"]
if os.geteuid() == 0 and not others_can_read_python():
    KINDS.remove("subprocess")  # refused here; the battery tries it as another user


@pytest.fixture(scope="module", params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return Sandbox(SandboxKind(request.param))


@pytest.fixture(scope="module", autouse=True)
def orphans_come_to_us() -> Iterator[None]:
    """So that a process is seen, whoever has started it and died."""
    libc, become_subreaper = ctypes.CDLL(None), 36
    assert libc.prctl(become_subreaper, 1, 0, 0, 0) == 0
    yield
    libc.prctl(become_subreaper, 0, 0, 0, 0)


@pytest.fixture(autouse=True)
async def no_process_is_left() -> Iterator[None]:
    before = set(family(os.getpid()))
    yield

    async def as_before() -> bool:
        left = set(family(os.getpid())) - before
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return not left

    await eventually(as_before, within_seconds=30)


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


async def a_program_runs() -> None:
    """Until a program runs below this process."""

    async def started() -> bool:
        return any("main.py" in command_of(pid) for pid in family(os.getpid()))

    await eventually(started)


async def test_a_program_reads_writes_and_ends(sandbox):
    source = """
import sys
import helper
from package.part import ANSWER
print(helper.twice(sys.stdin.read()), ANSWER)
print("über", file=sys.stderr)
exit(3)
"""
    files = {"helper.py": b"def twice(text): return text * 2", "package/part.py": b"ANSWER = 42"}
    async with no_leaks():
        outcome = await sandbox.run(source, stdin=b"ab", files=files)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, b"abab 42\n", "über\n".encode())
    assert (outcome.killed_reason, outcome.signal, outcome.timed_out) == (None, None, False)
    assert 0 < outcome.cpu_seconds < 5
    assert outcome.mechanism == await sandbox.mechanism()


async def test_much_input_is_read_and_unread_input_is_no_matter(sandbox):
    much = b"x" * 3_000_000
    assert (await sandbox.run("import sys; print(len(sys.stdin.read()))", stdin=much)).stdout == b"3000000\n"
    assert (await sandbox.run("print(1)", stdin=much)).stdout == b"1\n"


@pytest.mark.parametrize("source", ["def", "x = '\0'", "x = '\ud800'", "raise SystemExit(1)"])
async def test_what_is_no_program_is_an_outcome_too(sandbox, source):
    outcome = await sandbox.run(source)
    assert outcome.exit_code == 1
    assert outcome.killed_reason is None


async def test_limits_hold(sandbox):
    limits = Limits(memory_bytes=128 * MIB, output_bytes=1000)
    sleeping = await sandbox.run("import time; time.sleep(60)", limits=Limits(wall_seconds=0.2))
    assert (sleeping.killed_reason, sleeping.signal) == (KillReason.WALL_TIME, signal.SIGKILL)
    writing = await sandbox.run("while True: print('x' * 99)", limits=limits)
    assert (writing.killed_reason, len(writing.stdout), writing.stdout_truncated) == (KillReason.OUTPUT, 1000, True)
    assert b"MemoryError" in (await sandbox.run("bytearray(1 << 28)", limits=limits)).stderr


async def test_a_program_that_ends_by_itself_was_not_killed_however_much_it_wrote(sandbox):
    outcome = await sandbox.run("import os; os.write(1, b'x' * 5000)", limits=Limits(output_bytes=1000))
    assert len(outcome.stdout) == 1000
    assert outcome.stdout_truncated
    assert (outcome.exit_code is None) == (outcome.killed_reason is KillReason.OUTPUT)


async def test_what_was_written_before_the_end_is_there(sandbox):
    source = "import sys\nprint('before')\nwhile True: print('x' * 999, file=sys.stderr)"
    outcome = await sandbox.run(source, limits=Limits(output_bytes=10_000), unbuffered=True)
    assert (outcome.stdout, outcome.stdout_truncated, outcome.stderr_truncated) == (b"before\n", False, True)


async def test_a_fork_bomb_ends(sandbox):
    source = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    outcome = await sandbox.run(source, limits=Limits(wall_seconds=0.5, n_processes=20))
    assert outcome.killed_reason in {KillReason.WALL_TIME, KillReason.PROCESSES}


async def test_a_daemon_ends_with_its_program(sandbox):
    source = (
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(60)\n os._exit(0)\nos.wait()"
    )
    assert (await sandbox.run(source)).exit_code == 0


async def test_a_program_that_kills_its_launcher_ends_with_it(sandbox):
    source = "import os, time\nif os.fork() == 0: time.sleep(60)\nos.kill(os.getppid(), 9)\ntime.sleep(60)"
    with within(9):
        outcome = await sandbox.run(source)
    assert outcome.exit_code != 0


async def test_memory_of_all_processes_counts_together(sandbox):
    source = "import os, time\nfor _ in range(6): os.fork() or (globals().update(x=b'x' * (48 << 20)), time.sleep(60))"
    outcome = await sandbox.run(source + "\ntime.sleep(60)", limits=Limits(memory_bytes=192 * MIB))
    assert outcome.memory_exceeded


async def test_system_calls_are_filtered_without_bubblewrap_too(sandbox):
    source = """
import mmap, socket
for attempt in (lambda: socket.socket(socket.AF_PACKET, 3), lambda: mmap.mmap(-1, 4096)):
    try: attempt()
    except PermissionError: print("refused")
"""
    assert (await sandbox.run(source)).stdout == b"refused\n" * 2


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 3, 4, 6, 10, 16, 24, 40])
async def test_cancelled_at_any_moment_it_leaves_nothing(sandbox, milliseconds):
    await sandbox.check()
    before = set(family(os.getpid()))
    async with no_leaks():
        task = asyncio.ensure_future(sandbox.run("import time; time.sleep(60)"))
        await asyncio.sleep(milliseconds / 1000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not any(command_of(pid) for pid in set(family(os.getpid())) - before)


@pytest.mark.parametrize("kind", KINDS)
async def test_when_our_process_is_killed_the_program_is_too(kind, tmp_path):
    source, n_processes = {  # ours, bubblewrap, its first process, the launcher, and two; or ours, the launcher and one
        "bubblewrap": ("import os, time\nif os.fork() == 0: os.setsid()\nwhile True: time.sleep(60)", 6),
        "subprocess": ("import time; time.sleep(60)", 3),
    }[kind]
    run = f"Sandbox(SandboxKind({kind!r})).run({source!r}, limits=Limits(wall_seconds=60))"
    code = (
        f"import asyncio, tempfile\nfrom outrider.env.sandbox import Limits, Sandbox, SandboxKind\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\nasyncio.run({run})"
    )
    with program(code) as ours:

        async def all_run() -> bool:
            return len(family(ours.pid)) == n_processes and "main.py" in command_of(family(ours.pid)[-1])

        await eventually(all_run)
        inside = family(ours.pid)[1:]
        ours.kill()

        async def gone() -> bool:
            return not any(command_of(pid) for pid in inside)  # the dead have none

        await eventually(gone)


async def test_no_more_programs_run_at_once_than_there_are_slots():
    sandbox = Sandbox(SandboxKind.BUBBLEWRAP, n_slots=2)
    source = "import time; a = time.monotonic(); time.sleep(0.1); print(a, time.monotonic())"
    outcomes = await asyncio.gather(*(sandbox.run(source) for _ in range(6)))
    spans = [tuple(map(float, outcome.stdout.split())) for outcome in outcomes]
    assert max(sum(begin <= start < end for begin, end in spans) for start, _ in spans) <= 2


async def test_programs_wait_their_turn_and_may_leave_the_queue():
    sandbox = Sandbox(SandboxKind.BUBBLEWRAP, n_slots=1)
    finished: list[int] = []

    async def run(number: int, source: str) -> None:
        await sandbox.run(source)
        finished.append(number)

    first = asyncio.ensure_future(run(0, "import time; time.sleep(60)"))
    await a_program_runs()
    waiting = [asyncio.ensure_future(run(number, "print(1)")) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    first.cancel()
    await asyncio.wait([first, *waiting])
    assert finished == [1, 3]


async def test_two_programs_talk_through_pipes_and_the_second_is_stopped():
    asking = Program(
        source="import os, sys\nreading, writing = map(int, sys.argv[1:])\n"
        "os.write(writing, b'6')\nprint(os.read(reading, 9))"
    )
    answering = Program(
        source="import os, sys\nreading, writing = map(int, sys.argv[1:])\n"
        "os.write(writing, b'%d' % (int(os.read(reading, 9)) * 7))\nimport time; time.sleep(60)"
    )
    async with no_leaks():
        sandbox = Sandbox(SandboxKind.BUBBLEWRAP, n_slots=1)
        first, second = await sandbox.run_beside(asking, answering, Limits())
    assert first.stdout == b"b'42'\n"
    assert second.killed_reason is KillReason.STOPPED


@pytest.mark.parametrize("name", ["/etc/x", "../x", "", "a/../../x", "main.py", "x\0"])
async def test_a_file_cannot_be_put_elsewhere(name):
    with pytest.raises(InvalidInput, match="cannot lie"):
        await Sandbox().run("", files={name: b""})


async def test_files_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match="bytes"):
        await Sandbox().run("", files={"x": bytes(MIB)}, limits=Limits(tmp_bytes=MIB))


async def test_without_bubblewrap_nothing_runs_and_the_message_says_how_to_install_it(tmp_path):
    missing = Sandbox(bubblewrap="no-such-bwrap")
    with pytest.raises(InvalidInput, match=r"bubblewrap is not installed. Install the package `bubblewrap`"):
        await missing.check()
    with pytest.raises(EnvError, match="set sandbox to subprocess: programs that models write can then read"):
        await missing.run("print(1)")
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(InvalidInput, match=r"No permissions to create new namespace.*unprivileged_userns_clone=1"):
        await Sandbox(bubblewrap=str(broken)).check()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have a Python that only root can read")
async def test_without_walls_root_runs_no_program_as_root(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    (tmp_path / "python").symlink_to(os.path.realpath(sys._base_executable))
    monkeypatch.setattr(running, "PYTHON", str(tmp_path / "python"))
    sandbox = Sandbox(SandboxKind.SUBPROCESS)
    with pytest.raises(InvalidInput, match=r"not run as root. Install bubblewrap; or work as an ordinary user"):
        await sandbox.check()
    with pytest.raises(EnvError, match="PermissionError"):
        await sandbox.run("import os; print(os.getuid())")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be a root without other users")
async def test_a_root_without_other_users_runs_no_program_as_root():
    source = "import asyncio\nfrom outrider.env.sandbox import Sandbox, SandboxKind\n"
    source += "asyncio.run(Sandbox(SandboxKind.SUBPROCESS).run('import os; print(os.getuid())'))"
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", source]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert "root finds no other user here to run the program as" in done.stderr


BATTERY = r'''
import asyncio, json, os, subprocess, sys
from outrider.env.sandbox import Limits, Sandbox, SandboxKind
from outrider.env.sandbox.census import family
from outrider.env.sandbox.program import MIB

PROGRAMS = {
    "user": ("import os; print(os.getuid(), os.getgroups())", {}),
    "forks": ("""
import os, time
made = 0
try:
    while True:
        if os.fork() == 0: time.sleep(60)
        made += 1
except BlockingIOError: print(made)
""", {"n_processes": 20}),
    "memory": ("""
import os, time
for _ in range(6): os.fork() or (globals().update(x=b"x" * (48 << 20)), time.sleep(60))
time.sleep(60)
""", {"memory_bytes": 192 * MIB}),
    "files": ("""
import itertools
for number in itertools.count(): open(str(number), "w").close()
""", {"n_files": 500}),
    "writing": ("""
for path in ("/x", "/dev/x", "/usr/lib/x"):
    try: open(path, "w"); print(path)
    except OSError: pass
""", {}),
    "reading": ("import os; print(os.path.exists('/etc/passwd'), os.path.exists('/proc'))", {}),
    "sleeping": ("import time; time.sleep(60)", {"wall_seconds": 0.2}),
    "output": ("while True: print('x' * 99)", {"output_bytes": 1000}),
    "daemon": ("""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(60)
    os._exit(0)
os.wait()
""", {}),
    "calls": ("""
import mmap, socket
for attempt in (lambda: socket.socket(socket.AF_PACKET, 3), lambda: mmap.mmap(-1, 4096)):
    try: attempt()
    except PermissionError: print("refused")
""", {}),
    "launcher": ("import os, time; os.kill(os.getppid(), 9); time.sleep(60)", {}),
    "descriptors": ("""
import os
for number in range(3, 200):
    try: os.fstat(number); print(number)
    except OSError: pass
""", {}),
}

async def survivors():
    """How many processes of a sandbox are left when the process that had it was killed."""
    source = "from outrider.env.sandbox import *; import asyncio, sys\n"
    source += "asyncio.run(Sandbox(SandboxKind(sys.argv[1])).run('import time; time.sleep(60)'))"
    ours = subprocess.Popen([sys.executable, "-c", source, sys.argv[1]])
    inside = []
    while not any("main.py" in command_of(pid) for pid in inside):
        await asyncio.sleep(0.01)
        inside = family(ours.pid)[1:]
    ours.kill()
    ours.wait()
    for _ in range(1000):
        if not any(map(command_of, inside)):
            break
        await asyncio.sleep(0.01)
    return sum(map(bool, map(command_of, inside)))

def command_of(pid):
    try: return open(f"/proc/{pid}/cmdline").read()
    except OSError: return ""

WALLS_ONLY = ("forks", "files", "writing", "reading")

async def main():
    sandbox = Sandbox(SandboxKind(sys.argv[1]))
    ends = {}
    for name, (source, limits) in PROGRAMS.items():
        if sys.argv[1] == "bubblewrap" or name not in WALLS_ONLY:
            outcome = await sandbox.run(source, stdin=b"x" * 100_000, limits=Limits(**limits))
            ends[name] = [outcome.ending, outcome.stdout.decode()]
    for milliseconds in (0, 2, 5, 20, 60):
        running = asyncio.ensure_future(sandbox.run("import time; time.sleep(60)"))
        await asyncio.sleep(milliseconds / 1000)
        running.cancel()
        await asyncio.wait([running])
    ends["left"] = len(family(os.getpid())) - 1
    ends["survivors"] = await survivors()
    print(json.dumps(ends))

asyncio.run(main())
'''


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_an_ordinary_user_has_the_same_walls():
    ends = json.loads(await asyncio.to_thread(with_open_ways, BATTERY, "bubblewrap"))
    assert ends["user"] == ["exit code 0", "1000 []\n"]
    assert ends["forks"][0] == "exit code 0"
    assert 15 <= int(ends["forks"][1]) <= 20
    assert ends["memory"][0] == "killed: memory"
    assert ends["files"][0] == "killed: number of files"
    assert ends["writing"] == ["exit code 0", ""]
    assert ends["reading"] == ["exit code 0", "False False\n"]
    assert_limits_held(ends)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_an_ordinary_user_can_do_without_bubblewrap():
    ends = json.loads(await asyncio.to_thread(with_open_ways, BATTERY, "subprocess"))
    assert ends["user"] == ["exit code 0", f"{ORDINARY_USER} []\n"]
    assert ends["memory"][0] == "killed: memory"
    assert_limits_held(ends)


def assert_limits_held(ends: dict[str, list[str]]) -> None:
    assert ends["launcher"] == ["signal SIGKILL", ""]
    assert ends["descriptors"] == ["exit code 0", ""]
    assert ends["sleeping"] == ["killed: wall time", ""]
    assert (ends["output"][0], len(ends["output"][1])) == ("killed: output", 1000)
    assert ends["daemon"] == ["exit code 0", ""]
    assert ends["calls"] == ["exit code 0", "refused\nrefused\n"]
    assert (ends["left"], ends["survivors"]) == (0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can step down")
async def test_without_bubblewrap_root_steps_down_where_others_can_reach_python():
    source = """
import asyncio
from outrider.env.sandbox import Limits, Sandbox, SandboxKind
program = '''
import os, time
print(os.getuid())
for attempt in (lambda: os.kill(os.getppid(), 9), lambda: open("/etc/shadow")):
    try: attempt(); print("allowed")
    except PermissionError: pass
made = 0
try:
    while True:
        if os.fork() == 0: time.sleep(60)
        made += 1
except BlockingIOError: print(made)
'''
outcome = asyncio.run(Sandbox(SandboxKind.SUBPROCESS).run(program, limits=Limits(n_processes=20)))
print(outcome.mechanism.replace(" ", "_"), outcome.stdout.decode(), outcome.stderr.decode())
"""
    mechanism, user, n_forks = (await asyncio.to_thread(partial(with_open_ways, source, user=0))).split()
    assert mechanism == "subprocess_(no_walls)"
    assert int(user) > SPARE_IDS
    assert int(n_forks) == 19


async def played(environment: Environment, model: str, task_id: str) -> tuple[Score, list[Message]]:
    """An episode with a scripted policy, as an agent would play it."""
    guessing = {"solver": 0.0, "random": 1.0}[model]
    policy = ScriptedPolicy({"python": PythonScript()}, name=model, options=ScriptOptions(p=guessing))
    messages = list(await environment.reset(seed=1))
    for _ in range(5):
        reply = (await policy.complete(messages, tools=environment.tools, session=task_id)).message
        step = await environment.step(reply)
        messages += [reply, *step.observation]
        if step.terminated:
            break
    else:
        raise AssertionError("the episode does not end")
    score = await environment.score()
    await environment.close()
    assert score is not None
    return score, messages


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
async def test_the_solver_solves_the_bundled_tasks_and_guesses_solve_none(every: int):
    environments = PythonEnvironments()
    await environments.check()
    tasks = bundled_tasks("py")
    assert len(tasks) == 15
    tasks = tasks[::every]
    solved, guessed = await asyncio.gather(
        *(
            asyncio.gather(*(played(environments.make(task), model, task.task_id) for task in tasks))
            for model in ("solver", "random")
        )
    )
    for task, (right, messages), (wrong, _) in zip(tasks, solved, guessed, strict=True):
        assert (right.reward, right.metrics["pass_fraction"]) == (1.0, 1.0), (task.task_id, right)
        assert [message.role for message in messages].count(Role.TOOL) == 2
        assert wrong.reward == 0.0, (task.task_id, wrong)
    await environments.close()


@pytest.fixture(scope="module")
def scorer() -> PythonTestsScorer:
    return PythonTestsScorer(PythonTestsConfig(limits=Limits(wall_seconds=5), partial=True))


LIBRARY = """
import math
from collections import Counter, namedtuple
from datetime import timedelta
from enum import IntEnum
print('noise')
if __name__ == '__main__':
    raise SystemExit(3)

class Own(Exception): pass
class Special(Own): pass
class Colour(IntEnum):
    RED = 1
class Vector:
    def __init__(self, x): self.x = x
    def __add__(self, other): return Vector(self.x + other.x)
    def __eq__(self, other): return self.x == other.x
    def __len__(self): return self.x
    def __str__(self): return f'V{self.x}'
    def __getitem__(self, i): return self.x * i
Point = namedtuple('Point', 'x y')

def same(x):
    print('more noise')
    return x
def sort(xs): xs.sort()
def grow(d): d['x'].append(1); d['y'] = 2
def twice(g, x): return g(x) + g(x + 1)
def mapped(g): return list(map(g, '12'))
def caught(g):
    try: g()
    except KeyError as error: return repr(error)
def count(n):
    for i in range(n): yield i
def fail(kind, *arguments): raise kind(*arguments)
def special(): raise Special('x')
def decode(): b'\\xff'.decode()
def odd(): return float('nan'), -0.0, 1e308 * 10
def later(day): return day + timedelta(1)
def red(): return Colour.RED
def annotated(x: 1 + 1): pass
SIEVE = [True] * 10_000_000
"""

RIGHT = {
    "plain data": "assert same(same(1)) == 1 and same(None) is None and not same([])",
    "a changed list": "xs = [3, 1, 2]\nassert sort(xs) is None\nassert xs == [1, 2, 3]",
    "a changed dictionary": "d = {'x': []}\ngrow(d)\nassert d == {'x': [1], 'y': 2}",
    "a function as argument": "assert twice(lambda x: x * 10, 1) == 30",
    "a function of the submission as argument": "assert twice(same, 1) == 3",
    "a built-in as argument": "assert mapped(int) == [1, 2]",
    "an exception of the tests": "def g(): raise KeyError('k')\nassert caught(g) == \"KeyError('k')\"",
    "a generator": "assert list(count(3)) == [0, 1, 2]\nassert next(count(1)) == 0\nassert 2 in count(3)",
    "an exception": "try: fail(ValueError, 'no')\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert False",
    "an exception of its own": "try: special()\nexcept Own as e: assert type(e) is Special\nelse: assert False",
    "an odd exception": "try: decode()\nexcept UnicodeDecodeError as e: assert e.start == 0\nelse: assert False",
    "a huge number": "assert same(2 ** 100_000) == 2 ** 100_000",
    "odd numbers": "a, b, c = odd()\nassert a != a and str(b) == '-0.0' and c > 1e308",
    "nested data": "assert same({1: (2, {3}), None: b'x', 'z': 1j}) == {1: (2, {3}), None: b'x', 'z': 1j}",
    "odd text": "assert same('x\\ud800\\0') == 'x\\ud800\\0'",
    "much data": "assert same(list(range(100_000))) == list(range(100_000))",
    "decimals": "from decimal import Decimal\nassert same(Decimal('0.1')) * 3 == Decimal('0.3')",
    "dates": "from datetime import datetime\nassert later(datetime(2024, 2, 28)) == datetime(2024, 2, 29)",
    "a kind of dictionary": "c = Counter('aab')\nassert c == {'a': 2, 'b': 1} and isinstance(c, dict) and 'a' in c",
    "a method of it": "assert Counter('aab').most_common(1) == [('a', 2)]",
    "a kind of tuple": "assert Point(1, 2) == (1, 2) and Point(1, 2).x == 1",
    "a kind of number": "assert red() == 1 and red() < 2 and red() - 1 == 0",
    "objects": "v = Vector(2) + Vector(3)\nassert v == Vector(5) and v != Vector(4) and isinstance(v, Vector)",
    "what objects say": "v = Vector(5)\nassert len(v) == 5 and str(v) == 'V5' and v[2] == 10",
    "attributes of objects": "v = Vector(5)\nv.x = 7\nassert v.x == 7 and not hasattr(v, 'y')",
    "a module it imported": "assert math.isclose(same(math.pi), 3.14159, rel_tol=1e-5)",
    "noise of the tests": "print('from the tests')\nassert same(1) == 1",
    "annotations": "assert annotated.__annotations__ == {'x': 2}",
    "a large table": "assert SIEVE[9_999_999] and len(SIEVE) == 10_000_000",
    "an import": "from solution import same as also_same\nassert also_same(2) == 2",
}


async def test_a_right_submission_passes_whatever_it_deals_in(scorer):
    score = await scorer.score_program(LIBRARY, Task(task_id="x", metadata={"tests": list(RIGHT.values())}))
    assert score.reward == 1.0, (score.explanation, list(RIGHT))


async def test_tests_are_independent_of_each_others_failures(scorer):
    submission = "import os, time\ndef f(x):\n  if x == 1: os._exit(7)\n  if x == 2: raise KeyError('k')\n  return x"
    tests = [f"assert f({number}) == {number}" for number in range(5)]
    score = await scorer.score_program(submission, Task(task_id="x", metadata={"tests": tests}))
    assert score.metrics == {"pass_fraction": 0.6, "tests": 5.0}
    assert score.explanation == (
        "3 of 5 tests passed\ntest 2: the program has ended (exit code 7)\ntest 3: KeyError: 'k'"
    )


async def test_all_or_nothing_is_the_default():
    scorer = PythonTestsScorer()
    task = Task(task_id="x", metadata={"tests": ["assert f() == 1", "assert f() == 2"]})
    score = await scorer.score("Some words.\n```python\ndef f(): return 1\n```\nMore.", task)
    assert (score.reward, score.metrics["pass_fraction"]) == (0.0, 0.5)
    assert score.output == "def f(): return 1"


async def test_the_time_of_all_tests_together_is_bounded():
    scorer = PythonTestsScorer(PythonTestsConfig(max_test_seconds=1))
    task = Task(task_id="x", metadata={"tests": ["assert f()"] * 20})
    with within(10):
        score = await scorer.score_program("def f():\n  while True: pass", task)
    assert (score.reward, score.metrics["tests"]) == (0.0, 20.0)
    pairs = Task(task_id="x", metadata={"tests": [{"output": "1"}] * 20})
    score = await scorer.score_program("import time; time.sleep(60)", pairs)
    assert "test 1: killed: wall time" in score.explanation
    assert "test 2: not run: the 1 s for all tests are over" in score.explanation


PAIRS = [{"input": "2 3\n", "output": "5\n"}, {"input": "10 -4", "output": "6   \n\n"}]


@pytest.mark.parametrize(
    ("submission", "fraction", "why"),
    [
        ("print(sum(map(int, input().split())))", 1.0, ""),
        ("print(5)", 0.5, "it wrote '5', not '6'"),
        ("import os; print(5, flush=True); os._exit(1)", 0.0, "exit code 1"),
        ("while True: print('x' * 1000)", 0.0, "killed: output"),
        ("print(1 / 0)", 0.0, "exit code 1: ZeroDivisionError: division by zero"),
    ],
)
async def test_input_and_output_decide(scorer, submission, fraction, why):
    score = await scorer.score_program(submission, Task(task_id="x", metadata={"tests": PAIRS}))
    assert score.reward == fraction
    assert why in score.explanation


async def test_calls_decide(scorer):
    calls = [{"args": [1, 2], "result": [1, 2]}, {"args": [1], "kwargs": {"b": [3]}, "result": [1, [3]]}]
    task = Task(task_id="x", metadata={"tests": calls, "entry_point": "pair"})
    assert (await scorer.score_program("def pair(a, b): return (a, b)", task)).reward == 1.0
    wrong = await scorer.score_program("def pair(a, b): return a", task)
    assert "test 1: AssertionError: got 1, not [1, 2]" in wrong.explanation
    missing = await scorer.score_program("pass", task)
    assert "test 1: KeyError: 'pair'" in missing.explanation


async def test_a_sandbox_that_fails_is_a_failure_of_scoring_not_a_score():
    scorer = PythonTestsScorer(sandbox=Sandbox(SandboxKind.BUBBLEWRAP, bubblewrap="no-such-bwrap"))
    with pytest.raises(ScoreError, match="bubblewrap is not installed"):
        await scorer.score_program("def f(): pass", Task(task_id="x", metadata={"tests": ["assert True"]}))


async def test_what_the_agent_sees_of_a_run_says_how_it_ended():
    environments = PythonEnvironments(PythonEnvironments.Config(limits=Limits(cpu_seconds=1), output_characters=100))
    environment = environments.make(Task(task_id="x", question="?", metadata={"tests": ["assert f() == 1"]}))
    await environment.reset()

    async def seen(code: str) -> str:
        call = ToolCall(id="1", name="run_python", arguments=json.dumps({"code": code}))
        step = await environment.step(assistant(tool_calls=(call,)))
        assert not step.terminated
        return step.observation[0].content

    assert await seen("print(6 * 7)") == "exit code 0\nstdout:\n42"
    assert await seen("while True: pass") == "killed: CPU time, at most 1 s allowed"
    assert "NameError" in await seen("nonsense")
    cut = await seen("print('a' * 200 + 'b' * 200)")
    assert "\n… 300 characters left out …\n" in cut
    assert len(cut) < 200
    assert (await seen("")).startswith("error: no program")
    await environment.step(assistant("I am done.\n```python\ndef f(): return 1\n```"))
    score = await environment.score()
    assert score is not None
    assert (score.reward, score.metrics["tool_calls"]) == (1.0, 5.0)


WITHOUT_WALLS = r"""
import asyncio, logging, sys
from outrider.core.chat import ToolCall, assistant
from outrider.core.task import Task
from outrider.env.python import PythonEnvironments
from outrider.env.sandbox import SandboxKind

async def main():
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
    environments = PythonEnvironments(PythonEnvironments.Config(sandbox=SandboxKind.SUBPROCESS))
    await environments.check()
    environment = environments.make(Task(task_id="x", metadata={"tests": ["assert f() == 1"]}))
    call = ToolCall(id="1", name="run_python", arguments='{"code": "print(1)"}')
    print((await environment.step(assistant(tool_calls=(call,)))).observation[0].content)
    await environment.step(assistant("```\ndef f(): return 1\n```"))
    score = await environment.score()
    print(score.reward, score.explanation)

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_without_walls_the_log_the_agent_and_the_score_say_so():
    said = await asyncio.to_thread(with_open_ways, WITHOUT_WALLS)
    warning, *seen = said.splitlines()
    assert warning.startswith("WARNING sandbox: subprocess: programs that models write run without walls")
    assert "keys included" in warning
    assert seen == [
        *("exit code 0", "stdout:", "1", "mechanism: subprocess (no walls)"),
        *("1.0 1 of 1 tests passed", "mechanism: subprocess (no walls)"),
    ]


SPY = r'''
import json, os
from pathlib import Path
from outrider.core.chat import ToolCall, assistant

SOURCE = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if b"sk-not-for" in open(f"/proc/{pid}/environ", "rb").read():
            print("found in", open(f"/proc/{pid}/cmdline").read())
    except OSError: pass
print("looked at", len(os.listdir("/proc")) > 3)
"""

async def agent(task, ctx):
    assert "OPENAI_API_KEY" not in os.environ
    call = ToolCall(id="1", name="run_python", arguments=json.dumps({"code": SOURCE}))
    step = await ctx.env.step(assistant(tool_calls=(call,)))
    Path(__file__).with_name("seen").write_text(step.observation[0].content)
    return ""
'''

SPYING_RUN = f"""
import json, os, subprocess, sys, tempfile
from pathlib import Path

home = Path(tempfile.mkdtemp())
(home / "spy.py").write_text({SPY!r})
(home / "tasks.jsonl").write_text(json.dumps({{"id": 1, "question": "?", "tests": ["assert True"]}}))
command = [sys.executable, "-m", "outrider", "run", "--mode", "py", "--data", "tasks.jsonl", "--agent", "spy:agent"]
command += ["--model", "builtin:solver", "--env", "sandbox=subprocess", "--workers", "2"]
variables = os.environ | {{"OPENAI_API_KEY": "sk-not-for-programs", "HOME": str(home)}}
done = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True)
print((home / "seen").read_text() if (home / "seen").exists() else done.stdout + done.stderr)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_program_without_walls_cannot_read_the_keys_of_the_run_and_its_workers():
    seen = await asyncio.to_thread(with_open_ways, SPYING_RUN)
    assert seen.splitlines()[:3] == ["exit code 0", "stdout:", "looked at True"]
