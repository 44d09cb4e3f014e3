"""Real desktops: what is done to one is seen on it, and a reset leaves no trace."""

import asyncio
import json
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from desktops import OWNER, family, made, nothing_left
from outrider.core.errors import MachineError, MachineRefusal
from outrider.env.osworld.action import drag
from outrider.pool.computer import Button, Input, Key, MoveTo, Pause, Press, Scroll, Text
from outrider.pool.provider import Provider, RunningMachine
from outrider.pool.providers.desktop import DesktopMachine, DesktopProvider
from outrider.testing import eventually
from processes import is_running


def click(x: int, y: int, button: Button = Button.LEFT) -> list[Input]:
    return [MoveTo(x, y), Press(button), Press(button, down=False)]


def combination(*names: str) -> list[Input]:
    return [*(Key(name) for name in names), *(Key(name, down=False) for name in reversed(names))]


async def until(condition: Callable[[], Any], within_seconds: float = 30.0) -> Any:
    """What the condition gives as soon as it gives something."""
    given: list[Any] = []

    async def holds() -> bool:
        given.append(await condition())
        return bool(given[-1])

    await eventually(holds, within_seconds=within_seconds)
    return given[-1]


async def terminal(machine: DesktopMachine, command: str = "") -> dict[str, Any]:
    """A terminal in front that has its place: the frame around it moves it once more."""
    await machine.computer.launch(["xterm", *(["-e", command] if command else [])])

    async def in_front() -> Any:
        before = await machine.computer.windows()
        await asyncio.sleep(0.1)
        found = await machine.computer.windows()
        return found if found == before and found and found[-1]["focused"] else None

    return (await until(in_front))[-1]


async def content(machine: DesktopMachine, path: str, ending: bytes = b"\n") -> bytes:
    async def written() -> bytes | None:
        data = await machine.computer.read_file(path)
        return data if data and data.endswith(ending) else None

    found = await until(written)
    assert isinstance(found, bytes)
    return found


@pytest.fixture
def provider() -> DesktopProvider:
    return DesktopProvider()


@pytest.fixture
async def machine(provider: DesktopProvider) -> AsyncIterator[DesktopMachine]:
    async with nothing_left(provider), made(provider) as machine:
        yield machine


async def test_it_is_a_machine_of_its_kind(provider, machine):
    kind: Provider = provider
    one: RunningMachine = machine
    await kind.check(1)
    await one.probe()
    assert json.loads(json.dumps(one.address)) == one.address
    assert await kind.owned(OWNER) == (one.address,)
    assert await kind.owned("somebody else") == ()


async def test_a_click_puts_the_pointer_there(machine):
    for place in ((0, 0), (300, 250), (1919, 1079)):
        await machine.computer.input(click(*place))
        assert await machine.computer.pointer() == place


async def test_a_screenshot_has_the_size_of_the_screen_and_shows_what_was_done():
    async with made(DesktopProvider()) as machine:
        assert machine.computer.screen_size == (1920, 1080)
        before = await machine.computer.screenshot()
        assert before[:8] == b"\x89PNG\r\n\x1a\n"
        assert [int.from_bytes(before[at : at + 4], "big") for at in (16, 20)] == [1920, 1080]
        assert await machine.computer.screenshot() == before
        await machine.computer.input([MoveTo(1700, 900)])
        moved = await machine.computer.screenshot()
        assert moved != before
        await machine.computer.write_file("wallpaper.png", moved)
        assert (await machine.computer.execute(["hsetroot", "-solid", "#aa3300"])).returncode == 0
        red = await machine.computer.screenshot()
        assert red != moved
        assert (await machine.computer.execute(["hsetroot", "-fill", "wallpaper.png"])).returncode == 0
        assert await machine.computer.screenshot() != red


async def test_typed_text_is_what_the_shell_gets(machine):
    await terminal(machine)
    text = "~!@#$%^&*()_+`-={}|[]\\:;<>?,./\"'Az09 äß€ 日本語 😀 Ω"
    await machine.computer.input([Text(f"cat > typed.txt <<'END'\n{text}\nEND\n")])
    assert (await content(machine, "/home/user/typed.txt")).decode() == f"{text}\n"


async def test_more_signs_than_there_are_spare_keys_can_be_typed(machine):
    await terminal(machine)
    text = "".join(chr(code) for code in range(0x4E00, 0x4E00 + 200))
    await machine.computer.input([Text("cat > typed.txt\n")])

    async def reads() -> bool:
        return await machine.computer.read_file("typed.txt") is not None

    await until(reads)  # what is typed before goes to a shell that takes Enter for another sign
    for start in range(0, 200, 40):
        await machine.computer.input([Text(text[start : start + 40] + "\n")])
    await machine.computer.input(combination("ctrl", "d"))
    await machine.computer.input([Text("echo done > end\n")])
    await content(machine, "end")
    assert (await content(machine, "typed.txt")).decode().replace("\n", "") == text


async def test_keys_are_held_and_combined(machine):
    await machine.computer.input(combination("ctrl", "alt", "t"))
    assert await until(machine.computer.windows)
    await machine.computer.input([Text("sleep 100; echo interrupted with $? > code\n")])

    async def sleeping() -> bool:
        return "sleep 100" in (await machine.computer.execute("pgrep -a sleep")).stdout

    await until(sleeping)
    await machine.computer.input(combination("ctrl", "c"))
    await machine.computer.input([Text("echo now $? > code\n")])
    assert await content(machine, "code") == b"now 130\n"
    await machine.computer.input([Key("A"), Key("A", down=False), *combination("shift", "b")])
    await machine.computer.input([Text("=both; echo $AB > typed\n")])
    assert await content(machine, "typed") == b"both\n"

    async def waiting() -> bool:  # a shell that is told to end just then waits for one more key
        return (await machine.computer.terminal_text() or "").endswith("$")

    await until(waiting)
    await machine.computer.input(combination("alt", "f4"))

    async def closed() -> bool:
        return not await machine.computer.windows()

    await until(closed)


async def test_the_wheel_turns_both_ways_and_sideways(machine):
    steps = [
        r"stty raw -echo; printf '\033[?1000h\033[?1006h\033[5n'",
        "dd bs=1 count=4 of=listening",  # the terminal says that it has read this far
        "head -c 120 > wheel; echo end > ended",
    ]
    start = "; ".join(steps)
    window = await terminal(machine, f"sh -c {json.dumps(start)}")
    x, y = window["place"][0] + 200, window["place"][1] + 200

    async def listening() -> bool:
        return await machine.computer.read_file("listening") == b"\x1b[0n"

    await until(listening)
    await machine.computer.input([MoveTo(x, y), Scroll(dy=2), Scroll(dy=-1), Scroll(dx=1), Scroll(dx=-1)])
    await machine.computer.input([Scroll(dy=9)])
    await content(machine, "ended")
    seen = await content(machine, "wheel", b"")
    turned = [part.split(b";")[0] for part in seen.split(b"\x1b[<") if part.endswith(b"M")]
    assert turned[:5] == [b"64", b"64", b"65", b"67", b"66"]


async def test_dragging_its_title_moves_a_window(machine):
    x, y, width, _ = (await terminal(machine))["place"]
    grip = (x + width // 3, y - 8)
    steps = [MoveTo(grip[0] + 12 * step, grip[1] + 9 * step) for step in range(1, 11)]
    hold = Pause(0.15)  # as drags of agents have it: the window manager takes hold of where the pointer is by then
    await machine.computer.input([MoveTo(*grip), Press(), hold, *steps, hold, Press(down=False)])

    async def moved() -> bool:
        now = (await machine.computer.windows())[-1]["place"]
        return abs(now[0] - x - 120) <= 2 and abs(now[1] - y - 90) <= 2

    await until(moved)


async def test_a_drag_waits_for_a_window_manager_that_gets_no_time(machine):
    """It would find both moves together, and take them for one."""
    x, y, width, _ = (await terminal(machine))["place"]
    grip = MoveTo(x + width // 3, y - 8)
    target = MoveTo(grip.x + 100, grip.y + 90)
    await machine.computer.execute("kill -STOP $(pidof openbox)")
    await machine.computer.launch("sleep 1; kill -CONT $(pidof openbox)")
    await machine.computer.input([grip, *drag(target, Button.LEFT)])

    async def moved() -> bool:
        return (await machine.computer.windows())[-1]["place"][:2] == [x + 100, y + 90]

    await until(moved)


async def test_input_that_makes_no_sense_is_refused_and_nothing_of_it_done(machine):
    await machine.computer.input([MoveTo(5, 5)])
    for wrong in (MoveTo(1920, 0), MoveTo(-1, 3), Key("nokey"), Scroll(dy=100_000)):
        with pytest.raises(MachineRefusal, match="m1"):
            await machine.computer.input([MoveTo(50, 50), wrong])
    assert await machine.computer.pointer() == (5, 5)


async def test_commands_run_as_a_user_and_tell_how_they_ended(machine):
    run = machine.computer.execute
    done = await run("echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert (await run(["printf", "%s", "a b"])).stdout == "a b"
    assert (await run("id -un; pwd; echo $DISPLAY")).stdout.split() == ["user", "/home/user", ":0"]
    assert (await run("sleep 60 & echo at once")).stdout == "at once\n"
    late = await run("echo begun; sleep 60", timeout=0.3)
    assert (late.returncode, late.stdout) == (None, "begun\n")
    missing = await run(["no-such-program"])
    assert (missing.returncode, missing.stderr) == (127, "No such file or directory: no-such-program\n")


async def test_slow_commands_keep_nobody_from_looking(machine):
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(machine.computer.execute("while [ ! -e go ]; do sleep 0.01; done", timeout=20))
        await machine.computer.screenshot()
        assert not slow.done()
        await machine.computer.write_file("go", b"")
    assert slow.result().returncode == 0


async def test_files_are_read_and_written(machine):
    data = bytes(range(256)) * 40_000
    await machine.computer.write_file("~/Documents/new/file.bin", data)
    assert await machine.computer.read_file("/home/user/Documents/new/file.bin") == data
    assert await machine.computer.read_file("Documents/none") is None
    for path in ("Documents", "/dev/zero"):
        with pytest.raises(MachineError):
            await machine.computer.read_file(path)
    with pytest.raises(MachineError, match=r"[Rr]ead-only"):
        await machine.computer.write_file("/usr/x", b"")


async def test_a_full_disk_is_an_error_and_no_end():
    async with made(DesktopProvider(disk_bytes=8 * 2**20)) as machine:
        with pytest.raises(MachineError, match="No space"):
            await machine.computer.write_file("big", bytes(9 * 2**20))
        await machine.reset()
        await machine.probe()


async def test_the_tree_tells_the_windows(machine):
    place = (await terminal(machine))["place"]
    root = ET.fromstring(await machine.computer.accessibility_tree())
    space = "{https://accessibility.ubuntu.example.org/ns/"
    (frame,) = root.findall("application[@name='XTerm']/frame")
    assert frame.get(space + "component}screencoord") == f"({place[0]}, {place[1]})"
    assert frame.get(space + "component}size") == f"({place[2]}, {place[3]})"
    assert frame.get(space + "state}active") == "true"


async def text_with(machine, words: str) -> str:
    """What stands in the terminal, once these words do."""

    async def printed() -> str | None:
        text = await machine.computer.terminal_text()
        return text if text and words in text else None

    return await until(printed)


async def test_a_terminal_can_be_read_while_a_program_prints_without_pause(machine):
    await terminal(machine)
    await machine.computer.input([Text("seq 100000; echo the end\n")])
    assert "\n99999\n100000\nthe end\n" in await text_with(machine, "\nthe end\n")


async def test_a_terminal_that_was_stopped_is_an_error_and_can_be_read_when_it_goes_on(machine):
    await terminal(machine)
    await machine.computer.input([Text("echo before\n")])
    await text_with(machine, "\nbefore\n")
    await machine.computer.input([Text("stty -F $(tty) ixon; cat\n"), *combination("ctrl", "s")])

    async def read_until_it_is_stopped() -> None:
        for _ in range(100):
            await machine.computer.terminal_text()

    with pytest.raises(MachineError, match="it was stopped"):
        await read_until_it_is_stopped()
    await machine.computer.input(combination("ctrl", "q"))
    assert "before" in await text_with(machine, "before")


async def test_a_terminal_in_front_can_be_read_with_what_has_scrolled_away(machine):
    assert await machine.computer.terminal_text() is None
    await terminal(machine)
    await machine.computer.input([Text("seq 500 600; echo Größe 日本\n")])
    assert "\n500\n501\n" in await text_with(machine, "\nGröße 日本\n")


async def test_windows_are_brought_to_the_front_and_closed_by_command(machine):
    await machine.computer.launch(["xterm", "-T", "first"])
    await until(machine.computer.windows)
    await machine.computer.launch(["xterm", "-T", "second"])

    async def in_front(title: str) -> bool:
        found = await machine.computer.windows()
        return bool(found) and found[-1]["title"] == title and found[-1]["focused"]

    await until(lambda: in_front("second"))
    assert (await machine.computer.execute(["wmctrl", "-Fa", "first"])).returncode == 0
    await until(lambda: in_front("first"))
    assert (await machine.computer.execute(["wmctrl", "-c", "first"])).returncode == 0
    await until(lambda: in_front("second"))


PAGE = b"""<meta charset=utf-8><title>A page</title>
<textarea style="position: fixed; inset: 0; width: 100%; height: 100%" oninput="document.title = value"></textarea>"""


async def test_a_browser_runs_on_it_as_it_is(machine):
    await machine.computer.write_file("page.html", PAGE)
    await machine.computer.launch(["chromium", "page.html"])

    async def titled(text: str) -> bool:
        return any(window["title"].startswith(text) for window in await machine.computer.windows())

    await until(lambda: titled("A page"), within_seconds=30)

    async def typed() -> bool:
        await machine.computer.input([*click(640, 400), *combination("ctrl", "a"), Text("Straße €"), Pause(0.2)])
        return await titled("Straße €")

    await until(typed, within_seconds=30)


async def test_a_reset_leaves_no_trace(provider, machine):
    await machine.plant("marker")
    assert await machine.has("marker")
    await terminal(machine)
    await machine.computer.input([Text("export LEFT=1; sleep 1000 & touch /tmp/left Desktop/left; echo x > all\n")])
    await machine.computer.input([Text("日"), MoveTo(7, 7), Key("shift")])
    await content(machine, "all")
    old, look = (
        family(machine.address["pid"]),
        "find /home /tmp /run /dev/shm | sort; ps ax -o comm; xlsclients -l; env",
    )
    await machine.reset()
    assert [pid for pid in old if is_running(pid)] == []
    assert not await machine.has("marker")
    assert await machine.computer.windows() == []
    async with made(provider, "fresh") as fresh:
        found, expected = [(await one.computer.execute(look)).stdout for one in (machine, fresh)]
        assert found == expected
        assert await machine.computer.screenshot() == await fresh.computer.screenshot()
        assert await machine.computer.pointer() == await fresh.computer.pointer()
    await machine.probe()
