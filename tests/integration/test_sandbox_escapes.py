"""Nothing gets out of the real sandbox, and nothing in it lasts: programs that try."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from leaks import no_leaks
from outrider.core.task import Task
from outrider.env.sandbox import KillReason, Limits, Outcome, Sandbox, SandboxKind
from outrider.env.sandbox.census import family
from outrider.env.sandbox.program import MIB
from outrider.env.scoring.python import PythonTestsConfig, PythonTestsScorer
from outrider.testing import eventually
from promptly import within

SYSCALLS = {
    "ptrace": 101,
    "process_vm_readv": 310,
    "mount": 165,
    "umount2": 166,
    "chroot": 161,
    "pivot_root": 155,
    "unshare": 272,
    "setns": 308,
    "keyctl": 250,
    "bpf": 321,
    "perf_event_open": 298,
    "io_uring_setup": 425,
    "memfd_create": 319,
    "shmget": 29,
    "userfaultfd": 323,
    "open_by_handle_at": 304,
}


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(SandboxKind.BUBBLEWRAP)


async def run(sandbox: Sandbox, source: str, **limits: float) -> Outcome:
    return await sandbox.run(textwrap.dedent(source), limits=Limits(**limits))


async def said(sandbox: Sandbox, source: str, **limits: float) -> list[str]:
    """What a program prints that ends well."""
    outcome = await run(sandbox, source, **limits)
    assert outcome.exit_code == 0, outcome
    return outcome.stdout.decode().split()


async def census() -> list[int]:
    """All processes below this one, but for those that asyncio is about to collect."""
    return family(os.getpid())[1:]


@pytest.fixture(autouse=True)
async def nothing_is_left() -> Iterator[None]:
    before = set(await census())
    yield

    async def as_before() -> bool:
        return set(await census()) <= before

    await eventually(as_before, within_seconds=30)


async def test_files_of_the_host_and_its_users_are_not_there(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    paths = [
        "/etc/shadow",
        "/etc/passwd",
        "/proc/1/environ",
        "/proc/self/status",
        "/sys/kernel",
        "/run",
        "/var",
        "/bin",
    ]
    paths += [str(secret), str(Path(__file__)), str(Path.home() / ".bashrc"), "/tmp/../etc/hostname", sys.prefix]
    program = f"""
    import os
    for path in {paths!r}:
        try:
            os.stat(path)
            print(path)
        except OSError:
            pass
    """
    assert await said(sandbox, program) == []


async def test_there_is_python_and_its_libraries_and_nothing_else(sandbox):
    program = """
    import importlib.util, os
    print(*sorted({*os.listdir("/"), *os.listdir("/usr"), *os.listdir("/etc")}))
    print(*(name for name in ("msgspec", "pytest", "pip", "outrider", "aiohttp") if importlib.util.find_spec(name)))
    """
    prefix = Path(sys.base_prefix).parts[1]
    assert set(await said(sandbox, program)) <= {
        *("dev", "etc", "ld.so.cache", "launcher.py", "lib", "lib64", "local", "share", "tmp", "usr", "bin", prefix)
    }


async def test_nothing_can_be_written_outside_of_its_folder(sandbox):
    program = """
    import os
    for place in ("/", "/usr/lib", "/dev", "/etc", os.path.dirname(os.__file__)):
        try:
            open(f"{place}/new", "w")
            print(place)
        except OSError as error:
            assert error.errno in (13, 30)
    """
    assert await said(sandbox, program) == []


async def test_the_launcher_and_the_interpreter_cannot_be_changed(sandbox):
    program = """
    import os, sys
    for path in ("/launcher.py", sys.executable, os.__file__):
        for change in (lambda: open(path, "r+"), lambda: os.unlink(path), lambda: os.chmod(path, 0o777)):
            try:
                change()
                print(path)
            except OSError:
                pass
    """
    assert await said(sandbox, program) == []


async def test_there_is_no_way_into_any_network(sandbox):
    abstract = f"\0outrider-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as inet, socket.socket(socket.AF_UNIX) as local:
        local.bind(abstract)
        local.listen()
        program = f"""
        import socket
        for family, address in [
            (socket.AF_INET, ("127.0.0.1", {inet.getsockname()[1]})),
            (socket.AF_INET, ("192.0.2.1", 80)),
            (socket.AF_INET, ("169.254.169.254", 80)),
            (socket.AF_INET6, ("::1", {inet.getsockname()[1]})),
            (socket.AF_UNIX, {abstract!r}),
        ]:
            try:
                socket.socket(family).connect(address)
                print("connected", address)
            except OSError as error:
                pass
        try:
            socket.getaddrinfo("example.com", 80)
        except OSError:
            print("unknown")
        """
        assert await said(sandbox, program) == ["unknown"]


async def test_no_sockets_but_local_ones_can_be_made(sandbox):
    program = """
    import socket
    assert socket.AF_VSOCK < 64
    for family in set(range(64)) - {socket.AF_UNIX}:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(family, kind)
                print(family)
            except PermissionError:
                pass
    one, other = socket.socketpair()
    print(one.send(b"local"))
    """
    assert await said(sandbox, program) == ["5"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the calls are those of x86_64")
async def test_dangerous_system_calls_are_refused(sandbox):
    program = f"""
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    for name, number in {SYSCALLS!r}.items():
        for at in (number, number | 0x40000000):
            ctypes.set_errno(0)
            if libc.syscall(at, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38):
                print(name, at, ctypes.get_errno())
    for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000):
        if libc.syscall(56, flag | 17, 0, 0, 0, 0) != -1:
            print("clone", flag)
    if libc.syscall(435, 0, 0) != -1 or ctypes.get_errno() != 38:
        print("clone3")
    """
    assert await said(sandbox, program) == []


async def test_processes_of_the_host_cannot_be_seen_or_signalled(sandbox):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as host:
        program = f"""
        import os
        for pid in ({host.pid}, {os.getpid()}):
            try:
                os.kill(pid, 9)
                print("killed", pid)
            except ProcessLookupError:
                pass
        try:
            os.kill(-1, 9)
        except OSError:
            pass
        """
        outcome = await run(sandbox, program)
        assert b"killed" not in outcome.stdout
        assert host.poll() is None
        host.communicate(b"\n")


async def test_it_has_no_rights_and_can_get_none(sandbox):
    program = """
    import os, time
    print(os.getuid(), os.geteuid(), os.getgid(), len(os.getgroups()), flush=True)
    for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.nice(-5)):
        try:
            attempt()
            print("allowed")
        except PermissionError:
            pass
    time.sleep(60)
    """
    running = asyncio.ensure_future(run(sandbox, program, wall_seconds=60))
    status: dict[str, str] = {}

    async def started() -> bool:
        for pid in await census():
            if "main.py" in Path(f"/proc/{pid}/cmdline").read_text():
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                status.update(line.split(":\t", 1) for line in lines if ":\t" in line)
        return bool(status)

    await eventually(started)
    assert {status[name] for name in ("CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "0" not in status["Uid"].split()
    running.cancel()
    await asyncio.wait([running])
    outcome = await run(sandbox, program.replace("time.sleep(60)", ""))
    n_groups = 0 if os.geteuid() == 0 else 1  # only root can give up the group it has
    assert outcome.stdout == f"1000 1000 1000 {n_groups}\n".encode()


async def test_a_setuid_program_gives_nothing(sandbox):
    program = """
    import os, shutil, subprocess, sys
    shutil.copy(sys.executable, "own")
    os.chmod("own", 0o6755)
    command = ["./own", "-S", "-c", "import os; print(os.getresuid())"]
    print(subprocess.run(command, capture_output=True, text=True, env={"PYTHONHOME": sys.prefix}).stdout)
    """
    assert await said(sandbox, program) == ["(1000,", "1000,", "1000)"]


async def test_limits_cannot_be_raised(sandbox):
    program = """
    import resource
    for name in ("CPU", "AS", "NPROC", "FSIZE", "NOFILE", "CORE", "STACK", "MEMLOCK", "MSGQUEUE"):
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        for wanted in (hard + 1, resource.RLIM_INFINITY):
            try:
                resource.setrlimit(kind, (wanted, wanted))
                print(name)
            except (ValueError, OSError):
                pass
    """
    assert await said(sandbox, program) == []


async def test_a_fork_bomb_is_bounded_and_ends_with_the_program(sandbox):
    program = """
    import os, time
    made = 0
    try:
        while True:
            if os.fork() == 0:
                time.sleep(60)
            made += 1
    except BlockingIOError:
        print(made)
    """
    (made,) = await said(sandbox, program, n_processes=20)
    assert 15 <= int(made) <= 20


async def test_a_fork_bomb_that_never_stops_is_killed_as_a_whole(sandbox):
    program = """
    import os
    while True:
        try:
            os.fork()
        except OSError:
            pass
    """
    outcome = await run(sandbox, program, n_processes=20, wall_seconds=0.5)
    assert outcome.killed_reason is KillReason.WALL_TIME


async def test_threads_count_as_processes(sandbox):
    program = """
    import threading, time
    try:
        while True:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError:
        print(threading.active_count() <= 20, flush=True)
        import os; os._exit(0)
    """
    assert await said(sandbox, program, n_processes=20) == ["True"]


async def test_memory_of_one_process_is_bounded(sandbox):
    outcome = await run(sandbox, "x = bytearray(300 * 1024 * 1024)", memory_bytes=256 * MIB)
    assert outcome.exit_code == 1
    assert b"MemoryError" in outcome.stderr


async def test_memory_of_many_processes_is_bounded_together(sandbox):
    program = """
    import os, time
    for _ in range(8):
        if os.fork() == 0:
            held = bytearray(os.urandom(1 << 20) * 48)
            time.sleep(60)
    time.sleep(60)
    """
    outcome = await run(sandbox, program, memory_bytes=192 * MIB)
    assert outcome.memory_exceeded
    assert outcome.ending == "killed: memory"


async def test_memory_that_forks_share_counts_once(sandbox):
    program = """
    import os, time
    held = bytearray(os.urandom(1 << 20) * 64)
    children = []
    for _ in range(6):
        if (pid := os.fork()) == 0:
            time.sleep(0.5)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    print("done")
    """
    assert await said(sandbox, program, memory_bytes=256 * MIB) == ["done"]


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
async def test_files_cannot_be_used_as_memory_without_bound(sandbox, folder):
    program = f"""
    written = 0
    try:
        for number in range(100):
            with open(f"{folder}/{{number}}", "wb", buffering=0) as file:
                written += file.write(bytes(1 << 20))
    except OSError as error:
        print(error.errno, written >> 20)
    """
    code, written = await said(sandbox, program, tmp_bytes=8 * MIB)
    assert code == "28"
    assert int(written) <= 8


async def test_memory_that_belongs_to_no_process_cannot_be_had(sandbox):
    program = """
    import mmap, os
    for attempt in (lambda: mmap.mmap(-1, 4096), lambda: os.memfd_create("x"), lambda: open("/dev/zero", "r+b")):
        try:
            attempt()
            print("allowed")
        except OSError:
            pass
    from multiprocessing import shared_memory
    try:
        shared_memory.SharedMemory(create=True, size=64 << 20).buf[:] = bytes(64 << 20)
    except OSError:
        print("refused")
    """
    outcome = await run(sandbox, program, file_bytes=8 * MIB)
    assert b"allowed" not in outcome.stdout
    assert outcome.signal == signal.SIGBUS or b"refused" in outcome.stdout


async def test_private_memory_works_as_usual(sandbox):
    program = """
    import mmap, multiprocessing
    held = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held[:3] = b"abc"
    lock = multiprocessing.Lock()
    with lock:
        print(multiprocessing.Value("i", 42).value)
    """
    assert await said(sandbox, program) == ["42"]


@pytest.mark.parametrize("stream", [1, 2])
async def test_endless_output_is_cut_and_the_program_killed(sandbox, stream):
    outcome = await run(sandbox, f"import os\nwhile True: os.write({stream}, b'x' * 65536)", output_bytes=100_000)
    assert outcome.killed_reason is KillReason.OUTPUT
    text, truncated = [(outcome.stdout, outcome.stdout_truncated), (outcome.stderr, outcome.stderr_truncated)][
        stream - 1
    ]
    assert (text, truncated) == (b"x" * 100_000, True)


async def test_an_endless_loop_ends_at_the_limit_of_processor_time(sandbox):
    outcome = await run(sandbox, "while True: pass", cpu_seconds=1, wall_seconds=60)
    assert outcome.killed_reason is KillReason.CPU_TIME
    assert outcome.timed_out
    assert 0.5 <= outcome.cpu_seconds < 3


async def test_processor_time_of_many_processes_counts_together(sandbox):
    program = """
    import os
    for _ in range(3):
        os.fork()
    while True: pass
    """
    outcome = await run(sandbox, program, cpu_seconds=1, wall_seconds=60)
    assert outcome.killed_reason is KillReason.CPU_TIME


async def test_no_signal_handler_delays_the_end(sandbox):
    program = """
    import os, signal, time
    for number in range(1, 64):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    os.close(0), os.close(1), os.close(2)
    while True: time.sleep(60)
    """
    with within(5):
        outcome = await run(sandbox, program, wall_seconds=0.3)
    assert outcome.killed_reason is KillReason.WALL_TIME


async def test_a_daemon_does_not_survive_its_program(sandbox):
    program = """
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in (0, 1, 2):
                os.close(descriptor)
            while True:
                time.sleep(60)
        os._exit(0)
    os.wait()
    print("left")
    """
    before = set(await census())
    assert await said(sandbox, program) == ["left"]
    assert set(await census()) <= before


async def test_a_daemon_that_holds_the_output_open_does_not_delay_the_end(sandbox):
    with within(5):
        outcome = await run(sandbox, "import os, time\nif os.fork() == 0: time.sleep(60)\nprint(1)")
    assert (outcome.exit_code, outcome.stdout) == (0, b"1\n")


async def test_a_huge_file_is_refused(sandbox):
    program = """
    try:
        with open("big", "wb") as file:
            file.seek(1 << 40)
            file.write(b"x")
    except OSError as error:
        print(error.errno)
    """
    assert await said(sandbox, program) == ["27"]


async def test_files_are_counted(sandbox):
    program = """
    import itertools
    for number in itertools.count():
        open(f"{number}", "w").close()
    """
    outcome = await run(sandbox, program, n_files=500)
    assert outcome.killed_reason is KillReason.FILES


async def test_a_folder_a_thousand_deep_leaves_nothing(sandbox):
    program = """
    import os
    for _ in range(2000):
        os.mkdir("x"); os.chdir("x")
    print("deep")
    """
    async with no_leaks():
        assert await said(sandbox, program) == ["deep"]


async def test_deep_recursion_and_crashes_are_outcomes(sandbox):
    recursion = await run(sandbox, "def f(): f()\nf()")
    assert recursion.exit_code == 1
    assert b"RecursionError" in recursion.stderr
    crash = await run(sandbox, "import ctypes; ctypes.string_at(0)")
    assert (crash.signal, crash.exit_code, crash.ending) == (signal.SIGSEGV, None, "signal SIGSEGV")


@pytest.mark.parametrize(("code", "seen"), [("0", 0), ("137", 137), ("256", 0), ("-1", 255), ("'no'", 1)])
async def test_exit_codes_are_told_as_they_are(sandbox, code, seen):
    outcome = await run(sandbox, f"import sys; sys.exit({code})")
    assert (outcome.exit_code, outcome.signal, outcome.killed_reason) == (seen, None, None)


async def test_a_program_that_kills_itself_is_told_apart_from_one_that_we_kill(sandbox):
    outcome = await run(sandbox, "import os; os.kill(os.getpid(), 9)")
    assert (outcome.signal, outcome.killed_reason) == (signal.SIGKILL, None)


async def test_output_need_not_be_text(sandbox):
    outcome = await run(sandbox, r"import os; os.write(1, b'\xff\xfe\x00\x80')")
    assert outcome.stdout == b"\xff\xfe\x00\x80"


async def test_no_descriptor_and_no_variable_of_ours_gets_in(sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_TEST_SECRET", "secret")
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        program = """
        import os
        for number in range(3, 1024):
            try:
                os.fstat(number)
                print(number)
            except OSError:
                pass
        print(*sorted(os.environ))
        """
        seen = await said(sandbox, program)
    assert seen == ["HOME", "LANG", "PATH", "PYTHONHASHSEED", "PYTHONUTF8", "TMPDIR"]


async def test_a_program_that_kills_its_launcher_has_only_ended_itself(sandbox):
    outcome = await run(sandbox, "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(60)", wall_seconds=1)
    assert outcome.exit_code != 0


async def test_the_host_cannot_be_found_out(sandbox):
    program = """
    import os, socket
    print(socket.gethostname(), os.getpid() < 10, os.path.exists("/proc"))
    """
    assert await said(sandbox, program) == ["sandbox", "True", "False"]


TESTS = ["assert add(1, 2) == 3", "assert add(20, 22) == 42", "assert abs(add(0.5, 0.25) - 0.75) < 1e-9"]

FORGERIES = {
    "prints what a harness might": """
        print("OK\\n3 passed\\n{\\"test\\": \\"0\\", \\"passed\\": true}", flush=True)
        def add(a, b): return 0
    """,
    "leaves before the tests": "import sys; sys.exit(0)",
    "leaves without cleaning up": "import os; os._exit(0)",
    "leaves during a test": "import os\ndef add(a, b): os._exit(0)",
    "exits during a test": "def add(a, b): raise SystemExit(0)",
    "stops the iteration of the tests": "def add(a, b): raise StopIteration",
    "is equal to everything": """
        class Anything(int):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __sub__(self, other): return 0
            __rsub__ = __sub__
            def __lt__(self, other): return True
            def __abs__(self): return 0
            __hash__ = int.__hash__
        def add(a, b): return Anything(7)
    """,
    "is an object equal to everything": """
        class Anything:
            def __getattr__(self, name): return lambda *_: True
            def __eq__(self, other): return True
            def __sub__(self, other): return 0.0
            def __lt__(self, other): return True
            def __abs__(self): return 0.0
            def __bool__(self): return True
        def add(a, b): return Anything()
    """,
    "replaces built-in functions": """
        import builtins
        builtins.abs = lambda x: 0
        builtins.AssertionError = type("Quiet", (Exception,), {})
        def abs(x): return 0
        def add(a, b): return 7
    """,
    "writes its own messages": """
        import json, os, sys
        reading, writing = int(sys.argv[-2]), int(sys.argv[-1])
        def send(message):
            content = json.dumps(message).encode()
            os.write(writing, len(content).to_bytes(8, "big") + content)
        send({"names": {}})
        send({"test": "0", "passed": True})
        while os.read(reading, 65536):
            send({"value": True, "changed": {}})
    """,
    "floods the channel": """
        import os, sys
        while True: os.write(int(sys.argv[-1]), b"\\xff" * 65536)
    """,
    "sends a message without end": """
        import os, sys
        os.write(int(sys.argv[-1]), (1 << 60).to_bytes(8, "big"))
        while True: os.write(int(sys.argv[-1]), b"[" * 65536)
    """,
    "sends what is deeply nested": """
        import os, sys
        content = b"[" * 1_000_000
        os.write(int(sys.argv[-1]), len(content).to_bytes(8, "big") + content)
    """,
    "replaces the channel's own code": """
        import outrider.env.sandbox.inside.candidate as candidate
        candidate.Candidate._do = lambda *_: True
        candidate.encode = lambda value, refer: {"type": "object", "id": 0}
        def add(a, b): return 7
    """,
    "closes the channel": "import os\nos.closerange(3, 100)",
    "hangs": "while True: pass",
    "hangs in a test": "def add(a, b):\n    while True: pass",
    "uses up memory": "def add(a, b):\n    x = []\n    while True: x.append(bytes(1 << 20))",
    "is no program": "def add(a, b) return a + b",
    "kills what it can": "import os, signal\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)",
}


@pytest.mark.parametrize("how", FORGERIES)
async def test_a_verdict_cannot_be_forged(sandbox, how):
    config = PythonTestsConfig(limits=Limits(wall_seconds=0.5, memory_bytes=256 * MIB), max_test_seconds=1.5)
    scorer = PythonTestsScorer(config, sandbox=sandbox)
    task = Task(task_id="add", metadata={"tests": TESTS, "entry_point": "add"})
    async with no_leaks():
        score = await scorer.score_program(textwrap.dedent(FORGERIES[how]), task)
    assert (score.reward, score.metrics["pass_fraction"]) == (0.0, 0.0), score
    assert score.explanation.startswith("0 of 3 tests passed\ntest 1: ")


@pytest.mark.parametrize("number", range(3))
async def test_what_a_submission_defines_does_not_stand_for_what_tests_judge_by(sandbox, number):
    tests = (
        "import math\nassert math.isclose(area(2), 12.566, abs_tol=0.01)",
        "assert math.isclose(area(2), 12.566, abs_tol=0.01)",
        "assert all(area(r) > 3 for r in range(1, 4))",
    )
    evil = """
    class Evil:
        def isclose(self, *_, **__): return True
    math = Evil()
    def all(_): return True
    def area(r): return 0
    """
    task = Task(task_id="area", metadata={"tests": [tests[number]], "entry_point": "area"})
    assert (await PythonTestsScorer(sandbox=sandbox).score_program(textwrap.dedent(evil), task)).reward == 0.0


async def test_a_submission_sees_neither_tests_nor_verdicts(sandbox):
    program = """
    import gc, glob, os, sys
    def found():
        secret = "-".join(["4711", "secret"])
        frame, seen = sys._getframe(1), [repr(gc.get_objects())]
        while frame:
            seen += [repr(frame.f_locals), repr(frame.f_globals)]
            frame = frame.f_back
        seen += [open(path).read() for path in glob.glob("/tmp/**/*", recursive=True) if os.path.isfile(path)]
        return secret in "".join(seen), len("".join(seen)) > 10_000
    """
    task = Task(task_id="x", metadata={"tests": ["assert found() == (False, True), '4711-secret'"]})
    score = await PythonTestsScorer(sandbox=sandbox).score_program(textwrap.dedent(program), task)
    assert score.reward == 1.0, score
