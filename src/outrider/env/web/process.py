"""A Chromium as Playwright holds it: one that this worker has started, from launch to close, or one of a machine."""

import asyncio
import os
import re
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from outrider.core.clock import Clock
from outrider.core.errors import AttemptError, EnvError, InvalidInput
from outrider.core.extras import install_command
from outrider.pool.browser.flags import NETWORK, NOWHERE, environment, has_sandbox

if TYPE_CHECKING:
    from playwright.async_api import Browser as Chromium
    from playwright.async_api import BrowserContext, Playwright

_LAUNCH_SECONDS = 60.0
_CONTEXT_SECONDS = 20.0
CLOSE_SECONDS = 10.0

_REMOVALS = 20
_REMOVAL_SECONDS = 0.1

_LAST_WORDS = re.compile(r"\[err\] .*?(?:FATAL:\S*\] |(?=error while loading|Missing X server))(.+)")
"""What a Chromium that cannot run says about it, in the log that Playwright appends."""

_PROFILE = re.compile(r"--user-data-dir=(\S*/playwright_chromiumdev_profile-\w+)")


def require_playwright() -> None:
    try:
        from playwright.async_api import Page  # noqa: PLC0415
    except ImportError as exc:
        raise InvalidInput(f"web tasks need Playwright: {install_command('web')}") from exc
    if not hasattr(Page, "aria_snapshot"):
        raise InvalidInput(f"web tasks need Playwright 1.59 or newer: {install_command('web')}")


class BrowserLink:
    """A Chromium that answers to Playwright. `failure` is what its end is to the episodes on it."""

    def __init__(self, chromium: "Chromium", failure: type[AttemptError]) -> None:
        self.failure = failure
        self._chromium = chromium
        self._lost = asyncio.Event()
        chromium.on("disconnected", lambda _: self._lost.set())

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, by itself or by `close`."""
        return self._lost.is_set() or not self._chromium.is_connected()

    async def is_alive(self, seconds: float) -> bool:
        """Ask it. What does not answer within `seconds`, its driver included, counts as lost from then on."""
        from playwright.async_api import Error  # noqa: PLC0415

        if not self.is_lost:
            try:
                async with asyncio.timeout(seconds):
                    await _ask(self._chromium, "SystemInfo.getInfo")
            except (Error, TimeoutError):
                self._lost.set()
        return not self.is_lost

    async def lost(self) -> None:
        """Return once it has ended."""
        await self._lost.wait()

    async def new_context(self, proxy: str) -> "BrowserContext":
        """A fresh profile: its own cookies and storage, nothing saved, every connection through `proxy`."""
        from playwright.async_api import Error  # noqa: PLC0415

        try:
            async with asyncio.timeout(_CONTEXT_SECONDS):
                return await self._chromium.new_context(
                    proxy={"server": proxy},
                    accept_downloads=False,
                    service_workers="block",
                    locale="en-US",
                    timezone_id="UTC",
                )
        except (Error, TimeoutError) as exc:
            raise self.failure(f"the browser gives no new context: {first_line(exc)}", stage="env.reset") from exc

    async def close_context(self, context: "BrowserContext") -> bool:
        """Whether it could be closed; if not, the process had better be ended too."""
        from playwright.async_api import Error  # noqa: PLC0415

        try:
            async with asyncio.timeout(_CONTEXT_SECONDS):
                await context.close()
        except (Error, TimeoutError):
            return False
        return True

    async def hang_up(self) -> bool:
        """Whether it was told in time to close; what is on the other end may live on."""
        from playwright.async_api import Error  # noqa: PLC0415

        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._chromium.close()
        except (Error, TimeoutError):
            return False
        finally:
            self._lost.set()
        return True


LinkT_co = TypeVar("LinkT_co", bound=BrowserLink, covariant=True)


class Place(NamedTuple, Generic[LinkT_co]):
    """A context for one episode, and the browser it is in."""

    process: LinkT_co
    context: "BrowserContext"


class BrowserProcess(BrowserLink):
    """Made by `launch`. `n_open` contexts are in use, `n_made` have been made so far."""

    def __init__(
        self, playwright: "Playwright", chromium: "Chromium", pid: int, folders: tuple[Path, ...], launched_at: float
    ) -> None:
        super().__init__(chromium, EnvError)
        self._playwright = playwright
        self._folders = folders
        self.pid = pid
        self.launched_at = launched_at
        self.n_open = 0
        self.n_made = 0

    @classmethod
    async def launch(cls, executable: str | None, *, headless: bool, clock: Clock) -> "BrowserProcess":
        """Start both. They die with us: the driver ends when its pipe to us breaks, Chromium with its pipe to that."""
        from playwright.async_api import Error, async_playwright  # noqa: PLC0415

        try:
            async with asyncio.timeout(_LAUNCH_SECONDS):
                playwright = await async_playwright().start()
                try:
                    chromium = await playwright.chromium.launch(
                        executable_path=executable,
                        headless=headless,
                        chromium_sandbox=has_sandbox(),
                        proxy={"server": NOWHERE},
                        args=NETWORK,
                        env={**environment()},
                        handle_sigint=False,
                        handle_sigterm=False,
                        handle_sighup=False,
                    )
                    return cls(playwright, chromium, *await _identity(chromium), clock.monotonic())
                except BaseException:
                    await playwright.stop()
                    raise
        except (Error, TimeoutError) as exc:
            found = _LAST_WORDS.search(str(exc))
            reason = found[1] if found else first_line(exc) or f"it took longer than {_LAUNCH_SECONDS:g} s"
            raise EnvError(f"{executable or 'Chromium'} cannot be started: {reason}", stage="env.reset") from exc

    async def close(self) -> None:
        """End both, by force if need be."""
        from playwright.async_api import Error  # noqa: PLC0415

        try:
            if not await self.hang_up():
                self._kill()
        finally:
            with suppress(Error, TimeoutError, OSError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._playwright.stop()
            await asyncio.to_thread(_remove, self._folders)

    def _kill(self) -> None:
        if self._chromium.is_connected():  # else the id may be another's by now
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def first_line(error: BaseException) -> str:
    """What Playwright says, without the log of the browser that it appends."""
    return str(error).partition("\n")[0].strip()


async def _ask(chromium: "Chromium", method: str) -> dict[str, Any]:
    """Call a method of Chromium's own protocol."""
    session = await chromium.new_browser_cdp_session()
    answer: dict[str, Any] = await session.send(method)
    await session.detach()
    return answer


async def _identity(chromium: "Chromium") -> tuple[int, tuple[Path, ...]]:
    """Its process id, and the folders that a Chromium which is killed leaves behind."""
    found = await _ask(chromium, "SystemInfo.getProcessInfo")
    pid = next(int(process["id"]) for process in found["processInfo"] if process["type"] == "browser")
    profile = _PROFILE.search((await _ask(chromium, "SystemInfo.getInfo"))["commandLine"])
    return pid, () if profile is None else await asyncio.to_thread(_folders, Path(profile[1]))


def _folders(profile: Path) -> tuple[Path, ...]:
    """The profile that Playwright made, and the folder of the socket that it links to."""
    try:
        linked = (profile / "SingletonSocket").readlink().parent
    except OSError:
        return (profile,)
    return (profile, linked) if linked.parent == profile.parent else (profile,)


def _remove(folders: Iterable[Path]) -> None:
    """Also from under processes that are about to end, and go on writing until then."""
    for folder in folders:
        for _ in range(_REMOVALS):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(_REMOVAL_SECONDS)
