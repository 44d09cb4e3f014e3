"""OSWorld's in-guest HTTP protocol in front of any computer, so that what drives OSWorld's images drives ours too.

Mouse and keyboard come as PyAutoGUI code. Where that only names events one after the other, it is turned into events,
and the machine needs neither Python nor PyAutoGUI; any other code is run in the machine as it stands.
"""

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from outrider.core.errors import MachineError
from outrider.pool.computer import Computer, Executed, Input, MoveTo
from outrider.pool.osworld_protocol import script
from outrider.pool.osworld_protocol.client import OURS, SERVER_LIMIT_SECONDS

MAX_REQUEST_BYTES = 256 * 2**20
PYTHON_SECONDS = 30.0
SCRIPT_SECONDS = 100.0
LOOK_SECONDS = 10.0
_PYTHONS = frozenset({"python", "python3", "/usr/bin/python", "/usr/bin/python3"})
_N_PYTHON_WORDS = 3

Reset = Callable[[], Awaitable[None]]


class _Front:
    """What the handlers share: the computer, and where the pointer was last sent."""

    def __init__(self, computer: Computer, platform: str, reset: Reset | None) -> None:
        self.computer = computer
        self.platform = platform
        self.reset = reset
        self.pointer = (0, 0)
        self._home: str | None = None

    async def input(self, events: Sequence[Input]) -> None:
        await self.computer.input(events)
        for event in events:
            if isinstance(event, MoveTo):
                self.pointer = (event.x, event.y)

    async def place(self, path: str) -> str:
        """A path as the machine knows it: `~` and `$HOME` stand for its user's folder."""
        if path == "~" or path.startswith("~/"):
            return await self._user_folder() + path[1:]
        return await self._user_folder() + path[5:] if path.startswith("$HOME/") else path

    async def words(self, command: list[str] | str) -> list[str] | str:
        """A command as the machine takes it."""
        if isinstance(command, str):
            return command
        return [await self.place(word) if word.startswith("~/") else word for word in command]

    async def ask(self, *words: str) -> Executed:
        """Ask a program that the machine may not have: the shell says so."""
        return await self.computer.execute(shlex.join(words), timeout=LOOK_SECONDS)

    async def _user_folder(self) -> str:
        if self._home is None:
            self._home = (await self.computer.execute('printf %s "$HOME"', timeout=LOOK_SECONDS)).stdout
        return self._home


FRONT = web.AppKey("front", _Front)


class OsworldServer:
    """`async with OsworldServer(computer) as server:` serves it at `server.port` while the block runs.

    It knows no passwords, as the protocol has none: whoever reaches the port has the machine.
    With `reset`, `POST /reset` brings the machine back to its clean state, which is not part of OSWorld's protocol.
    """

    def __init__(
        self,
        computer: Computer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        platform: str = "Linux",
        reset: Reset | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=[_answer_errors])
        self._app[FRONT] = _Front(computer, platform, reset)
        self._app.add_routes(ROUTES)
        self._app.on_response_prepare.append(_sign)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        self._runner = web.AppRunner(self._app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self.host, self.port).start()
        except BaseException:
            await self.stop()
            raise
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = OURS


@web.middleware
async def _answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except MachineError as exc:
        return web.json_response({"status": "error", "message": str(exc)}, status=500)
    except (msgspec.MsgspecError, KeyError, ValueError) as exc:
        return web.json_response({"status": "error", "message": f"{type(exc).__name__}: {exc}"}, status=400)


async def _told(request: web.Request) -> Mapping[str, Any]:
    return msgspec.json.decode(await request.read(), type=dict[str, Any])


def _command(told: Mapping[str, Any]) -> list[str] | str:
    """The command as a computer takes it. OSWorld splits a text that is not meant for the shell."""
    command = told.get("command", [])
    if told.get("shell"):
        return command if isinstance(command, str) else shlex.join(msgspec.convert(command, list[str]))
    return shlex.split(command) if isinstance(command, str) else msgspec.convert(command, list[str])


def _events(command: list[str] | str) -> tuple[Input, ...] | None:
    """The events that a command stands for; None: it is a command like any other."""
    if "pyautogui" not in (command if isinstance(command, str) else " ".join(command[-1:])):
        return None
    words = command
    if isinstance(words, str):
        with suppress(ValueError):
            words = shlex.split(words)
    if isinstance(words, str) or len(words) != _N_PYTHON_WORDS or words[0] not in _PYTHONS or words[1] != "-c":
        return None
    return script.read(words[2])


async def _execute(request: web.Request) -> web.Response:
    told = await _told(request)
    front = request.app[FRONT]
    command = _command(told)
    if not command:
        raise ValueError("there is no command")
    if front.computer.screen_size[0] and (events := _events(command)) is not None:
        await front.input(events)
        return _success(Executed(returncode=0))
    limit = min(float(told.get("timeout", SERVER_LIMIT_SECONDS)), 24 * 3600.0)
    done = await front.computer.execute(await front.words(command), timeout=limit)
    if done.returncode is None and "timeout" not in told:
        return _failure(f"the command timed out after {limit:g} seconds")
    return _success(done)


def _success(done: Executed) -> web.Response:
    told = {"status": "success", "output": done.stdout, "error": done.stderr, "returncode": done.returncode}
    return web.json_response(told)


def _failure(message: str, status: int = 500) -> web.Response:
    return web.json_response({"status": "error", "message": message}, status=status)


async def _launch(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    command = _command(await _told(request))
    if not command:
        raise ValueError("there is no command")
    await front.computer.launch(await front.words(command))
    return web.Response(text=f"{command if isinstance(command, str) else shlex.join(command)} launched successfully")


async def _screenshot(request: web.Request) -> web.Response:
    return web.Response(body=await request.app[FRONT].computer.screenshot(), content_type="image/png")


async def _terminal(request: web.Request) -> web.Response:
    return web.json_response({"output": await request.app[FRONT].computer.terminal_text(), "status": "success"})


async def _accessibility(request: web.Request) -> web.Response:
    return web.json_response({"AT": await request.app[FRONT].computer.accessibility_tree()})


async def _platform(request: web.Request) -> web.Response:
    return web.Response(text=request.app[FRONT].platform)


async def _screen_size(request: web.Request) -> web.Response:
    width, height = request.app[FRONT].computer.screen_size
    return web.json_response({"width": width, "height": height})


async def _cursor_position(request: web.Request) -> web.Response:
    """As the machine's own tool tells, or else where the pointer was last sent from here."""
    front = request.app[FRONT]
    asked = await front.ask("xdotool", "getmouselocation", "--shell")
    values = dict(line.split("=", 1) for line in asked.stdout.splitlines() if "=" in line)
    if asked.returncode == 0 and {"X", "Y"} <= values.keys():
        front.pointer = (int(values["X"]), int(values["Y"]))
    return web.json_response(front.pointer)


async def _window_size(request: web.Request) -> web.Response:
    name = str((await request.post())["app_class_name"]).lower()
    listed = await request.app[FRONT].ask("wmctrl", "-lGx")
    if listed.returncode != 0:
        return _failure(f"wmctrl: {listed.stderr.strip() or listed.returncode}")
    for words in map(str.split, listed.stdout.splitlines()):
        _, _, _, _, width, height, class_name, *_ = words
        if name in class_name.lower():
            return web.json_response({"width": int(width), "height": int(height)})
    return web.json_response({"message": f"no window of class {name}"}, status=404)


async def _file(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    path = await front.place(str((await request.post())["file_path"]))
    content = await front.computer.read_file(path)
    if content is None:
        return web.json_response({"error": "File not found"}, status=404)
    return web.Response(body=content, content_type="application/octet-stream")


async def _upload(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    form = await request.post()
    given = form["file_data"]
    content = given.file.read() if isinstance(given, web.FileField) else bytes(str(given), "utf-8")
    await front.computer.write_file(await front.place(str(form["file_path"])), content)
    return web.Response(text=f"File Uploaded: {len(content)} bytes")


async def _activate_window(request: web.Request) -> web.Response:
    return await _window(request, "a")


async def _close_window(request: web.Request) -> web.Response:
    return await _window(request, "c")


async def _window(request: web.Request, letter: str) -> web.Response:
    told = await _told(request)
    option = f"-{'x' if told.get('by_class') else ''}{'F' if told.get('strict') else ''}{letter}"
    name = str(told["window_name"])
    done = await request.app[FRONT].ask("wmctrl", option, name)
    if done.returncode != 0:
        return _failure(f"wmctrl: {done.stderr.strip() or f'no window {name}'}")
    return web.Response(text="done")


async def _change_wallpaper(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    path = await front.place(str((await _told(request))["path"]))
    if await front.computer.read_file(path) is None:
        return web.Response(text=f"File not found: {path}", status=404)
    done = await front.ask("gsettings", "set", "org.gnome.desktop.background", "picture-uri", f"file://{path}")
    if done.returncode != 0:
        return _failure(f"gsettings: {done.stderr.strip() or done.returncode}")
    return web.Response(text="Wallpaper changed successfully")


async def _run_python(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    code = str((await _told(request))["code"])
    events = script.read(code) if "pyautogui" in code and front.computer.screen_size[0] else None
    if events is not None:
        await front.input(events)
        done = Executed(returncode=0)
    else:
        done = await front.computer.execute(["python3", "-c", code], timeout=PYTHON_SECONDS)
    if done.returncode is None:
        return _failure("Execution timeout: Code took too long to execute")
    told = {"output": done.stdout, "error": done.stderr, "return_code": done.returncode, "need_more": False}
    status = "success" if done.returncode == 0 else "error"
    return web.json_response(told | {"status": status, "message": done.stdout + done.stderr})


async def _run_bash_script(request: web.Request) -> web.Response:
    told = await _told(request)
    front = request.app[FRONT]
    folder = await front.place(str(told.get("working_dir") or "~"))
    command = ["sh", "-c", 'cd "$1" && shift && exec 2>&1 && exec bash -c "$1"', "sh", folder, str(told["script"])]
    done = await front.computer.execute(command, timeout=float(told.get("timeout") or SCRIPT_SECONDS))
    status = "success" if done.returncode == 0 else "error"
    returncode = -1 if done.returncode is None else done.returncode
    return web.json_response({"status": status, "output": done.stdout, "error": "", "returncode": returncode})


async def _desktop_path(request: web.Request) -> web.Response:
    return web.json_response({"desktop_path": await request.app[FRONT].place("~/Desktop")})


async def _list_directory(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    top = await front.place(str((await _told(request))["path"]))
    folders, others = [await front.ask("find", top, *negation, "-type", "d") for negation in ((), ("!",))]
    if folders.returncode != 0 or top not in folders.stdout.splitlines():
        return web.json_response({"error": "The provided path is not a directory"}, status=400)
    tree = _tree(top, folders.stdout.splitlines(), others.stdout.splitlines())
    return web.json_response({"directory_tree": tree})


def _tree(top: str, folders: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    nodes: dict[str, dict[str, Any]] = {
        path: {"type": "directory", "name": PurePosixPath(path).name, "children": []} for path in folders
    }
    for path in (*folders, *others):
        parent = str(PurePosixPath(path).parent)
        if path != top and parent in nodes:
            nodes[parent]["children"].append(nodes.get(path) or {"type": "file", "name": PurePosixPath(path).name})
    return nodes[top]


async def _reset(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    if front.reset is None:
        raise web.HTTPNotFound
    await front.reset()
    return web.Response(text="reset")


ROUTES = (
    web.get("/screenshot", _screenshot),
    web.get("/terminal", _terminal),
    web.get("/accessibility", _accessibility),
    web.get("/platform", _platform),
    web.get("/cursor_position", _cursor_position),
    web.post("/execute", _execute),
    web.post("/setup/execute", _execute),
    web.post("/run_python", _run_python),
    web.post("/run_bash_script", _run_bash_script),
    web.post("/screen_size", _screen_size),
    web.post("/window_size", _window_size),
    web.post("/desktop_path", _desktop_path),
    web.post("/list_directory", _list_directory),
    web.post("/file", _file),
    web.post("/setup/launch", _launch),
    web.post("/setup/upload", _upload),
    web.post("/setup/activate_window", _activate_window),
    web.post("/setup/close_window", _close_window),
    web.post("/setup/change_wallpaper", _change_wallpaper),
    web.post("/reset", _reset),
)
