"""The line to a Chromium: its DevTools protocol, shared by the pool and by those who hold the machine.

Each of them speaks in sessions of its own. The pool's first one is the line itself; a guest gets a session with the
browser that looks to it as if it had a line of its own.

Invariants:
- A guest reads and writes in its own sessions only, and in none after `dismiss`.
- What a guest did to all of the browser, and not to a context that can be disposed of, is noted: `is_soiled`.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from outrider.core.decoding import from_json
from outrider.core.errors import MachineError
from outrider.core.tasks import uninterrupted

CALL_SECONDS = 15.0
CLOSE_SECONDS = 5.0
MAX_MESSAGE_BYTES = 256 * 2**20
_NO_SESSION = -32001
_END = b"\0"

_OF_PAGES = frozenset(
    {
        "Accessibility",
        "Animation",
        "Audits",
        "CSS",
        "CacheStorage",
        "Console",
        "DOM",
        "DOMDebugger",
        "DOMSnapshot",
        "DOMStorage",
        "Debugger",
        "Emulation",
        "EventBreakpoints",
        "Fetch",
        "HeapProfiler",
        "IO",
        "IndexedDB",
        "Input",
        "Inspector",
        "LayerTree",
        "Log",
        "Media",
        "Network",
        "Overlay",
        "Page",
        "Performance",
        "PerformanceTimeline",
        "Preload",
        "Profiler",
        "Runtime",
        "Schema",
        "ServiceWorker",
        "SystemInfo",
        "Tracing",
        "WebAudio",
        "WebAuthn",
    }
)
"""Domains that reach no further than a page and its context, or change nothing."""

_HARMLESS = frozenset(
    {
        "Browser.close",
        "Browser.getVersion",
        "Browser.getWindowBounds",
        "Browser.getWindowForTarget",
        "Browser.setDownloadBehavior",
        "Browser.setWindowBounds",
        "Target.activateTarget",
        "Target.attachToBrowserTarget",
        "Target.attachToTarget",
        "Target.closeTarget",
        "Target.createBrowserContext",
        "Target.detachFromTarget",
        "Target.disposeBrowserContext",
        "Target.getBrowserContexts",
        "Target.getTargetInfo",
        "Target.getTargets",
        "Target.setAutoAttach",
        "Target.setDiscoverTargets",
    }
)
"""Of the others, what leaves nothing behind that a reset does not undo."""


class _Message(Struct, rename="camel", omit_defaults=True):
    """A message, of which only the head is read."""

    id: int | UnsetType = UNSET
    method: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class _Attached(Struct, rename="camel"):
    session_id: str


class _Scope(Struct, rename="camel"):
    browser_context_id: str | None = None


class Guest(Protocol):
    """Somebody who speaks over the line as if it were its own."""

    def deliver(self, message: bytes) -> None:
        """Take what Chromium says. Must not wait."""


class Line:
    """`events` is called with each event of the pool's own sessions."""

    def __init__(self, machine_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.is_soiled = False
        self.default_context: str | None = None
        """The context that is there from the beginning, and cannot be disposed of."""
        self.events: Callable[[str, dict[str, Any]], None] = lambda *_: None
        self._machine_id = machine_id
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._guests: dict[str, tuple[Guest, bool]] = {}
        """Whose a session is, and whether it is the one that stands for the line."""
        self._own: set[str | UnsetType] = {UNSET}
        self._is_lost = False
        self._reading = asyncio.create_task(self._read(), name=f"line to browser {machine_id}")

    async def call(
        self, method: str, *, session: str | None = None, seconds: float = CALL_SECONDS, **params: Any
    ) -> dict[str, Any]:
        """Ask once, and wait for the answer. `MachineError` if there is none, or if it is that it cannot be done."""
        if self._is_lost:
            raise self._error(method, "the browser is gone")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        message = {"id": number, "method": method, "params": params}
        try:
            self._write(msgspec.json.encode(message if session is None else message | {"sessionId": session}))
            async with asyncio.timeout(seconds):
                found = await answer
        except TimeoutError as exc:
            raise self._error(method, f"no answer within {seconds:g} s") from exc
        finally:
            self._waiting.pop(number, None)
        if "error" in found:
            raise self._error(method, str(found["error"].get("message")))
        result: dict[str, Any] = found["result"]
        return result

    async def welcome(self, guest: Guest) -> None:
        """From now on it may speak, until it is dismissed."""
        session: str = (await self.call("Target.attachToBrowserTarget"))["sessionId"]
        self._own.discard(session)
        self._guests[session] = (guest, True)

    def dismiss(self, guest: Guest) -> None:
        """Neither hear it nor speak to it any more. Chromium ends its sessions, and the contexts that go with them."""
        for session, (whose, is_first) in tuple(self._guests.items()):
            if whose is guest:
                del self._guests[session]
                if is_first and not self._is_lost:
                    detach = {"id": 0, "method": "Target.detachFromTarget", "params": {"sessionId": session}}
                    self._write(msgspec.json.encode(detach))

    async def say(self, guest: Guest, text: str) -> None:
        """Pass a guest's message on. Waits while Chromium is not listening. `ValueError` if it is none."""
        message = from_json(text, _Message)
        session = message.session_id or self._first_session(guest)
        if session is None or self._guests.get(session, (None, False))[0] is not guest:
            error = {"code": _NO_SESSION, "message": "Session with given id not found."}
            guest.deliver(msgspec.json.encode({"id": message.id or 0, "error": error}))
            return
        self.is_soiled = self.is_soiled or self._soils(message)
        message.session_id = session
        self._write(msgspec.json.encode(message))
        with suppress(ConnectionError):
            await self._writer.drain()

    async def close(self) -> None:
        """Hang up. Chromium ends when it sees that."""
        self._writer.transport.abort()
        self._reading.cancel()
        await uninterrupted(asyncio.wait([self._reading], timeout=CLOSE_SECONDS))

    def _first_session(self, guest: Guest) -> str | None:
        return next((name for name, (whose, is_first) in self._guests.items() if whose is guest and is_first), None)

    def _write(self, message: bytes) -> None:
        self._writer.write(message + _END)

    async def _read(self) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, msgspec.DecodeError):
                while True:
                    self._take((await self._reader.readuntil(_END))[:-1])
        finally:
            self._is_lost = True
            self._guests.clear()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(self._error("connection", "the browser is gone"))

    def _take(self, data: bytes) -> None:
        message = from_json(data, _Message)
        guest, is_first = self._guests.get(message.session_id or "", (None, False))
        if message.method in ("Target.attachedToTarget", "Target.detachedFromTarget") and message.params:
            self._keep_account(guest, message.method, from_json(message.params, _Attached).session_id)
        if guest is None and message.session_id in self._own:
            self._take_own(data, message)
        elif is_first and guest is not None:
            message.session_id = UNSET
            guest.deliver(msgspec.json.encode(message))
        elif guest is not None:
            guest.deliver(data)

    def _keep_account(self, guest: Guest | None, event: str, session: str) -> None:
        """A session belongs to whose session it comes from."""
        if event == "Target.detachedFromTarget":
            self._guests.pop(session, None)
            self._own.discard(session)
        elif guest is not None:
            self._guests[session] = (guest, False)
        else:
            self._own.add(session)

    def _take_own(self, data: bytes, message: _Message) -> None:
        if message.method:
            self.events(message.method, from_json(data).get("params", {}))
        elif (answer := self._waiting.get(message.id or 0)) is not None and not answer.done():
            answer.set_result(from_json(data))

    def _soils(self, message: _Message) -> bool:
        """Whether it may reach beyond the contexts that a guest makes."""
        method = message.method or ""
        if method in _HARMLESS or method.partition(".")[0] in _OF_PAGES:
            return False
        context = from_json(message.params, _Scope).browser_context_id if message.params else None
        return context in (None, self.default_context)

    def _error(self, call: str, reason: str) -> MachineError:
        return MachineError(f"browser {self._machine_id}, {call}: {reason}", stage=f"machine.{call}")
