"""Real virtual machines with a real desktop: what a task finds there is what it finds on `desktop` machines."""

import asyncio
import os
from collections.abc import AsyncIterator
from xml.etree import ElementTree as ET

import pytest

from outrider.env.osworld.action import drag
from outrider.pool.computer import Button, Key, MoveTo, Press, Text
from outrider.pool.provider import Ability
from outrider.pool.providers.desktop import DesktopProvider
from outrider.pool.providers.qemu import Accelerator, QemuProvider, QemuSettings
from outrider.pool.qemu.image import Image
from outrider.pool.qemu.machine import QemuMachine
from qemu_guest import desktop_image, until

OWNER = f"desktops-{os.getpid()}"
PROGRAMS = "xterm nano wmctrl hsetroot xsetroot xmessage xprop bash python3 grep sed awk find tar vi"
POINTER = (
    "import sys; sys.path.insert(0, '/outrider'); from outrider.pool.desktop.inside.x11 import Display; "
    "print(*Display('/tmp/.X11-unix/X0').pointer())"
)

TAKE = "stty -icanon; exec cat >typed"
BUSY = "sh -c 'while :; do :; done' >/dev/null 2>&1 </dev/null"


@pytest.fixture(scope="session")
def image() -> Image:
    return desktop_image()


@pytest.fixture
async def machine(image, tmp_path) -> AsyncIterator[QemuMachine]:
    provider = QemuProvider(
        QemuSettings(image=image.folder, accelerator=Accelerator.TCG, folder=str(tmp_path / "machines"))
    )
    assert provider.abilities == DesktopProvider.abilities == set(Ability) - {Ability.DEVTOOLS}
    made = await provider.create("m-1", OWNER)
    yield made
    await made.destroy()
    await provider.close()


async def windows(machine: QemuMachine) -> dict[str, str]:
    """Titles and places."""
    tree = ET.fromstring(await machine.computer.accessibility_tree())
    frames = [frame for frame in tree.iter() if frame.tag == "frame"]
    return {frame.attrib["name"]: next(v for k, v in frame.attrib.items() if "screencoord" in k) for frame in frames}


async def test_user_home_and_programs_are_those_of_a_desktop(machine):
    computer = machine.computer
    said = await computer.execute("id -un; pwd; echo $HOME $DISPLAY $LANG $SHELL; ls")
    assert said.stdout == "user\n/home/user\n/home/user :0 C.UTF-8 /bin/bash\nDesktop\nDocuments\nDownloads\n"
    found = await computer.execute(f"which {PROGRAMS}")
    assert found.returncode == 0, found
    await computer.write_file("~/Documents/new/file", b"x")
    assert (await computer.execute("stat -c %U Documents/new/file")).stdout == "user\n"
    assert await computer.read_file("Documents/new/file") == b"x"
    assert (await computer.execute("touch /etc/mine")).returncode == 1


async def test_a_file_is_written_in_the_editor_and_the_reset_takes_all_away(machine):
    computer = machine.computer
    clean = await computer.screenshot()
    assert await computer.terminal_text() is None
    assert await windows(machine) == {}
    await computer.launch(["xterm", "-T", "Editor", "-geometry", "60x12+40+40", "-e", "nano", "note.txt"])

    async def is_open() -> bool:
        return "Exit" in (await computer.terminal_text() or "") if await windows(machine) else False

    await until(is_open)
    assert list(await windows(machine)) == ["Editor"]
    await computer.input([MoveTo(200, 120), Press(Button.LEFT), Press(Button.LEFT, down=False), Text("Hello, World!")])
    for letter in "sx":
        await computer.input([Key("ctrl"), Key(letter), Key(letter, down=False), Key("ctrl", down=False)])

    async def is_closed() -> bool:
        return not await windows(machine)

    await until(is_closed)
    assert await computer.read_file("note.txt") == b"Hello, World!\n"
    await machine.reset()
    assert await computer.read_file("note.txt") is None
    assert await computer.screenshot() == clean


async def test_the_pointer_is_where_it_was_sent_for_the_x_server_too(machine):
    computer = machine.computer
    width, height = computer.screen_size
    for x, y in ((333, 211), (width - 1, height - 1)):
        await computer.input([MoveTo(x, y)])

        async def arrived(place: str = f"{x} {y}\n") -> bool:
            return (await computer.execute(["python3", "-c", POINTER])).stdout == place

        await until(arrived)


@pytest.mark.soak
async def test_input_arrives_however_busy_the_guest_is(machine):
    computer = machine.computer
    await computer.launch(["xterm", "-T", "Notes", "-geometry", "22x8+60+80", "-e", "sh", "-c", TAKE])

    async def is_listening() -> bool:
        return await computer.read_file("typed") == b""

    await until(is_listening)
    await computer.execute(f"renice 19 -p $(pidof openbox); for _ in $(seq 4); do setsid {BUSY} & done")
    await computer.input([MoveTo(150, 90), *drag(MoveTo(1000, 300), Button.LEFT)])
    assert await windows(machine) == {"Notes": "(911, 310)"}
    text = "The QUICK brown FOX " * 5
    await computer.input([Text(text)])

    async def all_there() -> bool:
        return await computer.read_file("typed") == text.encode()

    await until(all_there)


async def test_a_desktop_without_its_window_manager_is_a_dead_machine(machine):
    watch = asyncio.create_task(machine.wait_until_dead())
    await machine.computer.execute("kill $(pidof openbox)")
    async with asyncio.timeout(20):
        assert "guest-shutdown" in await watch
