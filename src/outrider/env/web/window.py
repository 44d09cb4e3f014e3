"""An episode's window on the web: its tabs, what can be done in them, and what is told about it.

Invariants:
- Every action ends within its deadline, but for the moment it takes to stop a page that goes on. What the page makes
  impossible is a `ToolRefusal` that says why; a browser that died is an `EnvError`, that of a
  machine a `MachineError`.
- The newest tab is the current one. A page that no longer answers is replaced when another is opened.
- A dialog is accepted and reported, a tab that a page opens is followed, a download is refused.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from outrider.core.errors import ToolRefusal
from outrider.env.web import probes
from outrider.env.web.gate import Gate
from outrider.env.web.process import BrowserLink, Place, first_line
from outrider.env.web.state import PageState, changes
from outrider.env.web.traffic import Traffic

if TYPE_CHECKING:
    from playwright.async_api import Dialog, Download, Locator, Page

_MAX_TABS = 5
_MAX_DIALOGS = 20
_MAX_NOTES = 8
_QUIET_SECONDS = 1.0
_LOADING_SECONDS = 3.0
_ALIVE_SECONDS = 5.0
_RECOVERY_SECONDS = 1.0
_STUCK = "it did not come to an end in time: the page does not answer any more; open another one"
_STOPPED = "it did not come to an end in time, and what was loading has been stopped; read where you are"


class Window:
    """`seconds` bounds each action. It begins with one empty tab."""

    def __init__(self, place: Place[BrowserLink], gate: Gate, *, seconds: float) -> None:
        self._process = place.process
        self._context = place.context
        self._gate = gate
        self._seconds = seconds
        self._tabs: list[Page] = []
        self._stuck: set[Page] = set()
        self._is_opening = False
        self._n_dialogs = 0
        self._notes: list[str] = []
        self._shown = PageState()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._traffic = Traffic(place.context)
        place.context.set_default_timeout(seconds * 1000)
        place.context.on("page", self._on_tab)
        place.context.on("dialog", self._on_dialog)

    async def close(self) -> None:
        """Let go of what is under way in it. The context is its place's."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @asynccontextmanager
    async def acting(self) -> AsyncIterator["Page"]:
        """The current page, for one action under its deadline."""
        from playwright.async_api import Error  # noqa: PLC0415
        from playwright.async_api import TimeoutError as DriverTimeoutError  # noqa: PLC0415

        self._traffic.forget()
        self._n_dialogs = 0
        try:
            async with asyncio.timeout(self._seconds):
                yield await self._page()
        except (TimeoutError, Error) as exc:
            if not await self._process.is_alive(_ALIVE_SECONDS):
                raise self._process.failure("the browser died", stage="env.step") from exc
            reason = _reason(exc)
            if reason is None and isinstance(exc, TimeoutError | DriverTimeoutError):
                reason = _STOPPED if await self._stop_loading() else _STUCK
            raise ToolRefusal(f"{reason or _words(exc)}{self._told()}") from exc

    async def goto(self, url: str) -> str:
        """Open `url` in the current tab, or in another one if that has ceased to answer."""
        if self._tabs and self._tabs[-1] in self._stuck:
            self._own(self._tabs.pop().close())
        async with self.acting() as page:
            response = await page.goto(url, wait_until="commit")
            status = f" (HTTP {response.status})" if response is not None else ""
            return await self.report(f"opened{status}")

    async def back(self) -> str:
        """To the page before; the first page of a tab leads back to the tab before."""
        async with self.acting() as page:
            if await self._has_history(page):
                await page.go_back(wait_until="commit")
                return await self.report("went back")
            if len(self._tabs) == 1:
                raise ToolRefusal("there is no page to go back to")
            await page.close()
            return await self.report("closed the tab and went back to the one before")

    async def element(self, page: "Page", ref: str) -> "Locator":
        """The element that a tree showed under `ref`."""
        found = page.locator(f"aria-ref={ref}")
        if await found.count() != 1:
            raise ToolRefusal(f"there is no [{ref}] on the page now; read the tree again and use a ref from it")
        return found

    async def report(self, did: str) -> str:
        """Wait for what the action has set off, then tell where the page stands and what is new. Within `acting`."""
        state = await self._settled_state()
        before, self._shown = self._shown, state
        lines = [did, f'page: {state.url} "{state.title}"', *changes(before, state)]
        if state.loading:
            lines.append("it is still loading")
        return "\n".join(lines) + self._told()

    async def _stop_loading(self) -> bool:
        """Whether the current page answers once it loads nothing more. A page that is on its way keeps it from that."""
        from playwright.async_api import Error  # noqa: PLC0415

        for page in self._tabs[-1:]:
            try:
                async with asyncio.timeout(_RECOVERY_SECONDS):
                    await self._ask_browser(page, "Page.stopLoading")
                    await page.evaluate("() => 0")
                    return True
            except (Error, TimeoutError):
                self._stuck.add(page)
        return False

    async def _ask_browser(self, page: "Page", method: str) -> dict[str, Any]:
        """Call a method of Chromium's own protocol, for what Playwright has no words for."""
        session = await self._context.new_cdp_session(page)
        answer: dict[str, Any] = await session.send(method)
        await session.detach()
        return answer

    async def _has_history(self, page: "Page") -> bool:
        history = await self._ask_browser(page, "Page.getNavigationHistory")
        index = history["currentIndex"]
        return bool(index > 0 and history["entries"][index - 1]["url"] != "about:blank")

    async def _settled_state(self) -> PageState:
        """Also of a page that another one replaces while it is being asked."""
        from playwright.async_api import Error  # noqa: PLC0415
        from playwright.async_api import TimeoutError as DriverTimeoutError  # noqa: PLC0415

        while True:
            page = await self._page()
            try:
                await page.evaluate(probes.SETTLED)
                await self._traffic.quiet(_QUIET_SECONDS)
                page = await self._page()
                with suppress(DriverTimeoutError):
                    await page.wait_for_load_state("load", timeout=_LOADING_SECONDS * 1000)
                return PageState(**await page.evaluate(probes.STATE))
            except Error as exc:
                if "context was destroyed" not in str(exc) and not page.is_closed():
                    raise
                await self._traffic.quiet(_QUIET_SECONDS)

    async def _page(self) -> "Page":
        if not self._tabs:
            self._is_opening = True
            try:
                await self._context.new_page()
            finally:
                self._is_opening = False
        return self._tabs[-1]

    def _told(self) -> str:
        """The notes since the last report, as lines to append."""
        notes = list(dict.fromkeys([*self._notes, *self._gate.take_notes()]))
        self._notes.clear()
        more = [f"and {len(notes) - _MAX_NOTES} more"] if len(notes) > _MAX_NOTES else []
        return "".join(f"\nnote: {note}" for note in [*notes[:_MAX_NOTES], *more])

    def _on_tab(self, tab: "Page") -> None:
        tab.on("close", self._on_closed)
        if len(self._tabs) >= _MAX_TABS:
            self._notes.append("the page wanted one more tab, which was refused: close some with back")
            self._own(tab.close())
            return
        if not self._is_opening:
            self._notes.append("the page opened a new tab, which is the current one now; back closes it")
        self._tabs.append(tab)
        tab.on("crash", self._on_crash)
        tab.on("download", self._on_download)

    def _on_closed(self, tab: "Page") -> None:
        self._traffic.forget(tab)
        self._stuck.discard(tab)
        if tab in self._tabs:
            self._tabs.remove(tab)

    def _on_crash(self, tab: "Page") -> None:
        self._stuck.add(tab)
        self._notes.append("the page crashed; open another one")

    def _on_download(self, download: "Download") -> None:
        self._notes.append(f"a download ({download.suggested_filename[:100]}) was refused")

    def _on_dialog(self, dialog: "Dialog") -> None:
        self._n_dialogs += 1
        if self._n_dialogs > _MAX_DIALOGS:
            self._stuck.update(tab for tab in self._tabs if tab is dialog.page)
            return  # a page that asks without end waits without end
        if dialog.type != "beforeunload":
            self._notes.append(f"the page said ({dialog.type}): {dialog.message[:300]!r}; it was answered with OK")
        self._own(dialog.accept(dialog.default_value) if dialog.type == "prompt" else dialog.accept())

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(_tolerant(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _tolerant(work: Coroutine[Any, Any, None]) -> None:
    """What is done on the side to a page that may be gone by then."""
    from playwright.async_api import Error  # noqa: PLC0415

    with suppress(Error):
        await work


_REASONS = (
    ("intercepts pointer events", "something else on the page covers it"),
    ("element is not enabled", "it is disabled"),
    ("element is not visible", "it is not visible"),
    ("element is not stable", "it keeps moving"),
    ("outside of the viewport", "it is outside of the window"),
    ("Invalid frame in aria-ref", "there is no such ref on the page now; read the tree again"),
    ("context was destroyed", "another page came up meanwhile; try again"),
    ("Download is starting", "that is a download, and downloads are refused"),
    ("ERR_TOO_MANY_REDIRECTS", "that address redirects without end"),
    ("ERR_TUNNEL_CONNECTION_FAILED", "that address cannot be reached"),
    ("crashed", "the page crashed; open another one"),
)
"""What stood in the way: Playwright's words, as they stand in its error or the log that it appends, and ours."""


def _reason(error: BaseException) -> str | None:
    return next((reason for mark, reason in _REASONS if mark in str(error)), None)


def _words(error: BaseException) -> str:
    """Playwright's own words, without the name of the call that they begin with."""
    line = first_line(error)
    return (line.partition(": ")[2] or line).removeprefix("Error: ")
