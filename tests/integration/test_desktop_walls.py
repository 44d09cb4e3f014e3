"""Real desktops: their death is noticed, nothing is left of one, and nothing gets out of it."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from desktops import OWNER, family, made, n_left, nothing_left
from leaks import no_leaks
from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.computer import MoveTo
from outrider.pool.providers import desktop
from outrider.pool.providers.desktop import DesktopMachine, DesktopProvider
from outrider.testing import eventually
from processes import is_running, line, program
from promptly import within

MAKER = """
import asyncio, sys
from outrider.pool.providers.desktop import DesktopProvider

async def main(owner, n_machines):
    provider = DesktopProvider()
    print("ready", flush=True)
    machines = await asyncio.gather(*(provider.create(f"m{n}", owner) for n in range(int(n_machines))))
    print("made", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
"""Makes desktops for an owner and waits to be killed."""


def inside(machine: DesktopMachine, name: str) -> int:
    """The process of the desktop that has this name."""
    (found,) = [pid for pid in family(machine.address["pid"])[1:] if name in Path(f"/proc/{pid}/comm").read_text()]
    return found


@pytest.fixture
def provider() -> DesktopProvider:
    return DesktopProvider()


@pytest.fixture
async def machine(provider: DesktopProvider) -> AsyncIterator[DesktopMachine]:
    async with nothing_left(provider), made(provider) as machine:
        yield machine


@pytest.mark.parametrize("name", ["Xvfb", "openbox", "python", "first", "bubblewrap"])
async def test_the_death_of_any_part_is_noticed_at_once(machine, name):
    waiting = asyncio.create_task(machine.wait_until_dead())
    call = asyncio.create_task(machine.computer.execute("sleep 60"))
    await machine.computer.screenshot()
    await machine.reset()
    with pytest.raises(MachineError):
        await call
    assert not waiting.done()
    first = machine.address["pid"]
    outside = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    outer = {"first": first, "bubblewrap": outside}
    os.kill(outer[name] if name in outer else inside(machine, name), signal.SIGKILL)
    with within(1):
        assert await waiting
    with pytest.raises(MachineError, match="gone"):
        await machine.computer.screenshot()
    with pytest.raises(MachineError):
        await machine.probe()
    await machine.reset()
    await machine.probe()


@pytest.mark.parametrize("name", ["Xvfb", "python"])
async def test_a_desktop_that_hangs_fails_its_probe_and_can_be_reset(machine, name, monkeypatch):
    monkeypatch.setattr(desktop, "PROBE_SECONDS", 0.3)
    os.kill(inside(machine, name), signal.SIGSTOP)
    with pytest.raises(MachineError, match="did not answer"):
        await machine.probe()
    await machine.reset()
    await machine.probe()


@pytest.mark.parametrize("n", [6, pytest.param(20, marks=pytest.mark.soak)])
async def test_many_desktops_are_apart_from_each_other(provider, n):
    async with no_leaks():
        machines = await asyncio.gather(*(provider.create(f"m{number}", OWNER) for number in range(n)))
        try:
            assert len(await provider.owned(OWNER)) == n
            for number, machine in enumerate(machines):
                await machine.computer.input([MoveTo(10 * number, 5)])
                await machine.computer.write_file("/tmp/number", str(number).encode())
            for number, machine in enumerate(machines):
                assert await machine.computer.pointer() == (10 * number, 5)
                assert await machine.computer.read_file("/tmp/number") == str(number).encode()
        finally:
            await asyncio.gather(*(machine.destroy() for machine in machines))
    assert await provider.owned(OWNER) == ()
    assert n_left() == 0


async def test_a_cancelled_creation_leaves_nothing(provider):
    async with no_leaks():
        for seconds in (0.0, 0.005, 0.02, 0.05, 0.1, 0.2):
            making = asyncio.create_task(made_and_ended(provider))
            await asyncio.sleep(seconds)
            making.cancel()
            with pytest.raises(asyncio.CancelledError):
                await making
    assert await provider.owned(OWNER) == ()
    assert n_left() == 0


async def made_and_ended(provider: DesktopProvider) -> None:
    async with made(provider):
        await asyncio.Event().wait()


async def test_nothing_outlives_a_maker_that_is_killed(provider):
    with program(MAKER, OWNER, "3") as maker:
        assert (line(maker), line(maker)) == ("ready", "made")
        found = await provider.owned(OWNER)
        assert sorted(address["machine_id"] for address in found) == ["m0", "m1", "m2"]
        processes = [pid for address in found for pid in family(address["pid"])]
        maker.kill()
        maker.wait()

        async def gone() -> bool:
            return not any(is_running(pid) for pid in processes)

        await eventually(gone, within_seconds=30)
    assert await provider.owned(OWNER) == ()
    for address in found:
        assert await provider.adopt(address["machine_id"], address) is None


@pytest.mark.parametrize("seconds", [0.0, 0.004, 0.008, 0.015, 0.03, 0.06, 0.1, 0.2])
async def test_what_is_left_of_a_maker_killed_in_the_middle_is_found_and_ended(provider, seconds):
    with program(MAKER, OWNER, "2") as maker:
        assert line(maker) == "ready"
        await asyncio.sleep(seconds)
        maker.kill()
        maker.wait()

    async def swept() -> bool:
        for address in await provider.owned(OWNER):
            assert await provider.adopt(address["machine_id"], address) is None
        return n_left() == 0

    await eventually(swept, within_seconds=30)


async def test_a_machine_that_is_left_is_ended_by_its_address_and_no_other(provider, machine):
    async with made(provider, "other") as other:
        assert await provider.adopt("m1", {"machine_id": "m1", "pid": other.address["pid"]}) is None
        assert await provider.adopt("other", {"machine_id": "other", "pid": os.getpid()}) is None
        await machine.probe()
        assert await provider.adopt("other", other.address) is None
        with within(1):
            await other.wait_until_dead()
        await machine.probe()


async def test_a_destroyed_machine_stays_destroyed(provider):
    async with no_leaks():
        machine = await provider.create("m1", OWNER)
        await machine.destroy()
        await machine.destroy()
        assert "desktop m1" in await machine.wait_until_dead()
        with pytest.raises(MachineError, match="destroyed"):
            await machine.reset()
        with pytest.raises(MachineError, match="gone"):
            await machine.computer.input([MoveTo(1, 1)])


async def test_nothing_of_the_host_can_be_written_or_looked_into(machine, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret").chmod(0o644)
    places = "/ /etc /usr /usr/bin /usr/local /bin /lib /var /dev /proc/sys/kernel /outrider /root /opt"
    tries = [f"touch {place}/x 2>/dev/null && echo {place}" for place in places.split()]
    tries += [f"cat {path} 2>/dev/null" for path in (tmp_path / "secret", "/etc/shadow", Path.home() / ".bashrc")]
    tries += ["echo x > /proc/sys/kernel/hostname && echo wrote", "echo x > /etc/passwd && echo wrote"]
    tries += ["mount -t tmpfs x /tmp && echo mounted", "unshare -Ur true && echo unshared", "sudo -n true && echo root"]
    assert (await machine.computer.execute("; ".join(tries))).stdout == ""
    status = (await machine.computer.execute("grep -E 'CapEff|CapPrm|CapBnd|NoNewPrivs' /proc/self/status")).stdout
    assert status.split()[1::2][0:2] == ["0000000000000000"] * 2
    assert status.split()[-1] == "1"
    assert len((await machine.computer.execute("ps ax -o pid --no-headers")).stdout.split()) < 10


async def test_no_network_of_the_host_is_reached(machine):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        name = f"outrider-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        attempts = {
            "tcp": f"s.socket().connect(('127.0.0.1', {server.getsockname()[1]}))",
            "far": "s.socket().connect(('192.0.2.1', 80))",
            "abstract": f"s.socket(s.AF_UNIX).connect('\\0{name}')",
            "vsock": "s.socket(40, s.SOCK_STREAM)",
            "packet": "s.socket(17, s.SOCK_RAW)",
        }
        for attempt in attempts.values():
            code = f"import socket as s; s.setdefaulttimeout(5); {attempt}"
            done = await machine.computer.execute(["python3", "-c", code])
            assert done.returncode == 1, attempt
            assert "Error" in done.stderr
    links = (await machine.computer.execute("tail -n +3 /proc/net/dev | cut -d: -f1")).stdout.split()
    assert links == ["lo"]


async def test_a_fork_bomb_stays_in_its_desktop(machine):
    await machine.computer.launch(["bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 100"])

    async def exhausted() -> bool:
        return len(family(machine.address["pid"])) > 500

    await eventually(exhausted, within_seconds=30)
    await machine.reset()
    await machine.probe()


async def test_what_the_host_lacks_is_named(provider, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InvalidInput, match=r"apt-get install bubblewrap xvfb x11-xkb-utils openbox xterm"):
        await provider.check(1)


async def test_more_desktops_than_there_is_memory_for_are_refused_with_the_arithmetic(provider):
    with pytest.raises(InvalidInput, match=r"1000000 desktops of \d+ MiB need \d+ MiB of memory, and \d+ MiB are free"):
        await provider.check(1_000_000)


@pytest.mark.parametrize(
    "wrong", [{"width": 10}, {"height": 100_000}, {"shown": ("relative",)}, {"shown": ("/none/x",)}]
)
def test_a_desktop_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidInput):
        DesktopProvider(**wrong)


async def test_folders_can_be_shown(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "page.html").write_text("shown")
    (tmp_path / "page.html").chmod(0o644)
    async with made(DesktopProvider(shown=(str(tmp_path),))) as machine:
        assert await machine.computer.read_file(f"{tmp_path}/page.html") == b"shown"
        with pytest.raises(MachineError, match=r"[Rr]ead-only"):
            await machine.computer.write_file(f"{tmp_path}/new", b"")
