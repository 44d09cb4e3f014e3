"""A computer that is reached by OSWorld's in-guest HTTP protocol, so that its images attach as they are."""

import asyncio
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from outrider.core.decoding import from_json
from outrider.core.errors import MachineError
from outrider.pool.computer import Executed, Input, Pause, Text
from outrider.pool.osworld_protocol import script

DEFAULT_PORT = 5000
CONNECT_SECONDS = 5.0
LOOK_SECONDS = 15.0
TREE_SECONDS = 60.0
FILE_SECONDS = 120.0
INPUT_SECONDS = 30.0
SECONDS_A_SIGN = 0.03
N_LOOKS = 3
LOOK_AGAIN_SECONDS = 0.2
GRACE_SECONDS = 10.0
SERVER_LIMIT_SECONDS = 120.0
"""OSWorld's server stops every command after so long, and takes no other limit."""

MAX_PAUSE_SECONDS = 90.0
OURS = "outrider"
"""What our own server calls itself: it stops commands at the limit it is told."""

MAX_ANSWER_BYTES = 256 * 2**20
PNG = b"\x89PNG\r\n\x1a\n"
_KILLED = frozenset({-9, 124, 137})
_TIMED_OUT = re.compile(r"timed out after [\d.]+ seconds")
_NOT_FOUND = re.compile(r"\[Errno 2\]|\[WinError 2\]")
_HTTP_OK, _HTTP_NOT_FOUND = 200, 404


class _Answer(msgspec.Struct):
    status: int
    body: bytes
    server: str

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class OsworldComputer:
    """Looks are repeated if they fail; all else is sent once. `connect` comes first, `close` last."""

    def __init__(self, host: str, port: int = DEFAULT_PORT) -> None:
        self.screen_size = (0, 0)
        self.platform = ""
        self.n_acts = 0
        """How often it was asked for more than a look."""
        self._origin = _origin(host, port)
        self._session: aiohttp.ClientSession | None = None
        self._keeps_limits = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Learn what it is and how large its screen is."""
        answer = await self._look("GET", "/platform", tries=1)
        self.platform = answer.text.strip()
        self._keeps_limits = answer.server == OURS
        size = self._converted(await self._look("POST", "/screen_size", tries=1), dict[str, Any], "/screen_size")
        self.screen_size = self._size(size, "/screen_size")

    async def move(self, host: str, port: int) -> None:
        """It is elsewhere, or another machine took its place. What is under way is broken off."""
        self._origin = _origin(host, port)
        await self._break_off()

    async def close(self) -> None:
        """Break off what is under way; whatever is asked from now on is refused."""
        self._is_closed = True
        await self._break_off()

    async def _break_off(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def screenshot(self) -> bytes:
        answer = await self._look("GET", "/screenshot")
        if not answer.body.startswith(PNG):
            raise self._error("/screenshot", "the answer is not a PNG")
        return answer.body

    async def input(self, events: Sequence[Input]) -> None:
        if not events:
            return
        pauses = sum(event.seconds for event in events if isinstance(event, Pause))
        if pauses > MAX_PAUSE_SECONDS:
            raise self._error("/execute", f"pauses of {pauses:g} s at once; {MAX_PAUSE_SECONDS:g} is the most")
        command = ["python", "-c", script.written(events)]
        typed = sum(len(event.text) for event in events if isinstance(event, Text))
        seconds = INPUT_SECONDS + pauses + typed * SECONDS_A_SIGN
        done = self._executed(await self._act("/execute", _execution(command), seconds=seconds))
        if done.returncode != 0:
            raise self._error("/execute", f"input failed: {done.stderr.strip() or done.returncode}")

    async def execute(self, command: Sequence[str] | str, *, timeout: float = SERVER_LIMIT_SECONDS) -> Executed:
        sent = _execution(command) | {"timeout": timeout}
        wraps = not self._keeps_limits and self.platform == "Linux" and timeout < SERVER_LIMIT_SECONDS
        if wraps:
            inner = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
            sent = _execution(["timeout", "-s", "KILL", f"{timeout:g}", *inner])
        began = asyncio.get_running_loop().time()
        limit = timeout if self._keeps_limits else SERVER_LIMIT_SECONDS
        done = self._executed(await self._act("/execute", sent, seconds=limit + GRACE_SECONDS))
        took = asyncio.get_running_loop().time() - began
        if wraps and took >= timeout and done.returncode in _KILLED:
            return msgspec.structs.replace(done, returncode=None)
        return done

    async def launch(self, command: Sequence[str] | str) -> None:
        self._check("/setup/launch", await self._act("/setup/launch", _execution(command), seconds=INPUT_SECONDS))

    async def read_file(self, path: str) -> bytes | None:
        answer = await self._look("POST", "/file", form={"file_path": path}, seconds=FILE_SECONDS, missing=True)
        return None if answer.status == _HTTP_NOT_FOUND else answer.body

    async def write_file(self, path: str, data: bytes) -> None:
        form = aiohttp.FormData()
        form.add_field("file_path", path)
        form.add_field("file_data", io.BytesIO(data), filename="file", content_type="application/octet-stream")
        self.n_acts += 1
        self._check("/setup/upload", await self._ask("POST", "/setup/upload", data=form, seconds=FILE_SECONDS))

    async def accessibility_tree(self) -> str:
        answer = await self._look("GET", "/accessibility", seconds=TREE_SECONDS)
        return str(self._field(answer, "AT", "/accessibility"))

    async def terminal_text(self) -> str | None:
        answer = await self._look("GET", "/terminal", seconds=TREE_SECONDS)
        output = self._field(answer, "output", "/terminal")
        return None if output is None else str(output)

    async def cursor_position(self) -> tuple[int, int]:
        x, y = self._converted(await self._look("GET", "/cursor_position"), tuple[int, int], "/cursor_position")
        return x, y

    async def window_size(self, class_name: str) -> tuple[int, int] | None:
        """Of the first window of this class; None: there is none."""
        answer = await self._look("POST", "/window_size", form={"app_class_name": class_name}, missing=True)
        return (
            None
            if answer.status == _HTTP_NOT_FOUND
            else self._size(self._converted(answer, dict[str, Any], "/window_size"), "/window_size")
        )

    async def activate_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        await self._window("/setup/activate_window", name, strict=strict, by_class=by_class)

    async def close_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        await self._window("/setup/close_window", name, strict=strict, by_class=by_class)

    async def change_wallpaper(self, path: str) -> None:
        answer = await self._act("/setup/change_wallpaper", {"path": path}, seconds=INPUT_SECONDS)
        self._check("/setup/change_wallpaper", answer)

    async def run_python(self, code: str) -> Executed:
        """Run a Python program in the machine; the server stops it after half a minute."""
        answer = await self._act("/run_python", {"code": code}, seconds=INPUT_SECONDS + GRACE_SECONDS)
        told = self._converted(answer, dict[str, Any], "/run_python")
        returncode = told.get("return_code", told.get("returncode"))
        stdout, stderr = (str(told.get(name) or "") for name in ("output", "error"))
        return Executed(returncode=returncode, stdout=stdout, stderr=stderr)

    async def _window(self, path: str, name: str, *, strict: bool, by_class: bool) -> None:
        told = {"window_name": name, "strict": strict, "by_class": by_class}
        self._check(path, await self._act(path, told, seconds=INPUT_SECONDS))

    async def _look(
        self,
        method: str,
        path: str,
        *,
        form: Mapping[str, str] | None = None,
        seconds: float = LOOK_SECONDS,
        missing: bool = False,
        tries: int = N_LOOKS,
    ) -> _Answer:
        """What may be asked again; `missing`: that there is nothing is an answer."""
        for left in reversed(range(tries)):
            self._check_open(path)
            with suppress(*((MachineError,) if left else ())):
                answer = await self._ask(method, path, data=form, seconds=seconds)
                if not (missing and answer.status == _HTTP_NOT_FOUND):
                    self._check(path, answer)
                return answer
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        raise AssertionError("the last look returns or raises")

    async def _act(self, path: str, told: Mapping[str, Any], *, seconds: float) -> _Answer:
        self.n_acts += 1
        return await self._ask("POST", path, json=told, seconds=seconds)

    async def _ask(self, method: str, path: str, *, seconds: float, data: Any = None, json: Any = None) -> _Answer:
        self._check_open(path)
        if self._session is None:
            # a connection of its own for each request: after one that was kept is gone, nobody knows what was done
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(
                self._origin, connector=connector, cookie_jar=aiohttp.DummyCookieJar()
            )
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(
                method, path, data=data, json=json, timeout=limits, allow_redirects=False
            ) as response:
                body = await _body(response)
                return _Answer(response.status, body, response.headers.get("Server", ""))
        except TimeoutError as exc:
            raise self._error(path, f"no answer within {seconds:g} s") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise self._error(path, str(exc) or type(exc).__name__) from exc

    def _executed(self, answer: _Answer) -> Executed:
        told = self._converted(answer, dict[str, Any], "/execute")
        message = str(told.get("message", ""))
        if answer.status == _HTTP_OK and isinstance(told.get("returncode"), int | None):
            stdout, stderr = (str(told.get(name) or "") for name in ("output", "error"))
            return Executed(returncode=told.get("returncode"), stdout=stdout, stderr=stderr)
        if _TIMED_OUT.search(message):
            return Executed(returncode=None)
        if _NOT_FOUND.search(message):
            return Executed(returncode=127, stderr=message)
        raise self._error("/execute", message or f"answered with status {answer.status}")

    def _check_open(self, path: str) -> None:
        if self._is_closed:
            raise self._error(path, "it was let go of")
        if not self._origin:
            raise self._error(path, "it has no address yet")

    def _check(self, path: str, answer: _Answer) -> None:
        if answer.status != _HTTP_OK:
            raise self._error(path, f"answered with status {answer.status}: {answer.text[:500]}")

    def _field(self, answer: _Answer, name: str, path: str) -> Any:
        told = self._converted(answer, dict[str, Any], path)
        if name not in told:
            raise self._error(path, f"the answer has no {name}")
        return told[name]

    def _size(self, told: Any, path: str) -> tuple[int, int]:
        try:
            return int(told["width"]), int(told["height"])
        except (KeyError, TypeError, ValueError) as exc:
            raise self._error(path, f"{told} is not a size") from exc

    def _converted(self, answer: _Answer, kind: Any, path: str) -> Any:
        try:
            return from_json(answer.body, kind)
        except msgspec.MsgspecError as exc:
            raise self._error(path, f"status {answer.status}, an answer that makes no sense: {exc}") from exc

    def _error(self, path: str, reason: str) -> MachineError:
        return MachineError(f"{self._origin}{path}: {reason}", stage=f"machine.{path.rpartition('/')[2]}")


def _origin(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}" if host else ""


def _execution(command: Sequence[str] | str) -> dict[str, Any]:
    is_shell = isinstance(command, str)
    return {"command": command if is_shell else list(command), "shell": is_shell}


async def _body(response: aiohttp.ClientResponse) -> bytes:
    pieces = bytearray()
    while piece := await response.content.readany():
        pieces += piece
        if len(pieces) > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(pieces)
