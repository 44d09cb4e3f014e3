"""Pages and processes that misbehave: nothing gets past the gate, nothing hangs, nothing is left behind."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
import pytest_asyncio

from leaks import _descriptors
from outrider.core.chat import ToolCall, assistant
from outrider.core.errors import EnvError
from outrider.core.task import Task
from outrider.env.web import WebConfig, WebEnvironments
from outrider.env.web.browser import Browser
from outrider.env.web.environment import WebEnvironment
from outrider.env.web.gate import Gate
from outrider.env.web.hosts import AllowedHosts
from outrider.env.web.site import Site
from outrider.pool.browser import flags
from outrider.pool.browser.executable import find_chromium
from outrider.testing import FakeClock, eventually
from processes import line, program

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGES = {
    "index.html": "<title>Lab</title><h1>Lab</h1>",
    "stuck.html": "<title>Stuck</title><script>while (true);</script>",
    "alerts.html": "<title>Alerts</title><script>for (let i = 0; ; i++) alert(`number ${i}`)</script>",
    "restless.html": "<script>setTimeout(() => location.replace('restless.html?' + Math.random()), 1)</script>",
    "tabs.html": "<button onclick=\"for (let i = 0; i < 12; i++) window.open('index.html')\">Open</button>",
    "mail.html": "<title>Mail</title><a href='mailto:someone@example.com'>Write</a>",
    "crowd.html": "<script>document.write('<b>x</b>'.repeat(60000))</script>",
    "stay.html": "<button>Touch</button><script>onbeforeunload = event => event.preventDefault()</script>",
}
"""A site that is not good to its visitors."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "lab").mkdir()
    for name, content in PAGES.items():
        (folder / "lab" / name).write_text(content)
    return folder


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders with the programs by which a desktop opens things, each of which leaves a trace where it is."""
    root = tmp_path_factory.mktemp("desktop")
    for folder in (root / "instead", root / "real"):
        folder.mkdir()
        for name in ("xdg-open", "xdg-email"):
            (folder / name).write_text(f"#!/bin/sh\ntouch {folder}/run\n")
            (folder / name).chmod(0o755)
    return root


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(desktop: Path, pages: Path) -> AsyncIterator[Browser]:
    """For what leaves the browser itself alone. Its desktop is not that of the machine."""
    shared = Browser(executable=find_chromium(), max_contexts=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{desktop / 'real'}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("OPENAI_API_KEY", "a-secret-key")
        patch.setattr(flags, "NOTHING", desktop / "instead")
        async with visiting(shared, pages):
            pass
    yield shared
    await shared.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def window(browser: Browser, pages: Path) -> AsyncIterator["Visitor"]:
    """One episode that goes through all that a page can do to it."""
    async with visiting(browser, pages) as visitor:
        yield visitor


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(window: "Visitor") -> "Visitor":
    window.hurry(60)
    assert "opened (HTTP 200)" in await window.open("index.html"), "what the test before has left cannot be left"
    return window


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Where browsers that are started meanwhile keep their files. Its name is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="web-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def temporary() -> Iterator[Path]:
    with temporary_folder() as folder:
        yield folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def victim() -> AsyncIterator[Browser]:
    """A browser to be killed."""
    mortal = Browser(executable=find_chromium())
    with temporary_folder():
        yield mortal
        await mortal.close()


Serve = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A server on loopback that remembers what it was asked, and answers as told, or never."""

    def __init__(self, serve: Serve | None = None) -> None:
        self._serve = serve
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        self.heads: list[bytes] = []
        self.asked = asyncio.Event()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(self._answer(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                self.heads.append(await reader.read(65536))
                self.asked.set()
                await (self._serve or wait)(self.heads[-1], reader, writer)
        finally:
            writer.close()


async def wait(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the other side has had enough."""
    await reader.read()


async def redirect_to(writer: asyncio.StreamWriter, location: str) -> None:
    writer.write(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()


class Visitor:
    """One episode on a browser that others use too."""

    def __init__(self, env: WebEnvironment) -> None:
        self.env = env

    async def call(self, tool: str, **arguments: Any) -> str:
        call = ToolCall(id="1", name=tool, arguments=json.dumps(arguments))
        (message,) = (await self.env.step(assistant(tool_calls=(call,)))).observation
        return message.content

    def hurry(self, seconds: float) -> None:
        """Let each action have so little time from now on."""
        self.env._actions._milliseconds = seconds * 400
        self.env._actions.window._seconds = seconds

    async def open(self, page: str) -> str:
        return await self.call("open", url=f"http://lab.test/{page}")

    async def ref(self, name: str) -> str:
        tree = await self.call("read")
        (found,) = [line for line in tree.splitlines() if f'"{name}"' in line]
        return found.partition("[")[2].partition("]")[0]

    async def click(self, name: str) -> str:
        return await self.call("click", ref=await self.ref(name))

    async def run(self, script: str) -> Any:
        return await self.env._actions.window._tabs[-1].evaluate(script)


def environments(browser: Browser, pages: Path, hosts: tuple[str, ...] = ()) -> WebEnvironments:
    made = WebEnvironments(WebConfig(pages=str(pages), action_seconds=60, allowed_hosts=hosts))
    made._browser = browser
    return made


@asynccontextmanager
async def visiting(
    browser: Browser, pages: Path, *, hosts: tuple[str, ...] = (), site: str | None = "lab"
) -> AsyncIterator[Visitor]:
    env = environments(browser, pages, hosts).make(Task(task_id="t", answer="a", metadata={"site": site}))
    try:
        await env.reset()
        yield Visitor(env)
    finally:
        await env.close()


def processes_with(text: str) -> list[int]:
    """The processes in whose command line `text` stands, wherever they belong."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                if text.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
    return found


def profile_of(pid: int) -> str:
    """The folder that all processes of one Chromium, and only they, name in their command lines."""
    words = (Path("/proc") / str(pid) / "cmdline").read_text().split("\0")
    return next(word for word in words if word.startswith("--user-data-dir=")).partition("=")[2]


async def gone(profile: str) -> None:
    async def nothing() -> bool:
        return not processes_with(profile) and not Path(profile).exists()

    await eventually(nothing, within_seconds=20)


async def test_a_page_that_hangs_is_told_of_and_can_be_left(visitor: Visitor):
    await visitor.run("() => { setTimeout(() => { while (true); }, 0); }")
    visitor.hurry(0.5)
    assert "does not answer any more" in await visitor.call("read", mode="text")
    visitor.hurry(60)
    assert "opened (HTTP 200)" in await visitor.open("index.html")


async def test_dialogs_without_end_are_answered_for_a_while(visitor: Visitor):
    visitor.hurry(2)
    assert "'number 0'; it was answered with OK" in await visitor.open("alerts.html")
    assert visitor.env._actions.window._n_dialogs <= 21
    visitor.hurry(60)
    assert "opened (HTTP 200)" in await visitor.open("index.html")


async def test_a_page_that_never_comes_to_rest_can_be_left(visitor: Visitor):
    visitor.hurry(0.5)
    await visitor.open("restless.html")
    visitor.hurry(60)
    assert "opened (HTTP 200)" in await visitor.open("index.html")


async def test_tabs_without_end_are_refused_after_a_few(visitor: Visitor):
    await visitor.open("tabs.html")
    assert "one more tab, which was refused" in await visitor.click("Open")
    for _ in range(4):
        assert "closed the tab" in await visitor.call("back")
    assert "tabs.html" in await visitor.call("scroll")


async def test_a_page_that_wants_to_keep_its_visitor_is_left_all_the_same(visitor: Visitor):
    await visitor.open("stay.html")
    await visitor.click("Touch")
    assert 'http://lab.test/ "Lab"' in await visitor.open("")


async def test_a_crowded_page_has_no_tree_but_text(visitor: Visitor):
    await visitor.open("crowd.html")
    assert "too many for a tree; read its text" in await visitor.call("read")
    assert "of 60000; read on with start=12000" in await visitor.call("read", mode="text")


async def test_a_crashed_page_is_told_of_and_can_be_left(visitor: Visitor):
    with suppress(Exception):
        await visitor.env._actions.window._tabs[-1].goto("chrome://crash")
    assert "the page crashed; open another one" in await visitor.call("read")
    assert "opened (HTTP 200)" in await visitor.open("index.html")


async def test_a_page_opens_no_program_of_the_desktop(visitor: Visitor, desktop: Path):
    async def caught() -> bool:
        return (desktop / "instead" / "run").exists()

    await visitor.open("mail.html")
    assert "clicked" in await visitor.click("Write")
    await eventually(caught)
    assert not (desktop / "real" / "run").exists()
    for name in ("xdg-open", "xdg-email"):
        assert subprocess.run([flags.NOTHING / name, "mailto:x"], capture_output=True, check=True).stdout == b""


async def test_the_browser_does_not_know_the_keys_of_the_model(browser: Browser):
    (chromium,) = browser.processes

    assert b"a-secret-key" not in (Path("/proc") / str(chromium.pid) / "environ").read_bytes()


async def test_a_server_that_never_answers_is_given_up_and_the_page_before_stays(browser: Browser, pages: Path):
    async with Server() as server, visiting(browser, pages, hosts=(server.host,)) as visitor:
        await visitor.run(f"() => {{ document.body.innerHTML = '<a href=http://{server.host}/>Slow</a>'; }}")
        link = await visitor.ref("Slow")
        visitor.hurry(0.8)
        assert "has been stopped" in await visitor.call("open", url=f"http://{server.host}/")
        assert "has been stopped" in await visitor.call("click", ref=link)
        visitor.hurry(60)
        assert await visitor.call("read", mode="text") == "Slow"


async def test_a_page_that_never_ends_can_be_read_as_far_as_it_came(browser: Browser, pages: Path):
    async def drip(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<h1>So far</h1>" + b" " * 2048)
        await wait(head, reader, writer)

    async with Server(drip) as server, visiting(browser, pages, hosts=(server.host,)) as visitor:
        visitor.hurry(1.5)
        await visitor.call("open", url=f"http://{server.host}/")
        visitor.hurry(60)
        assert await visitor.call("read", mode="text") == "So far"


async def test_no_request_reaches_a_host_that_is_not_allowed(browser: Browser, pages: Path):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    udp.setblocking(False)
    async with Server() as other, visiting(browser, pages) as visitor:
        address = f"127.0.0.1:{other.port}"
        stun = f"127.0.0.1:{udp.getsockname()[1]}"
        tried = await visitor.run(f"""async () => {{
            const settled = promise => promise.then(() => 'got through', () => 'failed');
            const loads = (tag, property, url) => settled(new Promise((done, fail) => {{
                const element = document.createElement(tag);
                Object.assign(element, {{onload: done, onerror: fail, [property]: url}});
                document.body.append(element);
            }}));
            const socket = url => settled(new Promise((done, fail) => {{
                Object.assign(new WebSocket(url), {{onopen: done, onerror: fail}});
            }}));
            const ice = [{{urls: 'stun:{stun}'}}, {{urls: ['turn:{stun}', 'turn:{address}?transport=tcp'],
                username: 'u', credential: 'c'}}];
            const peer = new RTCPeerConnection({{iceServers: ice}});
            peer.createDataChannel('x');
            await peer.setLocalDescription(await peer.createOffer());
            const gathered = new Promise(done => {{ peer.onicecandidate = event => event.candidate || done(); }});
            navigator.sendBeacon('http://{address}/beacon', 'x');
            for (const rel of ['preconnect', 'prefetch', 'dns-prefetch']) {{
                document.head.append(Object.assign(document.createElement('link'), {{rel, href: 'http://{address}/'}}));
            }}
            const results = await Promise.all([
                settled(fetch('http://{address}/fetch').then(reply => {{ if (!reply.ok) throw 1; }})),
                settled(fetch('http://localhost:{other.port}/', {{method: 'POST', body: 'x', mode: 'cors'}})),
                settled(fetch('https://{address}/')),
                loads('img', 'src', 'http://{address}/image'),
                loads('script', 'src', 'http://2130706433:{other.port}/script'),
                socket('ws://{address}/'), socket('wss://{address}/'),
            ]);
            await Promise.race([gathered, new Promise(done => setTimeout(done, 3000))]);
            return results;
        }}""")
        told = await visitor.call("scroll")
        await visitor.run(f"() => {{ location.href = 'http://{address}/navigated'; }}")
        landed = await visitor.call("scroll")
        nothing = other.heads
        with pytest.raises(BlockingIOError):
            udp.recv(1)
    udp.close()
    assert set(tried) == {"failed"}
    assert nothing == []
    assert f"note: blocked: http://{address}/fetch is not on an allowed host" in told
    assert f"blocked: http://{address}/navigated" in told + landed


async def test_a_redirect_does_not_lead_past_the_gate(browser: Browser, pages: Path):
    async with Server() as forbidden:

        async def lead_away(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await redirect_to(writer, f"http://{forbidden.host}/secret")

        async with (
            Server(lead_away) as allowed,
            visiting(browser, pages, hosts=(allowed.host,)) as visitor,
        ):
            told = await visitor.call("open", url=f"http://{allowed.host}/start")

    assert "opened (HTTP 403)" in told
    assert f"note: blocked: http://{forbidden.host}/secret" in told
    assert len(allowed.heads) == 1
    assert forbidden.heads == []


async def test_redirects_without_end_are_given_up(browser: Browser, pages: Path):
    async def again(head: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await redirect_to(writer, f"/{head.split()[1].decode().count('x') * 'x'}x")

    async with Server(again) as server, visiting(browser, pages, hosts=(server.host,)) as visitor:
        told = await visitor.call("open", url=f"http://{server.host}/")

    assert "redirects without end" in told


async def test_an_allowed_host_is_reached_by_every_way_and_a_dead_one_is_told_of(browser: Browser, pages: Path):
    async def echo(head: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = head.partition(b"\r\n\r\n")[2]
        reply = b"<title>Echo</title>" + head.partition(b"\r\n")[0] + b"<br>" + body
        writer.write(b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Type: text/html\r\n\r\n" + reply)
        await writer.drain()

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        async with Server(echo) as server:
            hosts = (server.host, f"localhost:{server.port}", dead)
            async with visiting(browser, pages, hosts=hosts) as visitor:
                opened = await visitor.call("open", url=f"http://{server.host}/a?b=1&c#d")
                shown = await visitor.call("read", mode="text")
                posted = await visitor.run(f"""() =>
                    fetch('http://localhost:{server.port}/p', {{method: 'POST', body: 'abc'}}).then(r => r.text())""")
                await visitor.run(f"() => fetch('https://{server.host}/').catch(() => 0)")
                refused = await visitor.call("open", url=f"http://{dead}/")

    assert "opened (HTTP 200)\npage: http://127.0.0.1" in opened
    assert shown.strip() == "GET /a?b=1&c HTTP/1.1"
    assert posted.endswith("POST /p HTTP/1.1<br>abc")
    assert b"Proxy-" not in server.heads[0]
    assert f"Host: {server.host}\r\n".encode() in server.heads[0]
    assert any(head.startswith(b"\x16\x03") for head in server.heads), "a tunnel carries the browser's own TLS"
    assert "opened (HTTP 502)" in refused
    assert f"note: http://{dead}/ cannot be reached" in refused


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET http://lab.test/ HTTP/1.1\r\n\r\n", b"200"),
        (b"HEAD http://lab.test/ HTTP/1.1\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nHost: lab.test\r\n\r\n", b"400"),
        (b"GET ftp://lab.test/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http:///nowhere HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://lab.test:0/ HTTP/1.1\r\n\r\n", b"400"),
        (b"POST http://lab.test/ HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", b"405"),
        (b"POST http://open.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"POST http://open.test/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"411"),
        (b"CONNECT lab.test:80 HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT http://lab.test/ HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT :99999 HTTP/1.1\r\n\r\n", b"400"),
        (b"\x00\xff\xfe\r\n\r\n", b"400"),
        (b"GET http://lab.test/ HTTP/1.1\r\n" + b"a: b\r\n" * 20000 + b"\r\n", b"431"),
    ],
)
async def test_the_gate_answers_whatever_it_is_asked(pages: Path, request_: bytes, status: bytes):
    async with asking(Gate(AllowedHosts(["open.test"]), Site(pages, "lab"))) as ask:
        assert (await ask(request_)).startswith(b"HTTP/1.1 " + status)


async def test_a_name_that_turns_out_to_be_this_machine_is_not_behind_a_wildcard():
    async with Server() as server:
        gate = Gate(AllowedHosts([f"*:{server.port}"]))
        async with asking(gate) as ask:
            reply = await ask(f"GET http://localhost:{server.port}/ HTTP/1.1\r\n\r\n".encode())

    assert reply.startswith(b"HTTP/1.1 403")
    assert "private network" in gate.take_notes()[0]
    assert server.heads == []


async def test_a_second_request_on_a_connection_does_not_go_to_the_first_host():
    async def answer_and_stay(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        later.append(await reader.read())

    later: list[bytes] = []
    async with Server(answer_and_stay) as server, asking(Gate(AllowedHosts([server.host]))) as ask:
        first = f"POST http://{server.host}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody".encode()
        assert (await ask(first)).startswith(b"HTTP/1.1 200")
        assert await ask(b"GET http://other.test/secret HTTP/1.1\r\nCookie: secret\r\n\r\n") == b""

    assert server.heads[0].endswith(b"\r\n\r\nbody") or later == [b"body"]
    assert b"secret" not in b"".join([*server.heads, *later])


@asynccontextmanager
async def asking(gate: Gate) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    host, port = (await gate.open()).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def ask(request: bytes) -> bytes:
        writer.write(request)
        return await reader.read(100)

    try:
        yield ask
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        await gate.close()


async def test_a_killed_browser_fails_its_episodes_at_once_and_the_next_gets_a_new_one(victim: Browser, pages: Path):
    async with (
        Server() as server,
        visiting(victim, pages, hosts=(server.host,)) as visitor,
        visiting(victim, pages) as idle,
    ):
        (chromium,) = victim.processes
        profile = profile_of(chromium.pid)
        acting = asyncio.ensure_future(visitor.call("open", url=f"http://{server.host}/"))
        await server.asked.wait()
        os.kill(chromium.pid, signal.SIGKILL)
        with pytest.raises(EnvError, match="died"):
            async with asyncio.timeout(30):  # of the 60 that the action has
                await acting
        with pytest.raises(EnvError, match="died"):
            await idle.call("read")
    async with visiting(victim, pages) as visitor:
        assert "Lab" in await visitor.call("read")
        assert chromium not in victim.processes
    await gone(profile)
    assert len(chromium._folders) == 2
    assert not any(folder.exists() for folder in chromium._folders)


async def test_a_killed_driver_is_a_lost_browser(victim: Browser, pages: Path):
    async with visiting(victim, pages) as visitor:
        (chromium,) = victim.processes
        driver = int((Path("/proc") / str(chromium.pid) / "stat").read_text().rpartition(")")[2].split()[1])
        profile = Path(profile_of(chromium.pid))
        os.kill(driver, signal.SIGKILL)
        with pytest.raises(EnvError, match="died"):
            await visitor.call("read")

        async def dead() -> bool:
            return not processes_with(str(profile))

        await eventually(dead, within_seconds=20)
    async with visiting(victim, pages) as visitor:
        assert "Lab" in await visitor.call("read")


async def test_an_episode_cancelled_in_mid_navigation_leaves_nothing_in_the_browser(browser: Browser, pages: Path):
    async def visit() -> None:
        async with visiting(browser, pages, hosts=(server.host,)) as visitor:
            await visitor.call("open", url=f"http://{server.host}/")

    (chromium,) = browser.processes
    contexts, before = chromium._chromium.contexts, _descriptors()
    async with Server() as server:
        acting = asyncio.ensure_future(visit())
        await server.asked.wait()
        acting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acting
    assert chromium._chromium.contexts == contexts
    assert chromium.n_open == len(contexts)

    async def as_before() -> bool:
        return not _descriptors() - before

    await eventually(as_before)


async def test_episodes_cancelled_at_any_moment_of_their_start_give_their_place_back(browser: Browser, pages: Path):
    made = environments(browser, pages)
    n_before = sum(one.n_open for one in browser.processes)

    async def begin() -> None:
        env = made.make(Task(task_id="t", answer="a", metadata={"site": "lab"}))
        try:
            await env.reset()
        finally:
            await env.close()

    for n_rounds in (0, 2, 10, 50):
        beginning = asyncio.ensure_future(begin())
        for _ in range(n_rounds):
            await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait([beginning])

    async def all_given_back() -> bool:
        return [len(one._chromium.contexts) for one in browser.processes] == [n_before]

    await eventually(all_given_back)
    leases = [await browser.acquire("http://127.0.0.1:1") for _ in range(5 - n_before)]
    for lease in leases:
        await browser.release(lease)


async def test_worn_processes_are_replaced_once_their_last_episode_has_gone(pages: Path):
    clock = FakeClock()
    own = Browser(executable=find_chromium(), max_contexts_per_process=2, max_process_minutes=10, clock=clock)
    try:
        async with visiting(own, pages) as first:
            (old,) = own.processes
            async with visiting(own, pages):
                assert own.processes == {old}
            async with visiting(own, pages) as third:
                (new,) = own.processes - {old}
                assert "Lab" in await first.call("read")
                assert "Lab" in await third.call("read")

        async def only_new() -> bool:
            return own.processes == {new} and old.is_lost

        await eventually(only_new)
        assert not own._is_worn(new)
        await clock.advance(601)
        assert own._is_worn(new)
    finally:
        await own.close()


async def test_seven_episodes_at_once_share_five_places_in_the_order_they_came(browser: Browser, pages: Path):
    order: list[int] = []
    most = 0

    async def visit(number: int) -> None:
        nonlocal most
        async with visiting(browser, pages, site=None) as visitor:
            order.append(number)
            most = max(most, sum(one.n_open for one in browser.processes))
            assert await visitor.call("read", mode="text") == "(the page is empty)"

    await asyncio.gather(*(visit(number) for number in range(7)))

    assert most == 5
    assert sorted(order) == list(range(7))
    assert all(order.index(number) >= number - 4 for number in order), "one came before its turn"


OWNER = """
import asyncio, sys
from outrider.core.chat import ToolCall, assistant
from outrider.core.task import Task
from outrider.env.web import WebConfig, WebEnvironments

async def main():
    environments = WebEnvironments(WebConfig(pages=sys.argv[1]))
    env = environments.make(Task(task_id="t", answer="a", metadata={"site": "lab"}))
    await env.reset()
    (chromium,) = environments._browser.processes
    print(chromium.pid, flush=True)
    call = ToolCall(id="1", name="open", arguments='{"url": "http://lab.test/stuck.html"}')
    await env.step(assistant(tool_calls=(call,)))

asyncio.run(main())
"""


async def test_the_browser_dies_with_a_worker_that_is_killed(pages: Path, temporary: Path):
    with program(OWNER, str(pages)) as owner:
        profile = profile_of(int(await asyncio.to_thread(line, owner)))
        assert len(processes_with(profile)) > 2
        owner.kill()
        await gone(profile)
    await empty(temporary)


async def test_closing_leaves_no_process_no_file_no_task_and_no_socket(pages: Path, temporary: Path):
    tasks, descriptors = asyncio.all_tasks(), _descriptors()
    made = WebEnvironments(WebConfig(pages=str(pages)))
    env = made.make(Task(task_id="t", answer="a", metadata={"site": "lab"}))
    await env.reset()
    assert made._browser is not None
    (chromium,) = made._browser.processes
    profile = profile_of(chromium.pid)
    await made.close()  # while an episode is still there
    await env.close()

    async def as_before() -> bool:
        return not asyncio.all_tasks() - tasks and not _descriptors() - descriptors

    await gone(profile)
    await empty(temporary)
    await eventually(as_before)
    late = made.make(Task(task_id="t", answer="a"))
    with pytest.raises(EnvError, match="closed"):
        await late.reset()
    await late.close()


async def empty(folder: Path) -> None:
    async def nothing() -> bool:
        return not list(folder.iterdir())

    await eventually(nothing)
