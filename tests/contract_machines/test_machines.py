"""What holds of a machine of any kind while it lives."""

import asyncio
import os
import signal

import pytest

from contract_machines.kinds import US
from outrider.core.errors import InvalidInput, MachineError, MachineRefusal
from outrider.pool.computer import Button, Key, MoveTo, Press, Text
from outrider.pool.provider import Ability
from outrider.testing import eventually
from promptly import within

DEAD_SECONDS = 1.0
PROBE_SECONDS = 25.0
RUNS = "for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $p; echo; done 2>/dev/null | grep -v grep | grep -c '{}'"


async def n_running(machine, words: str) -> int:
    """How many processes the machine itself sees with this command line."""
    pattern = f"[{words[0]}]{words[1:]}"  # so that it does not find itself
    return int((await machine.computer.execute(RUNS.format(pattern), timeout=20)).stdout)


def kill(stage, machine) -> None:
    for pid in stage.parts(machine):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("by_each_product")
async def test_a_provider_says_whether_so_many_machines_can_be_had(provider):
    await provider.check(1)
    with pytest.raises(InvalidInput, match="1000000"):
        await provider.check(1_000_000)


@pytest.mark.usefixtures("with_commands", "by_each_product")
async def test_a_new_machine_is_sound_and_runs_commands(machine):
    await machine.probe()
    done = await machine.computer.execute(["printf", "%s|", "a b", "$HOME", "ü"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "a b|$HOME|ü|", "")
    done = await machine.computer.execute("echo $((6 * 7)); echo no >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "42\n", "no\n")


@pytest.mark.usefixtures("with_commands", "in_the_guest")
async def test_a_program_that_is_not_there_is_no_failure_of_the_machine(machine):
    assert (await machine.computer.execute("no-such-program")).returncode == 127
    assert (await machine.computer.execute(["no-such-program"])).returncode == 127


@pytest.mark.usefixtures("with_commands", "in_the_guest")
async def test_a_command_is_stopped_at_its_time_limit_with_what_it_started(machine):
    async with asyncio.timeout(20):
        done = await machine.computer.execute("echo begun; sleep 4711 & sleep 4711", timeout=0.5)
    assert (done.returncode, done.stdout) == (None, "begun\n")

    async def ended() -> bool:
        return await n_running(machine, "sleep 4711") == 0

    await eventually(ended)


@pytest.mark.usefixtures("with_commands", "in_the_guest")
async def test_much_output_is_no_matter_and_a_background_program_holds_nobody_up(machine):
    done = await machine.computer.execute("head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(done.stdout) == 3_000_000
    async with asyncio.timeout(20):
        done = await machine.computer.execute("(while :; do echo more; sleep 0.01; done) & echo done", timeout=60)
    assert done.returncode == 0
    assert "done\n" in done.stdout
    await machine.probe()


@pytest.mark.usefixtures("with_commands", "in_the_guest")
async def test_files_are_written_and_read(machine):
    content = bytes(range(256)) * 5000
    await machine.computer.write_file("/tmp/deep/er/data", content)
    assert await machine.computer.read_file("/tmp/deep/er/data") == content
    assert (await machine.computer.execute("wc -c < /tmp/deep/er/data")).stdout.strip() == str(len(content))
    await machine.computer.execute("printf made > ~/made")
    home = (await machine.computer.execute("printf %s ~")).stdout
    assert await machine.computer.read_file(f"{home}/made") == b"made"
    await machine.computer.write_file("/tmp/empty", b"")
    assert await machine.computer.read_file("/tmp/empty") == b""
    assert await machine.computer.read_file("/tmp/none") is None
    assert await machine.computer.read_file("/tmp/empty/none") is None


@pytest.mark.usefixtures("with_commands", "in_the_guest")
async def test_what_cannot_be_read_or_written_is_an_error_and_the_machine_goes_on(machine):
    with pytest.raises(MachineError):
        await machine.computer.read_file("/tmp")
    with pytest.raises(MachineError):
        await machine.computer.write_file("/proc/none", b"x")
    await machine.probe()


@pytest.mark.usefixtures("with_commands", "in_the_guest")
async def test_a_launched_program_goes_on(machine):
    await machine.computer.launch(["sleep", "4712"])
    await machine.computer.launch("sleep 4713 > /dev/null")

    async def both() -> bool:
        return await n_running(machine, "sleep 471[23]") >= 2

    await eventually(both)


async def test_a_machine_has_a_screen_with_mouse_and_keys_or_says_it_has_none(kind, provider, machine):
    computer = machine.computer
    events = [
        MoveTo(10, 20),
        Press(Button.LEFT),
        Press(Button.LEFT, down=False),
        Text("a"),
        Key("a"),
        Key("a", down=False),
    ]
    if not kind.has_screen:
        assert computer.screen_size == (0, 0)
        for attempt in (computer.screenshot(), computer.input(events), computer.accessibility_tree()):
            with pytest.raises(MachineError):
                await attempt
        assert await computer.terminal_text() is None
        return
    picture = await computer.screenshot()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == computer.screen_size
    await computer.input(events)
    if Ability.TREE in provider.abilities:
        assert (await computer.accessibility_tree()).lstrip().startswith("<")
    else:
        with pytest.raises(MachineRefusal):
            await computer.accessibility_tree()


@pytest.mark.usefixtures("by_each_product")
async def test_a_reset_takes_the_mark_away_and_the_machine_works_again(kind, machine):
    assert not await machine.has("mark-1")
    await machine.plant("mark-1")
    assert await machine.has("mark-1")
    assert not await machine.has("mark-2")
    await machine.reset()
    assert not await machine.has("mark-1")
    await machine.probe()
    if kind.has_commands:
        assert (await machine.computer.execute("echo again")).stdout == "again\n"


@pytest.mark.usefixtures("with_commands")
async def test_a_reset_takes_away_all_that_a_holder_has_done(machine):
    computer = machine.computer
    variables = sorted((await computer.execute("env")).stdout.splitlines())
    await computer.execute("echo mine > ~/mine; echo mine > /tmp/mine; echo 'export MINE=1' > ~/.profile")
    await computer.launch("trap '' TERM HUP INT; sleep 4714; sleep 4714")
    await computer.execute("nohup setsid sleep 4715 > /dev/null 2>&1 &")
    await machine.reset()
    assert await computer.read_file("/tmp/mine") is None
    left = await computer.execute("cat ~/mine ~/.profile")
    assert (left.returncode, left.stdout) == (1, "")
    assert await n_running(machine, "sleep 471[45]") == 0
    assert sorted((await computer.execute("env")).stdout.splitlines()) == variables


@pytest.mark.usefixtures("with_commands")
async def test_a_command_of_the_holder_that_runs_during_a_reset_fails(machine):
    running = asyncio.create_task(machine.computer.execute("touch /tmp/begun; sleep 4716", timeout=60))

    async def begun() -> bool:
        return await machine.computer.read_file("/tmp/begun") is not None

    await eventually(begun)
    async with asyncio.timeout(20):
        await machine.reset()
        with pytest.raises(MachineError):
            await running
    await machine.probe()


@pytest.mark.usefixtures("by_each_product")
async def test_a_killed_machine_is_known_to_be_dead_at_once(stage, machine):
    waiting = asyncio.create_task(machine.wait_until_dead())
    await machine.probe()
    assert not waiting.done()
    kill(stage, machine)
    with within(DEAD_SECONDS):
        assert await waiting
    async with asyncio.timeout(PROBE_SECONDS):
        with pytest.raises(MachineError):
            await machine.probe()
        with pytest.raises(MachineError):
            await machine.computer.execute("true")
        with pytest.raises(MachineError):
            await machine.computer.read_file("/etc/passwd")


@pytest.mark.usefixtures("with_commands", "in_the_guest")
async def test_a_command_ends_with_its_machine(stage, machine):
    running = asyncio.create_task(machine.computer.execute("touch /tmp/begun; sleep 4717", timeout=60))

    async def begun() -> bool:
        return await machine.computer.read_file("/tmp/begun") is not None

    await eventually(begun)
    kill(stage, machine)
    async with asyncio.timeout(30):
        with pytest.raises(MachineError):
            await running


async def test_a_reset_is_not_taken_for_a_death_and_the_machine_after_it_is_watched(stage, machine):
    waiting = asyncio.create_task(machine.wait_until_dead())
    await machine.reset()
    await machine.probe()
    assert not waiting.done()
    kill(stage, machine)
    with within(DEAD_SECONDS):
        assert await waiting


async def test_a_machine_that_hangs_fails_its_probe_in_time(machine, stopped):
    await machine.probe()
    stopped(machine)
    async with asyncio.timeout(PROBE_SECONDS):
        with pytest.raises(MachineError):
            await machine.probe()


@pytest.mark.usefixtures("with_commands")
async def test_two_machines_do_not_see_each_other(provider, machine):
    other = await provider.create("m-2", US)
    try:
        assert len(await provider.owned(US)) == 2
        await machine.computer.execute("echo mine > ~/mine; echo mine > /tmp/mine")
        await machine.computer.launch("sleep 4718")
        await machine.plant("mark")
        assert (await other.computer.execute("cat ~/mine /tmp/mine")).stdout == ""
        assert await n_running(other, "sleep 4718") == 0
        assert not await other.has("mark")
        await other.reset()
        assert (await machine.computer.execute("cat ~/mine /tmp/mine")).stdout == "mine\nmine\n"
        assert await n_running(machine, "sleep 4718") > 0
    finally:
        await other.destroy()
    await machine.probe()
