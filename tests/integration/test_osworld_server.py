"""The routes of OSWorld's in-guest server in front of real machines, and the program that serves one."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from leaks import no_leaks
from outrider.core.errors import MachineError
from outrider.pool.computer import MoveTo
from outrider.pool.osworld_protocol import recording
from outrider.pool.osworld_protocol.server import OsworldServer
from outrider.pool.provider import Provider, RunningMachine
from outrider.pool.providers.attach import AttachProvider, AttachSettings
from outrider.pool.providers.desktop import DesktopProvider
from outrider.pool.providers.process import ProcessProvider
from outrider.testing import eventually
from processes import line

OWNER = f"the server tests of {os.getpid()}"


class Client:
    """Asks as those do that are not ours: status and body, whatever they are."""

    def __init__(self, session: aiohttp.ClientSession, machine: RunningMachine) -> None:
        self._session = session
        self.computer = machine.computer

    async def post(self, route: str, /, **told: Any) -> tuple[int, Any]:
        async with self._session.post(route, json=told) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.read()

    async def form(self, route: str, /, **told: str) -> tuple[int, Any]:
        async with self._session.post(route, data=told) as response:
            return response.status, await response.json()


@asynccontextmanager
async def served(provider: Provider) -> AsyncIterator[Client]:
    async with no_leaks():
        machine = await provider.create("m1", OWNER)
        try:
            async with (
                OsworldServer(machine.computer, reset=machine.reset) as server,
                aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
            ):
                yield Client(session, machine)
        finally:
            await machine.destroy()
            await provider.close()


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Client]:
    async with served(ProcessProvider(folder=tmp_path / "machines")) as client:
        yield client


@pytest.fixture
async def desktop() -> AsyncIterator[Client]:
    async with served(DesktopProvider()) as client:
        yield client


async def test_a_command_is_answered_when_what_it_brings_about_has_come(process):
    status, answer = await process.post(
        "/execute_with_verification",
        command="echo begun; (sleep 0.2; touch ~/came) > /dev/null 2>&1 &",
        shell=True,
        verification={"command_success": "test -e ~/came"},
        check_interval=0.05,
    )
    assert (status, answer["status"], answer["output"]) == (200, "success", "begun\n")
    assert (answer["returncode"], answer["verification"]) == (0, "passed")
    assert 0.05 <= answer["wait_time"] < 10


async def test_a_command_that_brings_nothing_about_has_failed(process):
    told = {"command": ["true"], "max_wait_time": 0.2, "check_interval": 0.05}
    status, answer = await process.post("/setup/execute_with_verification", verification={"window_exists": "x"}, **told)
    assert (status, answer["status"], answer["verification"]) == (500, "verification_failed", "failed")
    status, answer = await process.post("/execute_with_verification", **told)
    assert (status, answer["status"]) == (200, "success")
    assert (await process.post("/execute_with_verification", command=[]))[0] == 400


async def test_a_download_puts_a_file_of_the_machine_elsewhere_and_fetches_nothing(process):
    async def fetched(*_: Any) -> None:
        visitors.append(1)

    visitors: list[int] = []
    await process.computer.write_file("/tmp/a file", b"content")
    assert await process.post("/setup/download_file", url="file:///tmp/a%20file", path="~/new/b") == (
        200,
        b"File downloaded successfully: 7 bytes",
    )
    assert await process.computer.read_file("new/b") == b"content"
    status, answer = await process.post("/setup/download_file", url="file:///tmp/none", path="~/c")
    assert (status, "no such file" in answer["message"]) == (500, True)
    async with await asyncio.start_server(fetched, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        status, answer = await process.post("/setup/download_file", url=f"http://127.0.0.1:{port}/", path="~/d")
    assert status == 501
    assert "/setup/upload" in answer["message"]
    assert visitors == []


async def test_scripts_and_folders_are_those_of_the_machine(process):
    status, answer = await process.post("/run_bash_script", script="mkdir a && touch a/b; echo $0 >&2; exit 3")
    assert (status, answer["returncode"], answer["status"]) == (200, 3, "error")
    assert answer["output"]
    status, answer = await process.post("/list_directory", path="~/a")
    assert answer == {"directory_tree": {"type": "directory", "name": "a", "children": [{"type": "file", "name": "b"}]}}
    assert (await process.post("/list_directory", path="~/none"))[0] == 400
    home = (await process.computer.execute("echo $HOME")).stdout.strip()
    assert await process.post("/desktop_path") == (200, {"desktop_path": f"{home}/Desktop"})


async def test_what_a_machine_without_a_screen_has_not_is_refused_in_words(process):
    status, answer = await process.post("/start_recording")
    assert (status, answer["message"]) == (501, "this machine has no screen to record")
    assert (await process.post("/end_recording"))[0] == 400
    assert (await process.post("/wallpaper"))[0] == 404
    assert await process.post("/setup/open_file", path="~/none") == (404, b"File not found: /home/user/none")


async def test_the_screen_is_recorded_from_start_to_end(desktop, monkeypatch):
    monkeypatch.setattr(recording, "INTERVAL_SECONDS", 0.005)
    assert (await desktop.post("/end_recording"))[0] == 400
    assert await desktop.post("/start_recording") == (200, {"status": "success", "message": "Started recording."})
    assert (await desktop.post("/start_recording"))[0] == 400
    seen = []

    async def moved_and_seen() -> bool:
        await desktop.computer.input([MoveTo(100 + 20 * len(seen), 300)])
        seen.append(await desktop.computer.screenshot())
        return len(seen) > 20

    await eventually(moved_and_seen, within_seconds=20)
    status, recorded = await desktop.post("/end_recording")
    assert status == 200
    assert recorded.startswith(b"\x89PNG")
    assert recorded.count(b"fcTL") >= 2
    assert (await desktop.post("/start_recording"))[0] == 200  # what still goes on when the server stops is ended by it


async def test_the_wallpaper_that_was_set_is_seen_and_told_until_the_reset(desktop):
    run = desktop.computer.execute
    await run(["hsetroot", "-solid", "#aa3300"])
    await desktop.computer.write_file("Pictures/red.png", picture := await desktop.computer.screenshot())
    await run(["hsetroot", "-solid", "#000000"])
    before = await desktop.computer.screenshot()
    status, _ = await desktop.post("/setup/change_wallpaper", path="~/Pictures/red.png")
    assert status == 200
    assert await desktop.computer.screenshot() != before
    assert await desktop.post("/wallpaper") == (200, picture)
    assert (await desktop.post("/setup/change_wallpaper", path="~/none.png"))[0] == 404
    await desktop.post("/reset")
    assert (await desktop.post("/wallpaper"))[1] != picture


async def test_files_are_opened_with_the_program_that_is_for_them(desktop):
    entry = (
        b"[Desktop Entry]\nType=Application\nName=Viewer\nExec=xterm -T Opened -e tail -f %f\nMimeType=text/plain;\n"
    )
    await desktop.computer.write_file("~/.local/share/applications/viewer.desktop", entry)
    await desktop.computer.write_file("~/.config/mimeapps.list", b"[Default Applications]\ntext/plain=viewer.desktop\n")
    await desktop.computer.write_file("~/note.txt", b"a note\n")
    assert await desktop.post("/setup/open_file", path="~/note.txt") == (200, b"File opened successfully")
    status, answer = await desktop.post(
        "/execute_with_verification", command="true", shell=True, verification={"window_exists": "Opened"}
    )
    assert (status, answer["verification"]) == (200, "passed")
    status, size = await desktop.form("/window_size", app_class_name="xterm")
    assert status == 200
    assert size["width"] > 100


HERE, FAR = "http://127.0.0.1:{port}", "http://evil.example"
JSON = {"Content-Type": "application/json"}

FROM_PAGES = {
    "a foreign origin": {"Origin": FAR, **JSON},
    "a foreign origin, as text": {"Origin": FAR, "Content-Type": "text/plain"},
    "the same machine, another port": {"Origin": "http://127.0.0.1:1", **JSON},
    "an origin that is kept secret": {"Origin": "null", **JSON},
    "two origins": {"Origin": f"{HERE}, {FAR}", **JSON},
    "another site": {"Sec-Fetch-Site": "cross-site", **JSON},
    "another port of this site": {"Sec-Fetch-Site": "same-site", **JSON},
    "a name that was made to point here": {"Host": "evil.example:{port}", **JSON},
    "such a name and its own origin": {"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}", **JSON},
    "a name like an address": {"Host": "127.0.0.1.evil.example:{port}", **JSON},
    "no name": {"Host": ":{port}", **JSON},
}

FROM_PROGRAMS = {
    "a program": JSON,
    "a program that says which characters": {"Content-Type": "application/json; charset=utf-8"},
    "localhost": {"Host": "localhost:{port}", **JSON},
    "an address": {"Host": "192.0.2.7", **JSON},
    "an address of six": {"Host": "[::1]:{port}", **JSON},
    "a name it was told": {"Host": "Machine-1:{port}", **JSON},
    "its own origin": {"Origin": HERE, **JSON},
    "what was typed in": {"Sec-Fetch-Site": "none", **JSON},
}


@pytest.fixture
async def named(tmp_path: Path) -> AsyncIterator[tuple[str, RunningMachine]]:
    """Where a machine is served that is also called machine-1."""
    provider = ProcessProvider(folder=tmp_path / "machines")
    machine = await provider.create("m1", OWNER)
    try:
        async with OsworldServer(machine.computer, names=("machine-1",), reset=machine.reset) as server:
            yield str(server.port), machine
    finally:
        await machine.destroy()
        await provider.close()


async def answered(port: str, route: str, headers: dict[str, str], **asking: Any) -> int:
    given = {name: value.replace("{port}", port) for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{route}", headers=given, **asking) as response,
    ):
        return response.status


async def test_what_a_web_page_sends_is_refused_and_what_a_program_sends_is_not(named):
    port, machine = named
    command = b'{"command": "touch ~/done", "shell": true}'
    for kind, headers in FROM_PAGES.items():
        for route in ("/execute", "/setup/execute", "/run_bash_script", "/reset", "/file"):
            assert await answered(port, route, headers, data=command) == 403, (kind, route)
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert await answered(port, "/execute", {"Content-Type": kind}, data=command) == 415, kind
    form = {"file_path": "/etc/passwd"}
    assert await answered(port, "/file", {"Origin": FAR}, data=form) == 403
    assert await machine.computer.read_file("done") is None
    for kind, headers in FROM_PROGRAMS.items():
        assert await answered(port, "/execute", headers, data=command) == 200, kind
    assert await answered(port, "/file", {}, data=form) == 200
    assert await machine.computer.read_file("done") == b""


PAGE = """
<script>
async function attack() {{
    const at = "http://{host}:{port}";
    const body = JSON.stringify({{command: "touch ~/done", shell: true}});
    for (const type of ["text/plain", "application/json"])
        for (const mode of ["no-cors", "cors"])
            try {{
                await fetch(at + "/execute", {{method: "POST", mode, body, headers: {{"Content-Type": type}}}});
            }} catch {{}}
    const form = document.createElement("form");
    form.action = at + "/execute"; form.method = "post"; form.enctype = "text/plain"; form.target = "frame";
    const field = document.createElement("input");
    field.name = body.slice(0, -1) + ', "x": "'; field.value = '"}}';
    form.append(field); document.body.append(form); form.submit();
    navigator.sendBeacon(at + "/execute", body);
    await new Promise(done => setTimeout(done, 300));
    document.title = "attacked";
}}
</script>
<body onload="attack()"><iframe name="frame"></iframe></body>
"""


async def test_a_page_in_a_real_browser_runs_nothing(named):
    port, machine = named

    async def page(_: web.BaseRequest) -> web.Response:
        return web.Response(text=PAGE.format(host="127.0.0.1", port=port), content_type="text/html")

    async with RawTestServer(page) as pages:
        command = (
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=5000",
            "--dump-dom",
        )
        browser = await asyncio.create_subprocess_exec(*command, str(pages.make_url("/")), stdout=-1, stderr=-3)
        async with asyncio.timeout(60):
            seen, _ = await browser.communicate()
    assert b"attacked" in seen
    assert await machine.computer.read_file("done") is None


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "outrider.pool.osworld_protocol", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM])
async def test_the_program_serves_a_machine_to_attach_to_and_leaves_nothing(tmp_path, number):
    with program("--provider", "desktop", "--port", "0", "--width", "800", "--height", "600") as process:
        endpoint = line(process).removeprefix("a machine answers at ").partition(";")[0]
        settings = AttachSettings(machines=(endpoint,), reset_url="http://{host}:{port}/reset")
        attach = AttachProvider(settings, folder=tmp_path / "claims")
        await attach.check(1)
        machine = await attach.create("m1", OWNER)
        assert machine.computer.screen_size == (800, 600)
        await machine.plant("mark")
        await machine.reset()
        assert not await machine.has("mark")
        await machine.probe()
        await machine.destroy()
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
        assert (process.returncode, said) == (0, "")
    assert await DesktopProvider().owned(f"server {process.pid}") == ()
    with pytest.raises(MachineError):
        await attach.create("m2", OWNER)
    await attach.close()


async def test_the_program_ends_with_its_machine_and_says_why():
    with program("--port", "0") as process:
        line(process)
        (address,) = await DesktopProvider().owned(f"server {process.pid}")
        os.kill(address["pid"], signal.SIGKILL)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "the machine is gone: the first process" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--provider", "desktp"], "did you mean desktop?"), (["--width", "3"], "width"), (["--port", "70000"], "70000")],
)
def test_what_cannot_be_served_is_refused(arguments, says):
    with program(*arguments) as process:
        said, wrong = process.communicate(timeout=20)
    assert process.returncode == 2
    assert says in wrong
    assert said == ""
    assert "Traceback" not in wrong
