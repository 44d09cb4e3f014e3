"""One Chromium process of ours: started, spoken to, cleaned, and seen to its end."""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from outrider.core.errors import MachineError
from outrider.core.tasks import uninterrupted
from outrider.pool.browser.flags import all_flags, environment
from outrider.pool.browser.line import MAX_MESSAGE_BYTES, Line
from outrider.pool.processes import Process, named, start_time

START_SECONDS = 30.0
CLEAN_SECONDS = 5.0
"""A busy host takes seconds for what is done in a tenth of one otherwise; to start anew takes it longer still."""

GONE_SECONDS = 10.0
SAID_BYTES = 2000

_REMOVALS = 50
_REMOVAL_SECONDS = 0.1
_FROM_US, _TO_US = 3, 4
"""The descriptors on which Chromium listens and speaks."""

_PROFILE = "--user-data-dir="
_NO_BUS = "disabled:"
_SOILED = "a holder had reached beyond its own contexts"
_EMPTY_CLIPBOARD = """document.addEventListener('copy', event => {
    event.preventDefault(); event.clipboardData.setData('text/plain', '') }); document.execCommand('copy');
    document.body.appendChild(document.createElement('textarea')).focus()"""
_PASTED = "document.querySelector('textarea').value"


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Shape(NamedTuple):
    """What all browsers of a provider have in common. `size` is that of the screen."""

    program: str
    size: tuple[int, int]
    headless: bool


class Chromium:
    """Made by `start`. Ends by itself when its maker dies, since the line to it breaks then."""

    def __init__(self, pid: int, home: Path, line: Line, said: Streams) -> None:
        self.pid = pid
        self.started = start_time(pid)
        self.line = line
        self.ended = asyncio.Event()
        """The process is gone. Others that it started may still be about to end."""
        self.on_end: Callable[[], None] = lambda: None
        self._home = home
        self._pidfd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._bury)
        self._last_words = b""
        self._said = said[1]
        self._listening = asyncio.create_task(self._listen(said[0]), name=f"what browser {pid} says")

    @property
    def last_words(self) -> str:
        lines = self._last_words.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def ready(self) -> None:
        await self.line.call("Browser.getVersion", seconds=START_SECONDS)
        self.line.default_context = (await self._contexts())["defaultBrowserContextId"]
        await self.line.call("Browser.setDownloadBehavior", behavior="deny")

    async def clean(self) -> str | None:
        """Dispose of all contexts and pages, and of what a page may leave outside of them.

        Why it could not be done, or what was done to it that cannot be undone; None if it is clean.
        """
        if self.line.is_soiled:
            return _SOILED
        if self.ended.is_set():
            return "it had ended"
        try:
            async with asyncio.timeout(CLEAN_SECONDS):
                return await self._cleaned()
        except TimeoutError:
            return f"it could not be cleaned within {CLEAN_SECONDS:g} s"
        except MachineError as exc:
            return str(exc)

    async def _cleaned(self) -> str | None:
        old = (await self._contexts())["browserContextIds"]
        blank, _ = await asyncio.gather(self._blank_page(), self._dispose(*old))
        if await self._empty_clipboard(*blank):
            return "its clipboard did not become empty"
        await self.line.call("Storage.clearCookies")
        await self.line.call("Browser.setDownloadBehavior", behavior="deny")
        if contexts := (await self._contexts())["browserContextIds"]:
            return f"{len(contexts)} of its contexts were not disposed of"
        if targets := await self.targets():
            return f"{len(targets)} of its pages and workers did not end"
        return _SOILED if self.line.is_soiled else None

    async def evaluate(self, expression: str) -> Any:
        """What a script comes to in an empty page that is made for it."""
        context, session = await self._blank_page()
        try:
            return await self._run(session, expression)
        finally:
            await self._dispose(context)

    async def new_context(self) -> str:
        return str((await self.line.call("Target.createBrowserContext"))["browserContextId"])

    async def new_page(self, context: str) -> str:
        made = await self.line.call("Target.createTarget", url="about:blank", browserContextId=context)
        return str(made["targetId"])

    async def attach(self, target: str) -> str:
        """A session with a page."""
        return str((await self.line.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"])

    async def targets(self) -> list[dict[str, Any]]:
        """Pages and workers."""
        found: list[dict[str, Any]] = (await self.line.call("Target.getTargets"))["targetInfos"]
        return found

    async def cookies(self) -> list[dict[str, Any]]:
        """Of all contexts."""
        contexts = (await self._contexts())["browserContextIds"]
        scopes: list[dict[str, Any]] = [{}, *({"browserContextId": context} for context in contexts)]
        answers = await asyncio.gather(*(self.line.call("Storage.getCookies", **scope) for scope in scopes))
        return [cookie for answer in answers for cookie in answer["cookies"]]

    async def end(self) -> None:
        """Nothing of it is left when this returns; more than once changes nothing."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        await self.line.close()
        try:
            async with asyncio.timeout(GONE_SECONDS):
                await self.ended.wait()
                await asyncio.wait([self._listening])  # all that it started have ended, or hold nothing of it
        except TimeoutError as exc:
            raise MachineError(f"browser {self.pid} does not end though it was killed", stage="machine.end") from exc
        finally:
            self._listening.cancel()
            self._said.transport.abort()
        await remove(self._home)

    async def _blank_page(self) -> tuple[str, str]:
        """The context that was made for it, and a session with it."""
        context = await self.new_context()
        return context, await self.attach(await self.new_page(context))

    async def _empty_clipboard(self, context: str, session: str) -> str:
        """What can be pasted afterwards. The page is gone then.

        A page whose copy is still on its way when it goes has copied nothing. What it pastes is read after that. A new
        page gets the focus some time after it is made, and copies nothing before: it is to act as if it had it.
        """
        try:
            await self.line.call("Emulation.setFocusEmulationEnabled", session=session, enabled=True)
            await self._run(session, _EMPTY_CLIPBOARD)
            for kind in ("rawKeyDown", "keyUp"):
                await self.line.call("Input.dispatchKeyEvent", session=session, type=kind, commands=["paste"])
            return str(await self._run(session, _PASTED))
        finally:
            await self._dispose(context)

    async def _run(self, session: str, expression: str) -> Any:
        """A script, as if the user had asked for it."""
        answer = await self.line.call(
            "Runtime.evaluate", session=session, expression=expression, userGesture=True, returnByValue=True
        )
        return answer["result"].get("value")

    async def _contexts(self) -> dict[str, Any]:
        return await self.line.call("Target.getBrowserContexts")

    async def _dispose(self, *contexts: str) -> None:
        """What does not go is found out when the contexts are counted."""
        calls = (self.line.call("Target.disposeBrowserContext", browserContextId=context) for context in contexts)
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, MachineError):
                raise answer

    async def _listen(self, said: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while block := await said.read(SAID_BYTES):
                self._last_words = (self._last_words + block)[-SAID_BYTES:]

    def _bury(self) -> None:
        """The others are killed before the process is forgotten, since its number stands for their group till then."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        self.ended.set()
        self.on_end()


async def start(shape: Shape, home: Path, machine_id: str) -> Chromium:
    """A Chromium that answers. All its files lie in `home`, which it makes. Cancelling leaves nothing."""
    begun: list[Chromium] = []
    try:
        await uninterrupted(_begin(shape, home, machine_id, begun))
        chromium = begun[0]
        async with asyncio.timeout(START_SECONDS):
            await chromium.ready()
    except BaseException as exc:
        for chromium in begun:
            await uninterrupted(chromium.end())
        if isinstance(exc, TimeoutError | MachineError):
            reason = begun[0].last_words if begun else str(exc)
            raise MachineError(f"{shape.program} cannot be started: {reason or exc}", stage="machine.create") from exc
        raise
    return chromium


async def _begin(shape: Shape, home: Path, machine_id: str, begun: list[Chromium]) -> None:
    home.mkdir(mode=0o700)  # noqa: ASYNC240 in an instant
    ours, theirs = socket.socketpair()
    ear, mouth = socket.socketpair()
    with theirs, mouth:
        line = Line(machine_id, *await asyncio.open_unix_connection(sock=ours, limit=MAX_MESSAGE_BYTES))
        said = await asyncio.open_unix_connection(sock=ear)
        try:
            pid = os.posix_spawn(  # noqa: ASYNC221 it does not wait for its end
                shape.program,
                (shape.program, *all_flags(size=shape.size, headless=shape.headless), f"{_PROFILE}{home / 'profile'}"),
                environment() | {"HOME": str(home), "TMPDIR": str(home), "DBUS_SESSION_BUS_ADDRESS": _NO_BUS},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, mouth.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, mouth.fileno(), 2),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), _FROM_US),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), _TO_US),
                ],
                setsid=True,
            )
            begun.append(Chromium(pid, home, line, said))
        except OSError as exc:
            said[1].transport.abort()
            await line.close()
            await remove(home)
            raise MachineError(f"{shape.program} cannot be started: {exc}", stage="machine.create") from exc


async def remove(folder: Path) -> None:
    """Also from under processes that are about to end, and go on writing until then."""
    for _ in range(_REMOVALS):
        if _is_removed(folder):
            return
        await asyncio.sleep(_REMOVAL_SECONDS)


def _is_removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def left_in(home: Path) -> Iterator[int]:
    """Processes whose files lie there, whoever started them."""
    label = f"{_PROFILE}{home / 'profile'}"
    for pid, arguments in named(label):
        if label in arguments:
            yield pid


async def end_left(home: Path) -> None:
    """End what is left of a Chromium that somebody else started."""
    for pid in left_in(home):
        found = Process.find(pid, start_time(pid) or 0)
        if found is not None:
            try:
                if pid in left_in(home):
                    await found.kill()
            finally:
                found.close()
    await remove(home)
