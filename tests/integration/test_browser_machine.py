"""Browsers as machines, on a real Chromium: what is left of a holder, who is cut off and when, what is refused."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import async_playwright

from outrider.core.errors import InvalidInput, MachineError, MachineRefusal
from outrider.env.sandbox.census import family
from outrider.pool.browser import process, relay
from outrider.pool.computer import Button, Key, MoveTo, Press, Scroll, Text
from outrider.pool.config import PoolConfig
from outrider.pool.pool import MachinePool
from outrider.pool.providers.browser import BrowserMachine, BrowserProvider, BrowserSettings
from outrider.pool.registry import provider_of
from outrider.pool.spec import MachineSpec
from outrider.store import open_store
from outrider.testing import eventually
from processes import line, program, tell
from promptly import within

Connect = Callable[[Any], Awaitable[Chromium]]
US = f"us-{os.getpid()}"
DEAD_SECONDS = 1.0
LISTENING = "0A"

HOLDER = """
import asyncio, aiohttp, sys

async def main(address):
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(address) as browser:
            async def ask(number, method, **params):
                await browser.send_json({"id": number, "method": method, "params": params})
                while (said := await browser.receive_json(timeout=20)).get("id") != number:
                    pass
                return said["result"]
            context = (await ask(1, "Target.createBrowserContext"))["browserContextId"]
            await ask(2, "Target.createTarget", url="about:blank#before", browserContextId=context)
            print("holds", flush=True)
            sys.stdin.readline()
            try:
                await ask(3, "Target.createTarget", url="about:blank#late", browserContextId=context)
                print("obeyed", flush=True)
            except (TypeError, ConnectionError) as exc:
                print("cut off", flush=True)
        try:
            await session.ws_connect(address)
            print("let in", flush=True)
        except aiohttp.WSServerHandshakeError as exc:
            print(exc.status, flush=True)

asyncio.run(main(sys.argv[1]))
"""
"""Has a page in the browser; when it is told to, it opens another, and comes back by the same address."""

OWNER = """
import asyncio, json, sys
from pathlib import Path
from outrider.pool.providers.browser import BrowserProvider

async def main(folder, owner):
    machine = await BrowserProvider(folder=Path(folder)).create("m-1", owner)
    print(json.dumps(dict(machine.address)), flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""

PAGE = """<body style="margin: 0; height: 5000px"><input id=field style="position: absolute; left: 100px; top: 100px">
<button id=button style="position: absolute; left: 100px; top: 200px; width: 90px; height: 40px"
 ondblclick="this.textContent = 'twice'" oncontextmenu="this.textContent = 'menu'; return false">Push</button></body>"""


@contextmanager
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ob-") as name:
        yield Path(name) / "machines"
        assert list(Path(name).iterdir()) == []


@asynccontextmanager
async def a_machine(**settings: Any) -> AsyncIterator[BrowserMachine]:
    with place() as folder:
        provider = BrowserProvider(folder=folder, settings=BrowserSettings(**settings))
        machine = await provider.create("m-1", US)
        try:
            yield machine
        finally:
            await machine.destroy()
            await provider.close()


@pytest.fixture
async def machine() -> AsyncIterator[BrowserMachine]:
    async with a_machine() as machine:
        yield machine


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes a holder that uses Playwright."""
    async with async_playwright() as playwright, AsyncExitStack() as opened:

        async def connect(machine: Any) -> Chromium:
            chromium = await playwright.chromium.connect_over_cdp(machine.address["devtools"])
            opened.push_async_callback(chromium.close)
            return chromium

        yield connect


class Raw:
    """A holder that speaks the protocol itself."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self._number = 0

    async def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        await self.socket.send_json(message if session is None else message | {"sessionId": session})
        while (said := await self.socket.receive_json(timeout=20)).get("id") != self._number:
            pass
        return said

    async def page(self) -> str:
        """A session with a new page."""
        context = (await self.ask("Target.createBrowserContext"))["result"]["browserContextId"]
        made = await self.ask("Target.createTarget", url="about:blank", browserContextId=context)
        target = made["result"]["targetId"]
        return (await self.ask("Target.attachToTarget", targetId=target, flatten=True))["result"]["sessionId"]


@asynccontextmanager
async def raw(machine: Any) -> AsyncIterator[Raw]:
    async with aiohttp.ClientSession() as session, session.ws_connect(machine.address["devtools"]) as socket:
        yield Raw(socket)


@asynccontextmanager
async def a_site() -> AsyncIterator[str]:
    """A proxy that has one page under every name."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<textarea id=field></textarea>"
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_holder_finds_nothing_of_the_one_before(machine, connect):
    pid = machine.address["pid"]
    async with a_site() as proxy:
        first = await connect(machine)
        page = await (await first.new_context(proxy={"server": proxy})).new_page()
        await page.goto("http://site.test/")
        await page.evaluate("document.cookie = 'mine=1'; localStorage.mine = 1")
        await page.fill("#field", "a secret")
        await page.press("#field", "Control+a")
        await page.press("#field", "Control+c")

        reason = await machine.reset()

        assert not first.is_connected()
        async with raw(machine) as holder:
            assert (await holder.ask("Target.getBrowserContexts"))["result"]["browserContextIds"] == []
            assert (await holder.ask("Target.getTargets"))["result"]["targetInfos"] == []
            assert (await holder.ask("Storage.getCookies"))["result"]["cookies"] == []
        second = await connect(machine)
        assert [page for context in second.contexts for page in context.pages] == []
        page = await (await second.new_context(proxy={"server": proxy})).new_page()
        await page.goto("http://site.test/")
        assert await page.evaluate("[document.cookie, localStorage.length]") == ["", 0]
        await page.press("#field", "Control+v")
        assert await page.input_value("#field") == ""
    assert machine.address["pid"] == pid, reason


@pytest.mark.parametrize(
    ("acts_focused", "reason"),
    [(True, None), (False, "its process was replaced: its clipboard did not become empty")],
    ids=["acts as if it had the focus", "does not"],
)
async def test_a_page_without_the_focus_empties_the_clipboard_only_as_if_it_had_it(
    machine, connect, monkeypatch, acts_focused, reason
):
    """A new page gets the focus some time after it is made. One that is opened in the background never does."""
    line = machine._current().chromium.line
    ask, asked = line.call, []

    async def call(method: str, **params: Any) -> dict[str, Any]:
        asked.append(method)
        if method == "Target.createTarget":
            params["background"] = True
        if method == "Emulation.setFocusEmulationEnabled" and not acts_focused:
            return {}
        return await ask(method, **params)

    page = await (await (await connect(machine)).new_context()).new_page()
    await page.set_content("<textarea>a secret</textarea>")
    await page.press("textarea", "Control+a")
    await page.press("textarea", "Control+c")
    monkeypatch.setattr(line, "call", call)
    assert await machine.reset() == reason
    assert {"Target.createTarget", "Emulation.setFocusEmulationEnabled"} <= set(asked)


async def test_a_process_whose_clipboard_does_not_become_empty_is_replaced(machine, connect, monkeypatch):
    monkeypatch.setattr(process, "_EMPTY_CLIPBOARD", process._EMPTY_CLIPBOARD.replace("execCommand('copy')", "body"))
    pid = machine.address["pid"]
    page = await (await (await connect(machine)).new_context()).new_page()
    await page.set_content("<textarea>a secret</textarea>")
    await page.press("textarea", "Control+a")
    await page.press("textarea", "Control+c")
    assert await machine.reset() == "its process was replaced: its clipboard did not become empty"
    assert machine.address["pid"] != pid


@pytest.mark.parametrize("by", [pytest.param("pages", marks=pytest.mark.soak), "its number"])
async def test_a_process_whose_default_context_was_used_is_replaced(machine, connect, by):
    pid = machine.address["pid"]
    if by == "pages":
        page = await (await connect(machine)).contexts[0].new_page()
        await page.close()
    else:
        async with raw(machine) as holder:
            default = (await holder.ask("Target.getBrowserContexts"))["result"]["defaultBrowserContextId"]
            made = await holder.ask("Target.createTarget", url="about:blank", browserContextId=default)
            await holder.ask("Target.closeTarget", targetId=made["result"]["targetId"])
    await machine.reset()
    assert machine.address["pid"] != pid
    await machine.probe()


async def test_a_process_is_replaced_after_so_many_uses():
    async with a_machine(max_uses_per_process=2) as machine:
        pids = []
        for _ in range(4):
            await machine.reset()
            pids.append(machine.address["pid"])
        assert pids[0] != pids[1] == pids[2] != pids[3]
        await machine.probe()


async def test_a_process_that_died_or_hangs_is_replaced_by_a_reset(machine):
    for blow in (signal.SIGKILL, signal.SIGSTOP):
        pid = machine.address["pid"]
        os.kill(pid, blow)
        await machine.reset()
        assert machine.address["pid"] != pid
        await machine.probe()


async def test_the_journal_tells_why_a_process_was_replaced():
    settings = BrowserSettings(max_uses_per_process=1)
    store = await open_store("memory://")
    with place() as folder:
        provider = BrowserProvider(folder=folder, settings=settings)
        async with MachinePool(provider, PoolConfig(name=US, n_machines=1), journal=store) as pool:
            for _ in range(2):
                (lease,) = await pool.take(deadline=60)
                lease.release()
        reasons = [move.reason for move in await store.query_machine_moves() if move.state == "ready"]
    await store.close()
    assert reasons[-2:] == ["clean: its process was replaced: it was used 1 times", "clean"]


async def test_a_stopped_holder_can_do_nothing_once_its_lease_was_revoked():
    with place() as folder:
        async with MachinePool(BrowserProvider(folder=folder), PoolConfig(name=US, n_machines=1)) as pool:
            (lease,) = await pool.take(deadline=60)
            with program(HOLDER, lease.address["devtools"]) as old:
                assert await asyncio.to_thread(line, old) == "holds"
                old.send_signal(signal.SIGSTOP)
                pool.revoke(lease.machine_id, "it does not answer")
                (next_lease,) = await pool.take(deadline=60)
                assert next_lease.machine_id == lease.machine_id
                tell(old)
                old.send_signal(signal.SIGCONT)
                assert await asyncio.to_thread(line, old) == "cut off"
                assert await asyncio.to_thread(line, old) == "403"
                async with raw(next_lease) as holder:
                    assert (await holder.ask("Target.getTargets"))["result"]["targetInfos"] == []
            next_lease.release()


async def test_a_holder_is_cut_off_at_once_when_its_browser_is_killed(machine):
    waiting = asyncio.create_task(machine.wait_until_dead())
    async with raw(machine) as holder:
        await holder.page()
        os.kill(machine.address["pid"], signal.SIGKILL)
        with within(DEAD_SECONDS):
            assert "has ended" in await waiting
            while not holder.socket.closed:
                await holder.socket.receive()
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with raw(machine):
                pass


async def test_a_browser_ends_with_its_owner_and_what_is_left_of_it_is_found():
    with place() as folder:
        with program(OWNER, str(folder), US) as owner:
            address = json.loads(line(owner))
            pids = family(address["pid"])
            assert len(pids) > 1
            owner.kill()
            owner.wait()

        async def ended() -> bool:
            return not any(Path(f"/proc/{pid}").exists() for pid in pids)

        await eventually(ended, within_seconds=40)
        provider = BrowserProvider(folder=folder)
        assert await provider.owned(US) == (address,)
        assert await provider.adopt("m-1", address) is None
        assert await provider.owned(US) == ()
        await provider.close()


async def test_nobody_can_guess_a_way_to_a_browser(machine):
    pids = family(machine.address["pid"])
    own = set()
    for opened in (opened for pid in pids for opened in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):
            own.add(str(opened.readlink()))
    assert any(name.startswith("socket:") for name in own)
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            words = row.split()
            assert words[3] != LISTENING or f"socket:[{words[9]}]" not in own
    secret = machine.address["devtools"].rpartition("/")[2]
    assert len(secret) >= 32
    async with aiohttp.ClientSession() as session:
        for guess in ("", secret[:-1], "json/version"):
            async with session.get(machine.address["devtools"].replace("ws:", "http:").replace(secret, guess)) as reply:
                assert reply.status in (403, 404)


async def test_a_connection_uses_its_own_sessions_only(machine):
    async with raw(machine) as one, raw(machine) as other:
        session = await one.page()
        assert (await one.ask("Runtime.evaluate", session, expression="6 * 7"))["result"]["result"]["value"] == 42
        assert (await other.ask("Runtime.evaluate", session, expression="6 * 7"))["error"]["code"] == -32001
        await other.socket.send_str("not a message")
        assert (await other.socket.receive(timeout=20)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        assert "result" in await one.ask("Browser.getVersion")


async def test_a_holder_that_does_not_read_is_cut_off_and_holds_nobody_up(machine, monkeypatch):
    monkeypatch.setattr(relay, "MAX_UNREAD_BYTES", 2**20)
    async with raw(machine) as deaf:
        session = await deaf.page()
        for number in range(100, 200):
            big = {"expression": "'x'.repeat(1000000)", "returnByValue": True}
            await deaf.socket.send_json(
                {"id": number, "method": "Runtime.evaluate", "sessionId": session, "params": big}
            )

        async def refused() -> bool:
            return not machine._relay._visitors

        await eventually(refused, within_seconds=20)
        await machine.probe()


async def test_mouse_and_keys_reach_the_newest_page(machine, connect):
    computer = machine.computer
    page = await (await (await connect(machine)).new_context()).new_page()
    await page.set_content(PAGE)
    click = [Press(), Press(down=False)]
    await computer.input(
        [MoveTo(120, 110), *click, Text("Grüße 日 you"), Key("backspace"), Key("backspace", down=False)]
    )
    assert await page.input_value("#field") == "Grüße 日 yo"
    shift = [Key("shift"), Key("a"), Key("a", down=False), Key("1"), Key("1", down=False), Key("shift", down=False)]
    await computer.input([Key("ctrl"), Key("a"), Key("a", down=False), Key("ctrl", down=False), *shift])
    assert await page.input_value("#field") == "A!"
    await computer.input([MoveTo(120, 220), *click, *click])
    assert await page.inner_text("#button") == "twice"
    await computer.input([Press(Button.RIGHT), Press(Button.RIGHT, down=False)])
    assert await page.inner_text("#button") == "menu"
    assert 'button name="menu"' in (tree := await computer.accessibility_tree())
    assert 'cp:screencoord="(100, 200)" cp:size="(90, 40)"' in tree
    before = await computer.screenshot()
    await computer.input([Scroll(dy=-2)])
    await page.wait_for_function("scrollY === 200")
    assert (int.from_bytes(before[16:20]), int.from_bytes(before[20:24])) == computer.screen_size == (1280, 800)
    assert await computer.screenshot() != before


async def test_what_a_browser_cannot_do_is_refused_and_nothing_is_done(machine, connect):
    computer = machine.computer
    page = await (await (await connect(machine)).new_context()).new_page()
    await page.set_content("<input autofocus>")
    for events in ([Text("a"), Key("no-such-key")], [Text("a"), MoveTo(1280, 10)]):
        with pytest.raises(MachineRefusal):
            await computer.input(events)
    assert await page.input_value("input") == ""
    file = (computer.read_file("/x"), computer.write_file("/x", b""))
    for attempt in (computer.execute("true"), computer.launch("true"), *file):
        with pytest.raises(MachineRefusal):
            await attempt


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"snapshot": "clean"}, "takes no snapshot"),
        ({"width": 1}, "width"),
        ({"settings": {"max_uses_per_process": 0}}, "max_uses_per_process"),
        ({"settings": {"uses": 1}}, "uses"),
        ({"image": "no-such-browser"}, "no-such-browser"),
        ({"headless": False}, "display"),
    ],
)
async def test_a_spec_that_cannot_be_followed_is_refused(spec, reason, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(InvalidInput, match=reason):
        await provider_of(MachineSpec(provider="browser", **spec)).check(1)


async def test_what_is_missing_is_named_and_a_program_that_is_no_browser_leaves_nothing(monkeypatch, tmp_path):
    with place() as folder:
        provider = BrowserProvider(executable="true", folder=folder)
        with pytest.raises(MachineError, match="true cannot be started"):
            await provider.create("m-1", US)
        assert await provider.owned(US) == ()
        await provider.close()
        with pytest.raises(InvalidInput, match="too long a path"):
            await BrowserProvider(folder=folder / ("x" * 60)).create("m-1", US)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.delenv("OUTRIDER_CHROMIUM", raising=False)
    with pytest.raises(InvalidInput, match="apt install chromium"):
        await BrowserProvider().check(1)
    (tmp_path / "chromium-1").mkdir()
    with pytest.raises(InvalidInput, match="OUTRIDER_CHROMIUM"):
        await BrowserProvider().check(1)
