"""What is started to run agents' code, or to look at their answers, gets no key of ours, whatever kind it is."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from outrider.env.sandbox import Sandbox
from outrider.env.sandbox.census import family
from outrider.env.scoring.checker import SymbolicChecker, Verdict
from outrider.pool.provider import Provider
from outrider.pool.providers.browser import BrowserProvider
from outrider.pool.providers.desktop import DesktopProvider
from outrider.pool.providers.process import ProcessProvider
from outrider.testing import eventually

KEYS = (
    "OPENAI_API_KEY",
    "LANGCHAIN_API_KEY",
    "LANGFUSE_SECRET_KEY",
    "USER_TOKEN",
    "HOMEBREW_GITHUB_API_TOKEN",
    "TZ_KEY",
)
SECRET = "not-for-agents"


@asynccontextmanager
async def machine(provider: Provider) -> AsyncIterator[None]:
    made = await provider.create("m1", f"us-{os.getpid()}")
    try:
        yield
    finally:
        await made.destroy()
        await provider.close()


@asynccontextmanager
async def sandbox(_: Path) -> AsyncIterator[None]:
    running = asyncio.ensure_future(Sandbox().run("import time; time.sleep(60)"))

    async def started() -> bool:
        with suppress(OSError):
            return any(b"main.py" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family(os.getpid()))
        return False

    await eventually(started)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


@asynccontextmanager
async def comparison(_: Path) -> AsyncIterator[None]:
    checker = SymbolicChecker(check_seconds=10, max_processes=1)
    assert await checker.compare("x+x", "2x") is Verdict.EQUAL
    try:
        yield
    finally:
        await checker.close()


STARTED: dict[str, Callable[[Path], AbstractAsyncContextManager[None]]] = {
    "py sandbox": sandbox,
    "comparison of formulas": comparison,
    "process": lambda folder: machine(ProcessProvider(folder=folder / "machines")),
    "desktop": lambda _: machine(DesktopProvider()),
    "browser": lambda folder: machine(BrowserProvider(folder=folder / "browsers")),
}


@pytest.mark.parametrize("kind", STARTED)
async def test_no_process_gets_a_key(kind, monkeypatch):
    for name in KEYS:
        monkeypatch.setenv(name, SECRET)
    before = set(family(os.getpid()))
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="om-"))  # paths of sockets are short
        await stack.enter_async_context(STARTED[kind](Path(folder)))
        inside = [pid for pid in family(os.getpid()) if pid not in before]
        assert inside
        for pid in inside:
            with suppress(FileNotFoundError, ProcessLookupError):  # Chromium's come and go
                assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
