"""The tools of a web task: what a model can do in its window."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from outrider.core.chat import Image
from outrider.core.errors import ToolRefusal
from outrider.env.tools import Tool, ToolOutput, tool
from outrider.env.web import probes
from outrider.env.web.gate import Gate
from outrider.env.web.tree import bounded, readable
from outrider.env.web.window import Window

_MAX_ELEMENTS = 40_000
_MAX_URL = 4096
_ACTION_SHARE = 0.4
"""The part of an action's time in which an element must let itself be used; the rest is for what follows from it."""

Ref = Annotated[
    str,
    Meta(pattern=r"^\[?(f[0-9]{1,4})?e[0-9]{1,7}\]?$", description="an element's ref in the tree, such as e12"),
]


class Open(Struct, forbid_unknown_fields=True):
    """An address to open."""

    url: Annotated[str, Meta(max_length=_MAX_URL, description="the whole address, with http:// or https://")]


class Click(Struct, forbid_unknown_fields=True):
    """An element to click."""

    ref: Ref


class Type(Struct, forbid_unknown_fields=True):
    """A field, and what goes into it."""

    ref: Ref
    text: Annotated[str, Meta(max_length=10_000, description="replaces what is in the field")]
    submit: Annotated[bool, Meta(description="press Enter afterwards")] = False


class Select(Struct, forbid_unknown_fields=True):
    """A list, and the option to choose."""

    ref: Ref
    value: Annotated[str, Meta(description="the option, as it is shown")]


class Scroll(Struct, forbid_unknown_fields=True):
    """Which way to scroll."""

    direction: Literal["up", "down", "top", "bottom"] = "down"


class Read(Struct, forbid_unknown_fields=True):
    """How to read the page, and from where."""

    mode: Annotated[
        Literal["tree", "text"], Meta(description="tree: elements with their refs; text: what a person would read")
    ] = "tree"
    start: Annotated[int, Meta(ge=0, description="where to read on in a long page")] = 0


class Nothing(Struct, forbid_unknown_fields=True):
    """No arguments."""


class Actions:
    """One episode's tools. `seconds` is the deadline of each, `max_chars` the most that a page may say at once."""

    def __init__(self, *, seconds: float, max_chars: int) -> None:
        self.seconds = seconds
        self._milliseconds = seconds * _ACTION_SHARE * 1000
        self._max_chars = max_chars
        self._window: Window | None = None
        self._gate: Gate | None = None

    def use(self, window: Window, gate: Gate) -> None:
        """Act in this window from now on."""
        self._window = window
        self._gate = gate

    @property
    def window(self) -> Window:
        assert self._window is not None, "reset comes first"
        return self._window

    def tools(self) -> tuple[Tool, ...]:
        return (
            tool("open", "Open an address.", Open, self.open),
            tool("click", "Click an element of the tree.", Click, self.click),
            tool("type", "Type text into a field.", Type, self.type),
            tool("select", "Choose an option of a combobox or listbox.", Select, self.select),
            tool("scroll", "Scroll the page.", Scroll, self.scroll),
            tool("back", "Go back to the page before.", Nothing, self.back),
            tool("read", "Read the current page.", Read, self.read),
            tool("screenshot", "Take a picture of what the window shows.", Nothing, self.screenshot),
        )

    async def open(self, call: Open) -> str:
        assert self._gate is not None, "reset comes first"
        try:
            parts = urlsplit(call.url)
            is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
            is_allowed = is_web and self._gate.allows(call.url)
        except ValueError as exc:
            raise ToolRefusal(f"{call.url!r} is not an address: {exc}") from exc
        if not is_web:
            raise ToolRefusal(
                f"{call.url!r} cannot be opened: give a whole address that begins with http:// or https://"
            )
        if not is_allowed:
            raise ToolRefusal(f"{parts.netloc} cannot be visited in this task, only: {self._gate.reach}")
        return await self.window.goto(call.url)

    async def click(self, call: Click) -> str:
        async with self.window.acting() as page:
            ref = call.ref.strip("[]")
            await (await self.window.element(page, ref)).click(timeout=self._milliseconds)
            return await self.window.report(f"clicked [{ref}]")

    async def type(self, call: Type) -> str:
        async with self.window.acting() as page:
            ref = call.ref.strip("[]")
            field = await self.window.element(page, ref)
            await field.fill(call.text, timeout=self._milliseconds)
            if call.submit:
                await field.press("Enter", timeout=self._milliseconds, no_wait_after=True)
            return await self.window.report(f"typed into [{ref}]" + (" and pressed Enter" if call.submit else ""))

    async def select(self, call: Select) -> str:
        async with self.window.acting() as page:
            ref = call.ref.strip("[]")
            field = await self.window.element(page, ref)
            options = await field.evaluate(probes.OPTIONS)
            if options is None:
                raise ToolRefusal(f"[{ref}] is not a list of options; click it instead")
            chosen = next((value for value, label in options if call.value.strip() in (label.strip(), value)), None)
            if chosen is None:
                shown = ", ".join(repr(label) for _, label in options[:20])
                raise ToolRefusal(f"[{ref}] has no option {call.value!r}; it has {shown}")
            await field.select_option(value=chosen, timeout=self._milliseconds)
            return await self.window.report(f"chose {call.value!r} in [{ref}]")

    async def scroll(self, call: Scroll) -> str:
        async with self.window.acting() as page:
            above, below = await page.evaluate(probes.SCROLL, call.direction)
            return await self.window.report(f"scrolled: {above} pixels lie above, {below} below")

    async def back(self, _: Nothing) -> str:
        return await self.window.back()

    async def read(self, call: Read) -> str:
        async with self.window.acting() as page:
            if call.mode == "text":
                piece, total = await page.evaluate(probes.TEXT, [call.start, self._max_chars])
                return bounded(piece, call.start, total)
            n_elements = await page.evaluate(probes.SIZE)
            if n_elements > _MAX_ELEMENTS:
                raise ToolRefusal(f"the page has {n_elements} elements, too many for a tree; read its text")
            tree = readable(await page.aria_snapshot(mode="ai"))
            return bounded(tree[call.start : call.start + self._max_chars], call.start, len(tree))

    async def screenshot(self, _: Nothing) -> ToolOutput:
        async with self.window.acting() as page:
            data = await page.screenshot(animations="disabled", caret="hide")
            size = page.viewport_size or {"width": 0, "height": 0}
            text = f"a picture of {page.url}, {size['width']} by {size['height']} pixels, {len(data)} bytes"
            return ToolOutput(text=text, images=(Image(data=data),))
