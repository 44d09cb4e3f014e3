"""The browser of a machine that an episode holds, reached over a Playwright driver that a worker's episodes share."""

import asyncio
from typing import TYPE_CHECKING

from outrider.core.errors import MachineError
from outrider.core.tasks import uninterrupted
from outrider.env.web.process import CLOSE_SECONDS, BrowserLink, Place, first_line
from outrider.pool.source import Machine

if TYPE_CHECKING:
    from playwright.async_api import Browser as Chromium
    from playwright.async_api import Playwright

DRIVER_SECONDS = 30.0
CONNECT_SECONDS = 20.0


class _Driver:
    """A driver and how many use it."""

    def __init__(self, playwright: "Playwright") -> None:
        self.playwright = playwright
        self.n_users = 0


class Drivers:
    """Started by the first who needs it. One over which a browser could not be reached serves nobody new."""

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._current: _Driver | None = None

    async def take(self) -> _Driver:
        from playwright.async_api import Error, async_playwright  # noqa: PLC0415

        async with self._starting:
            if self._current is None:
                try:
                    async with asyncio.timeout(DRIVER_SECONDS):
                        self._current = _Driver(await async_playwright().start())
                except (Error, TimeoutError, OSError) as exc:
                    raise MachineError(f"Playwright cannot be started: {exc}", stage="env.reset") from exc
            self._current.n_users += 1
            return self._current

    async def give_back(self, driver: _Driver, *, is_well: bool = True) -> None:
        driver.n_users -= 1
        if not is_well and driver is self._current:
            self._current = None
        if driver is not self._current and driver.n_users == 0:
            await _stop(driver)

    async def close(self) -> None:
        """When nobody uses one any more."""
        driver, self._current = self._current, None
        if driver is not None:
            await _stop(driver)


class MachineBrowser:
    """Gives one episode its place, as `Browser` does. The machine is its caller's; its end is a `MachineError`."""

    def __init__(self, machine: Machine, drivers: Drivers) -> None:
        self._machine = machine
        self._drivers = drivers
        self._driver: _Driver | None = None
        self._link: BrowserLink | None = None

    async def acquire(self, proxy: str) -> Place[BrowserLink]:
        """A fresh context whose every connection goes to `proxy`."""
        try:
            await uninterrupted(self._connect())
            assert self._link is not None
            return Place(self._link, await self._link.new_context(proxy))
        except BaseException:
            await uninterrupted(self._disconnect(is_well=False))
            raise

    async def release(self, place: Place[BrowserLink]) -> None:
        if not place.process.is_lost:
            await uninterrupted(place.process.close_context(place.context))
        await uninterrupted(self._disconnect())

    async def _connect(self) -> None:
        from playwright.async_api import Error  # noqa: PLC0415

        address = str(self._machine.address["devtools"])
        self._driver = await self._drivers.take()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                chromium: Chromium = await self._driver.playwright.chromium.connect_over_cdp(address)
        except (Error, TimeoutError) as exc:
            reason = first_line(exc).partition(address)[0] or f"no answer within {CONNECT_SECONDS:g} s"
            message = f"the browser of machine {self._machine.machine_id} cannot be reached: {reason}"
            raise MachineError(message, stage="env.reset") from exc
        self._link = BrowserLink(chromium, MachineError)

    async def _disconnect(self, *, is_well: bool = True) -> None:
        link, self._link = self._link, None
        driver, self._driver = self._driver, None
        if link is not None:
            is_well = await link.hang_up() and is_well
        if driver is not None:
            await self._drivers.give_back(driver, is_well=is_well)


async def _stop(driver: _Driver) -> None:
    from playwright.async_api import Error  # noqa: PLC0415

    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await driver.playwright.stop()
    except (Error, TimeoutError, OSError):
        return
