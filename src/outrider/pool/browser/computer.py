"""A browser as a computer: its newest page is the screen, with a mouse and a keyboard on it."""

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, assert_never

from outrider.core.errors import MachineRefusal
from outrider.pool.browser import tree
from outrider.pool.browser.keys import SHIFT, Stroke, shifted, stroke_of
from outrider.pool.browser.process import Chromium
from outrider.pool.computer import Button, Executed, Input, Key, MoveTo, Pause, Press, Scroll, Text

SCROLL_PIXELS = 100
"""How far a click of the wheel goes."""

AGAIN_SECONDS = 0.5
"""How soon a press must follow another to be a double click."""

_BITS = {Button.LEFT: 1, Button.RIGHT: 2, Button.MIDDLE: 4}


class Pages:
    """The pages of one process, oldest first, and the pool's sessions with them."""

    def __init__(self, chromium: Chromium, size: tuple[int, int]) -> None:
        self.chromium = chromium
        self._size = size
        self._pages: dict[str, str | None] = {}
        chromium.line.events = self._on_event

    async def watch(self) -> None:
        await self.chromium.line.call("Target.setDiscoverTargets", discover=True)

    async def current(self) -> str:
        """The session of the newest page; if there is none, an empty one is opened."""
        if not self._pages:
            return await self._open()
        target = next(reversed(self._pages))
        session = self._pages[target]
        if session is None:
            session = self._pages[target] = await self.chromium.attach(target)
        return session

    async def _open(self) -> str:
        target = await self.chromium.new_page(await self.chromium.new_context())
        session = self._pages[target] = await self.chromium.attach(target)
        width, height = self._size
        view = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.chromium.line.call("Emulation.setDeviceMetricsOverride", session=session, **view)
        return session

    def _on_event(self, event: str, told: dict[str, Any]) -> None:
        match event, told:
            case "Target.targetCreated", {"targetInfo": {"type": "page", "targetId": target}}:
                self._pages.setdefault(target, None)
            case "Target.targetDestroyed", {"targetId": target}:
                self._pages.pop(target, None)
            case "Target.detachedFromTarget", {"sessionId": session}:
                for target, its in self._pages.items():
                    if its == session:
                        self._pages[target] = None


class Hands:
    """Where the mouse is and what is held down, on one life of a machine."""

    def __init__(self) -> None:
        self.at = (0, 0)
        self.modifiers = 0
        self._buttons = 0
        self._last: tuple[Button, tuple[int, int], float] | None = None
        self._n_clicks = 1

    def key(self, stroke: Stroke, *, down: bool) -> dict[str, Any]:
        """One event of the keyboard."""
        if stroke.modifier:
            self.modifiers = self.modifiers | stroke.modifier if down else self.modifiers & ~stroke.modifier
        elif self.modifiers & SHIFT:
            stroke = shifted(stroke)
        writes = stroke.text if down and self.modifiers in (0, SHIFT) else ""
        kind = ("keyDown" if writes else "rawKeyDown") if down else "keyUp"
        told = {"type": kind, "key": stroke.key, "code": stroke.code, "windowsVirtualKeyCode": stroke.number}
        return told | {"modifiers": self.modifiers} | ({"text": writes} if writes else {})

    def mouse(self, event: MoveTo | Press | Scroll) -> dict[str, Any]:
        """One event of the mouse."""
        told: dict[str, Any] = {"modifiers": self.modifiers}
        match event:
            case MoveTo(x=x, y=y):
                self.at = (x, y)
                told["type"] = "mouseMoved"
            case Press(button=button, down=down):
                told |= {"type": "mousePressed" if down else "mouseReleased", "button": button.value}
                self._buttons = self._buttons | _BITS[button] if down else self._buttons & ~_BITS[button]
                told["clickCount"] = self._count(button) if down else self._n_clicks
            case Scroll(dx=dx, dy=dy):
                told |= {"type": "mouseWheel", "deltaX": dx * SCROLL_PIXELS, "deltaY": -dy * SCROLL_PIXELS}
        return told | {"buttons": self._buttons, "x": self.at[0], "y": self.at[1]}

    def _count(self, button: Button) -> int:
        now = asyncio.get_running_loop().time()
        again = self._last is not None and self._last[:2] == (button, self.at) and now - self._last[2] < AGAIN_SECONDS
        self._last = (button, self.at, now)
        self._n_clicks = self._n_clicks + 1 if again else 1
        return self._n_clicks


class BrowserComputer:
    """It runs no commands and has no files. `pages` gives those of the process that there is now."""

    def __init__(self, pages: Callable[[], Pages], size: tuple[int, int]) -> None:
        self.screen_size = size
        self.hands = Hands()
        """Another pair after each reset."""
        self._pages = pages

    async def screenshot(self) -> bytes:
        """The newest page, from its upper left corner as it is scrolled; as large as the screen, whatever it is."""
        width, height = self.screen_size
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        scrolled = (await self._call("Page.getLayoutMetrics"))["cssVisualViewport"]
        clip |= {"x": scrolled["pageX"], "y": scrolled["pageY"]}
        told = await self._call("Page.captureScreenshot", format="png", clip=clip)
        return base64.b64decode(told["data"])

    async def input(self, events: Sequence[Input]) -> None:
        """As told, on the newest page. If one of the events makes no sense, none is carried out."""
        for event in events:
            self._check(event)
        await self._call("Page.bringToFront")
        for event in events:
            match event:
                case Pause(seconds=seconds):
                    await asyncio.sleep(seconds)
                case Text(text=text):
                    await self._type(text)
                case Key(name=name, down=down):
                    await self._key(_stroke(name), down=down)
                case MoveTo() | Press() | Scroll():
                    await self._call("Input.dispatchMouseEvent", **self.hands.mouse(event))
                case _:
                    assert_never(event)

    async def accessibility_tree(self) -> str:
        nodes = (await self._call("Accessibility.getFullAXTree"))["nodes"]
        snapshot = await self._call("DOMSnapshot.captureSnapshot", computedStyles=[])
        return tree.xml(nodes, tree.boxes(snapshot))

    async def terminal_text(self) -> str | None:
        return None

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:  # noqa: ARG002
        _refuse("a browser runs no commands")

    async def launch(self, command: Sequence[str] | str) -> None:  # noqa: ARG002
        _refuse("a browser runs no commands")

    async def read_file(self, path: str) -> bytes | None:  # noqa: ARG002
        _refuse("a browser has no files")

    async def write_file(self, path: str, data: bytes) -> None:  # noqa: ARG002
        _refuse("a browser has no files")

    async def _call(self, method: str, **params: Any) -> dict[str, Any]:
        pages = self._pages()
        session = await pages.current()
        return await pages.chromium.line.call(method, session=session, **params)

    async def _type(self, text: str) -> None:
        for sign in text:
            if (stroke := stroke_of(sign)) is None:
                await self._call("Input.insertText", text=sign)
            else:
                await self._key(stroke, down=True)
                await self._key(stroke, down=False)

    async def _key(self, stroke: Stroke, *, down: bool) -> None:
        await self._call("Input.dispatchKeyEvent", **self.hands.key(stroke, down=down))

    def _check(self, event: Input) -> None:
        width, height = self.screen_size
        if isinstance(event, Key):
            _stroke(event.name)
        elif isinstance(event, MoveTo) and not (0 <= event.x < width and 0 <= event.y < height):
            _refuse(f"({event.x}, {event.y}) is not on the screen, which has {width} by {height} pixels")


def _stroke(name: str) -> Stroke:
    stroke = stroke_of(name)
    if stroke is None:
        _refuse(f"there is no key {name!r}")
    return stroke


def _refuse(reason: str) -> NoReturn:
    raise MachineRefusal(reason, stage="machine.call")
