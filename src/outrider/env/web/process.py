"""One Chromium process and the Playwright driver that holds it, from launch to close."""

import asyncio
import os
import re
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.core.clock import Clock
from outrider.core.errors import EnvError

if TYPE_CHECKING:
    from playwright.async_api import Browser as Chromium
    from playwright.async_api import BrowserContext, Playwright

_LAUNCH_SECONDS = 60.0
_CONTEXT_SECONDS = 20.0
_CLOSE_SECONDS = 10.0

_REMOVALS = 20
_REMOVAL_SECONDS = 0.1

_LAST_WORDS = re.compile(r"\[err\] .*?(?:FATAL:\S*\] |(?=error while loading|Missing X server))(.+)")
"""What a Chromium that cannot run says about it, in the log that Playwright appends."""

_PROFILE = re.compile(r"--user-data-dir=(\S*/playwright_chromiumdev_profile-\w+)")

_NOWHERE = "http://127.0.0.1:1"
"""The proxy of everything that belongs to no episode: nobody listens there."""

NOTHING = Path(__file__).parent / "nothing"
"""Programs that do nothing, found before the desktop's, which Chromium would run for a link to a mail address."""

_PASSED_ON = ("HOME", "USER", "LANG", "LC_", "TZ", "TMPDIR", "DISPLAY", "WAYLAND_", "XAUTHORITY", "XDG_", "LD_LIBRARY_")
"""How the names of those variables begin that Chromium gets. The keys of models are not among them."""

_FLAGS = (
    # Names are resolved by the gate, never by the browser, not even to look ahead.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    # What speaks UDP would go past a proxy.
    "--disable-quic",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # the same in older versions
    "--disable-domain-reliability",
    "--no-pings",
    "--autofill-server-url=data:,",  # else it asks a server about the fields of every form
)


class BrowserProcess:
    """Made by `launch`. `n_open` contexts are in use, `n_made` have been made so far."""

    def __init__(
        self, playwright: "Playwright", chromium: "Chromium", pid: int, folders: tuple[Path, ...], launched_at: float
    ) -> None:
        self._playwright = playwright
        self._chromium = chromium
        self._folders = folders
        self._lost = asyncio.Event()
        self.pid = pid
        self.launched_at = launched_at
        self.n_open = 0
        self.n_made = 0
        chromium.on("disconnected", lambda _: self._lost.set())

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
                        chromium_sandbox=os.geteuid() != 0,  # Chromium refuses to have one as root
                        proxy={"server": _NOWHERE},
                        args=_FLAGS,
                        env=_environment(),
                        handle_sigint=False,
                        handle_sigterm=False,
                        handle_sighup=False,
                    )
                    return cls(playwright, chromium, *await _identity(chromium), clock.time())
                except BaseException:
                    await playwright.stop()
                    raise
        except (Error, TimeoutError) as exc:
            found = _LAST_WORDS.search(str(exc))
            reason = found[1] if found else first_line(exc) or f"it took longer than {_LAUNCH_SECONDS:g} s"
            raise EnvError(f"{executable or 'Chromium'} cannot be started: {reason}", stage="env.reset") from exc

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
            raise EnvError(f"the browser gives no new context: {first_line(exc)}", stage="env.reset") from exc

    async def close_context(self, context: "BrowserContext") -> bool:
        """Whether it could be closed; if not, the process had better be ended too."""
        from playwright.async_api import Error  # noqa: PLC0415

        try:
            async with asyncio.timeout(_CONTEXT_SECONDS):
                await context.close()
        except (Error, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """End both, by force if need be."""
        from playwright.async_api import Error  # noqa: PLC0415

        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._chromium.close()
        except (Error, TimeoutError):
            self._kill()
        finally:
            self._lost.set()
            with suppress(Error, TimeoutError, OSError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._playwright.stop()
            await asyncio.to_thread(_remove, self._folders)

    def _kill(self) -> None:
        if self._chromium.is_connected():  # else the id may be another's by now
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _environment() -> dict[str, str | float | bool]:
    kept = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    return {**kept, "PATH": f"{NOTHING}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


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
