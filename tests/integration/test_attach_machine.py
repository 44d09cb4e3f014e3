"""OSWorld's protocol over real connections: our client and server, servers that misbehave, and the attach provider."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from leaks import no_leaks
from local_computer import LocalComputer
from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.computer import Button, Key, MoveTo, Pause, Press, Scroll, Text
from outrider.pool.osworld_protocol.client import OsworldComputer
from outrider.pool.osworld_protocol.server import OsworldServer
from outrider.pool.providers.attach import AttachProvider, AttachSettings
from outrider.pool.providers.desktop import DesktopProvider
from outrider.testing import eventually

EVENTS = [
    *(MoveTo(10, 20), Press(Button.RIGHT), Press(Button.RIGHT, down=False), Scroll(0, -3), Key("ctrl")),
    *(Key("a"), Key("a", down=False), Key("ctrl", down=False), Text("it's 100%\n"), Pause(0.01)),
]


@asynccontextmanager
async def reached(computer: object, **options: object) -> AsyncIterator[OsworldComputer]:
    async with OsworldServer(computer, **options) as server, OsworldComputer("127.0.0.1", server.port) as client:
        yield client


@pytest.fixture
async def local(tmp_path: Path) -> LocalComputer:
    return LocalComputer(tmp_path / "machine")


async def test_a_computer_behind_the_protocol_is_the_same_computer(local):
    async with no_leaks(), reached(local) as client:
        assert (client.screen_size, client.platform) == (local.screen_size, "Linux")
        assert await client.screenshot() == await local.screenshot()
        await client.input(EVENTS)
        assert local.events == EVENTS
        await client.input([])
        done = await client.execute("printf out; printf err >&2; exit 3")
        assert (done.returncode, done.stdout, done.stderr) == (3, "out", "err")
        assert (await client.execute(["printf", "%s", "a b$HOME"])).stdout == "a b$HOME"
        assert (await client.execute(["sleep", "30"], timeout=0.2)).returncode is None
        await client.launch(["true", "x y"])
        assert local.launched == [["true", "x y"]]
        local.terminal = "$ ls"
        assert await client.terminal_text() == "$ ls"
        assert await client.accessibility_tree() == local.tree
        assert await client.cursor_position() == (10, 20)
        assert (await client.run_python("print(6 * 7)")).stdout == "42\n"


async def test_files_go_through_the_protocol_as_they_are(local, tmp_path):
    content = bytes(range(256)) * 8000
    path = str(tmp_path / "machine" / "deep" / "data")
    async with reached(local) as client:
        await client.write_file(path, content)
        assert await client.read_file(path) == content
        assert await client.read_file(path + "-none") is None


async def test_code_that_is_more_than_events_is_run_in_the_machine(local):
    async with reached(local) as client:
        loop = "import sys; [sys.stdout.write(str(i)) for i in range(3)]  # pyautogui"
        assert (await client.execute(["python3", "-c", loop])).stdout == "012"
        await client.execute('python -c "import pyautogui; pyautogui.click(1, 2)"')
        await client.run_python("import pyautogui\npyautogui.press('enter')")
    click = [MoveTo(1, 2), Press(), Press(down=False)]
    assert local.events == [*click, Key("enter"), Key("enter", down=False)]


async def test_what_a_machine_cannot_do_is_an_error_with_its_reason(local):
    async with reached(local) as client:
        local.fail("input")
        with pytest.raises(MachineError, match="execute"):
            await client.input([MoveTo(1, 1)])
        for attempt in (
            client.activate_window("none"),
            client.close_window("none", strict=True),
            client.change_wallpaper("/none.png"),
            client.window_size("none"),
        ):
            with pytest.raises(MachineError, match=r"status|wmctrl"):
                await attempt


async def test_what_is_no_request_is_refused_and_the_server_goes_on(local):
    import aiohttp

    async with OsworldServer(local) as server, aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        for path, body in (("/execute", b"no json"), ("/execute", b"[]"), ("/execute", b"{}"), ("/file", b"")):
            kind = {"Content-Type": "application/json"} if path == "/execute" else {}
            async with session.post(path, data=body, headers=kind) as response:
                assert response.status == 400, path
        async with session.post("/reset") as response:
            assert response.status == 404
        async with session.get("/platform") as response:
            assert await response.text() == "Linux"


async def test_a_desktop_is_driven_through_the_protocol():
    machine = await DesktopProvider().create("m-osworld", "us")
    try:
        async with reached(machine.computer) as client:
            assert client.screen_size == machine.computer.screen_size
            await client.input([MoveTo(321, 123)])
            assert await machine.computer.pointer() == (321, 123)
            assert (await client.screenshot()).startswith(b"\x89PNG")
            assert (await client.accessibility_tree()).lstrip().startswith("<")
    finally:
        await machine.destroy()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def foreign(**handlers: Handler) -> AsyncIterator[tuple[int, Counter[str]]]:
    """A server that is not ours; it counts what it is asked. `a__b` stands for the path /a/b."""
    asked: Counter[str] = Counter()

    async def platform(_: web.Request) -> web.Response:
        return web.Response(text="Linux")

    async def screen_size(_: web.Request) -> web.Response:
        return web.json_response({"width": 800, "height": 600})

    async def dispatch(request: web.Request) -> web.StreamResponse:
        name = request.path.strip("/").replace("/", "__")
        asked[name] += 1
        return await known[name](request)

    known: dict[str, Handler] = {"platform": platform, "screen_size": screen_size} | handlers
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", dispatch)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], asked
    finally:
        await runner.cleanup()


async def run_as_osworld_does(request: web.Request) -> web.Response:
    """No limit but its own, which is answered as an error; so is a program that is not there."""
    told = await request.json()
    try:
        done = await asyncio.to_thread(
            subprocess.run, told["command"], shell=told["shell"], capture_output=True, text=True, timeout=3, check=False
        )
    except (subprocess.TimeoutExpired, OSError) as exc:
        return web.json_response({"status": "error", "message": str(exc)}, status=500)
    answer = {"status": "success", "output": done.stdout, "error": done.stderr, "returncode": done.returncode}
    return web.json_response(answer)


async def test_a_foreign_server_is_made_to_keep_limits():
    async with foreign(execute=run_as_osworld_does) as (port, _), OsworldComputer("127.0.0.1", port) as client:
        done = await client.execute("echo begun; sleep 30 & sleep 30", timeout=0.3)
        assert (done.returncode, done.stdout) == (None, "begun\n")
        assert (await client.execute(["sleep", "0.01"], timeout=5)).returncode == 0
        assert (await client.execute("kill -9 $$", timeout=5)).returncode != 0
        assert (await client.execute(["printf", "%s", "a b"], timeout=5)).stdout == "a b"
        assert (await client.execute(["no-such-program"], timeout=5)).returncode == 127
        assert (await client.execute(["no-such-program"])).returncode == 127
        assert (await client.execute("exec sleep 30")).returncode is None


async def cut(request: web.Request) -> web.Response:
    """Take the request, and end the connection without an answer."""
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_an_act_is_never_sent_twice_and_a_look_is():
    async def screenshot(request: web.Request) -> web.Response:
        if asked["screenshot"] < 3:
            return await cut(request)
        return web.Response(body=b"\x89PNG\r\n\x1a\n")

    servers = foreign(execute=cut, setup__launch=cut, setup__upload=cut, screenshot=screenshot, terminal=cut)
    async with servers as (port, asked), OsworldComputer("127.0.0.1", port) as client:
        assert await client.screenshot() == b"\x89PNG\r\n\x1a\n"
        acts = (client.input(EVENTS), client.execute("x"), client.launch("x"), client.write_file("x", b""))
        for attempt in (*acts, client.terminal_text()):
            with pytest.raises(MachineError):
                await attempt
    assert asked["screenshot"] >= 3
    assert asked["terminal"] >= 3
    assert (asked["execute"], asked["setup__launch"], asked["setup__upload"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 200), (b"[1]", 200), (b"{}", 500), (b"<html>", 502), (b'{"returncode": "x"}', 200)]
)
async def test_an_answer_that_makes_no_sense_is_an_error(body, status):
    async def nonsense(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    servers = foreign(execute=nonsense, accessibility=nonsense, window_size=nonsense, screenshot=nonsense)
    async with servers as (port, _), OsworldComputer("127.0.0.1", port) as client:
        attempts = (
            *(client.execute("x"), client.input(EVENTS), client.accessibility_tree()),
            *(client.window_size("x"), client.screenshot()),
        )
        for attempt in attempts:
            with pytest.raises(MachineError):
                await attempt


@asynccontextmanager
async def attached(tmp_path: Path, computer: object, **settings: object) -> AsyncIterator[AttachProvider]:
    async with OsworldServer(computer) as server:
        machines = (f"127.0.0.1:{server.port}",)
        provider = AttachProvider(AttachSettings(machines=machines, **settings), folder=tmp_path / "claims")
        yield provider
        await provider.close()


async def test_a_used_machine_without_a_way_to_reset_it_is_not_used_again(tmp_path, local):
    async with attached(tmp_path, local) as provider:
        machine = await provider.create("m-1", "us")
        await machine.plant("mark")
        await machine.reset()
        assert not await machine.has("mark")
        await machine.computer.screenshot()
        await machine.reset()
        await machine.computer.execute("true")
        with pytest.raises(MachineError, match="no way to reset"):
            await machine.reset()
        await machine.destroy()
        with pytest.raises(MachineError, match="used and without a way"):
            await provider.create("m-2", "us")


async def test_a_used_machine_is_handed_on_as_it_is_if_the_user_says_so(tmp_path, local):
    async with attached(tmp_path, local, reuse=True) as provider:
        machine = await provider.create("m-1", "us")
        await machine.computer.execute("true")
        await machine.plant("mark")
        await machine.reset()
        assert not await machine.has("mark")
        await machine.destroy()
        await (await provider.create("m-2", "us")).destroy()


async def test_a_command_resets_a_machine(tmp_path, local):
    told = tmp_path / "told"
    async with attached(tmp_path, local, reset_command=f"sh -c 'echo {{host}} {{port}} >> {told}'") as provider:
        machine = await provider.create("m-1", "us")
        await machine.computer.execute("true")
        await machine.reset()
        assert told.read_text() == f"127.0.0.1 {machine.endpoint.port}\n"
        await machine.destroy()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"reset_command": "sh -c 'echo it broke >&2; exit 7'"}, "7: it broke"),
        ({"reset_command": "no-such-program"}, "no-such-program"),
        ({"reset_command": "sh -c 'sleep 4740; true'", "reset_seconds": 0.3}, "within 0.3 s"),
        ({"reset_url": "http://{host}:{port}/no-such-path"}, "404"),
        ({"reset_url": "http://127.0.0.1:1/"}, "127.0.0.1:1"),
    ],
)
async def test_a_reset_that_fails_says_why_and_leaves_nothing_running(tmp_path, local, settings, reason):
    async with no_leaks(), attached(tmp_path, local, **settings) as provider:
        machine = await provider.create("m-1", "us")
        with pytest.raises(MachineError, match=reason):
            await machine.reset()
        await machine.destroy()

    async def ended() -> bool:
        return (await asyncio.to_thread(subprocess.run, ["pgrep", "-f", "[s]leep 4740"], check=False)).returncode == 1

    await eventually(ended)


async def test_a_machine_is_held_by_one_pool_only(tmp_path, local):
    async with attached(tmp_path, local) as provider:
        other = AttachProvider(provider._settings, folder=tmp_path / "claims")
        machine = await provider.create("m-1", "us")
        with pytest.raises(MachineError, match="in use"):
            await other.create("m-2", "them")
        assert await other.adopt("m-1", machine.address) is None
        await machine.destroy()
        taken = await other.create("m-2", "them")
        assert await provider.owned("them") == (taken.address,)
        await taken.destroy()


async def test_machines_that_do_not_answer_are_named_before_anything_starts(tmp_path, local):
    async with attached(tmp_path, local) as provider:
        await provider.check(1)
        with pytest.raises(InvalidInput, match="2 machines are wanted, and attach lists 1"):
            await provider.check(2)
        settings = AttachSettings(machines=("127.0.0.1:1", *provider._settings.machines))
        with pytest.raises(InvalidInput, match=r"127\.0\.0\.1:1 \("):
            await AttachProvider(settings, folder=tmp_path / "claims").check(1)


@pytest.mark.parametrize("text", ["", "http://x:5000", "a:b", "x:0", "x:70000", "x y", "[::1", "a:1:2"])
def test_what_is_no_host_and_port_is_refused(text):
    with pytest.raises(InvalidInput, match="write host:port"):
        AttachProvider(AttachSettings(machines=(text,)))


def test_the_port_may_be_left_out_and_one_way_to_reset_is_enough():
    provider = AttachProvider(AttachSettings(machines=("host", "[::1]:99", "host:5000")))
    assert [str(endpoint) for endpoint in provider._endpoints] == ["host:5000", "[::1]:99"]
    with pytest.raises(InvalidInput, match="not both"):
        AttachProvider(AttachSettings(machines=("host",), reset_command="x", reset_url="y"))
