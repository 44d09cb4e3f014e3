"""What a window is loading, so that an action can wait for what it set off and for nothing else."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Request


class Traffic:
    """The requests of one context: for whole pages, by the tab they are for, and for parts of pages."""

    def __init__(self, context: "BrowserContext") -> None:
        self._pages: dict[Request, Page] = {}
        self._parts: set[Request] = set()
        self._ended = asyncio.Event()
        context.on("request", self._begin)
        context.on("requestfinished", self._end)
        context.on("requestfailed", self._end)

    def forget(self, tab: "Page | None" = None) -> None:
        """Wait for nothing that has begun so far; or for no page of a tab that is closed."""
        if tab is None:
            self._parts.clear()
        self._pages = {request: page for request, page in self._pages.items() if tab not in (None, page)}
        self._ended.set()

    async def quiet(self, seconds: float) -> None:
        """Return when no page is on its way, and nothing that a page loads, or the latter for `seconds` at most."""
        while self._pages:
            await self._next_end()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._parts:
                    await self._next_end()

    async def _next_end(self) -> None:
        self._ended.clear()
        await self._ended.wait()

    def _begin(self, request: "Request") -> None:
        tab = _tab_of(request)
        if tab is None or tab.is_closed():
            self._parts.add(request)
        else:
            self._pages[request] = tab

    def _end(self, request: "Request") -> None:
        self._pages.pop(request, None)
        self._parts.discard(request)
        self._ended.set()


def _tab_of(request: "Request") -> "Page | None":
    """The tab whose page it is for; None: it is for a part of a page, or the tab is not there yet."""
    from playwright.async_api import Error  # noqa: PLC0415

    if not request.is_navigation_request():
        return None
    try:
        frame = request.frame
    except Error:
        return None
    return frame.page if frame.parent_frame is None else None
