"""The setup steps of OSWorld's tasks.

Invariant: what goes wrong ends the episode with an `EnvError`; an agent never begins on a machine half set up. After
the agent (`postconfig`) a command or window step may fail, since what the agent did may be the reason.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from outrider.core.clock import sleep
from outrider.core.decoding import convert
from outrider.core.errors import EnvError
from outrider.env.osworld.task import SetupStep
from outrider.env.osworld.workspace import Command, Workspace
from outrider.pool.computer import Executed

BROWSERS = ("google-chrome", "google-chrome-stable", "chromium", "chromium-browser")
UNTIL_SECONDS = 60.0
WINDOW_SECONDS = 30.0
_AGAIN_SECONDS = 0.3

_Text = Annotated[str, Meta(min_length=1)]


class _Download(Struct, frozen=True):
    url: _Text
    path: _Text


class _Upload(Struct, frozen=True):
    local_path: _Text
    path: _Text


class Download(Struct, frozen=True):
    """Files to put into the machine, by their address."""

    files: tuple[_Download, ...]


class UploadFile(Struct, frozen=True):
    """Files to put into the machine, by their path here."""

    files: tuple[_Upload, ...]


class Launch(Struct, frozen=True):
    """A program to start and leave running."""

    command: Annotated[str, Meta(min_length=1)] | Annotated[list[str], Meta(min_length=1)]
    shell: bool = False


class Until(Struct, frozen=True):
    """Any of these ends the repetition."""

    returncode: int | None = None
    stdout: str | None = None
    stderr: str | None = None

    def holds(self, done: Executed) -> bool:
        return (
            (self.returncode is not None and done.returncode == self.returncode)
            or (self.stdout is not None and self.stdout in done.stdout)
            or (self.stderr is not None and self.stderr in done.stderr)
        )


class Execute(Launch, frozen=True):
    """`stdout` and `stderr` name files of the cache that keep the output."""

    stdout: str = ""
    stderr: str = ""
    until: Until | None = None


class OnPath(Struct, frozen=True):
    """A file of the machine."""

    path: _Text


class Sleep(Struct, frozen=True):
    """A pause."""

    seconds: Annotated[float, Meta(ge=0, le=600)]


class OnWindow(Struct, frozen=True):
    """A window whose title has this name in it; `strict`: is this name. `by_class`: its class instead of its title."""

    window_name: _Text
    strict: bool = False
    by_class: bool = False


class ChromeOpenTabs(Struct, frozen=True):
    """Addresses to open in the machine's browser."""

    urls_to_open: Annotated[tuple[_Text, ...], Meta(min_length=1)]


class Setup:
    """Carries out steps on one machine."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def run(self, steps: Sequence[SetupStep], *, is_after: bool = False) -> None:
        """All steps in their order, up to the first that fails. `is_after`: the agent has been at work."""
        for number, step in enumerate(steps, start=1):
            kind = STEPS[step.type]
            parameters = convert(dict(step.parameters), kind.parameters)
            try:
                await kind.run(self, parameters, is_after)
            except EnvError as exc:
                which = f"{'postconfig' if is_after else 'config'} step {number} ({step.type})"
                raise EnvError(f"{which}: {exc}", stage="env.score" if is_after else "env.reset") from exc

    async def download(self, given: Download, _: bool) -> None:
        for file in given.files:
            await self._put(file.url, file.path)

    async def upload_file(self, given: UploadFile, _: bool) -> None:
        for file in given.files:
            await self._put(file.local_path, file.path)

    async def _put(self, address: str, path: str) -> None:
        data = await asyncio.to_thread(self._workspace.files.read, address, saved_as=path)
        await self._workspace.computer.write_file(await self._workspace.path(path), data)

    async def launch(self, given: Launch, _: bool) -> None:
        command: Command = given.command
        if isinstance(command, str) and not given.shell:
            command = command.split()
        await self._workspace.computer.launch(await self._workspace.prepared(command, shell=given.shell))

    async def execute(self, given: Execute, is_after: bool) -> None:
        done = await self._workspace.run(given.command, shell=given.shell)
        if given.until is not None:
            done = await self._repeated(given, given.until, done)
        self._keep(given.stdout, done.stdout)
        self._keep(given.stderr, done.stderr)
        if given.until is None and not is_after and done.returncode != 0:
            raise EnvError(_failure(given.command, done))

    async def _repeated(self, given: Execute, until: Until, done: Executed) -> Executed:
        clock = self._workspace.clock
        deadline = clock.monotonic() + UNTIL_SECONDS
        while not until.holds(done):
            if clock.monotonic() >= deadline:
                raise EnvError(f"not as it should be within {UNTIL_SECONDS:g} s: {_failure(given.command, done)}")
            await sleep(clock, _AGAIN_SECONDS)
            done = await self._workspace.run(given.command, shell=given.shell)
        return done

    def _keep(self, name: str, text: str) -> None:
        if name:
            self._workspace.cache[name] = text.encode()

    async def open(self, given: OnPath, _: bool) -> None:
        path = await self._existing(given.path)
        await self._workspace.computer.launch([await self._program("xdg-open"), path])

    async def change_wallpaper(self, given: OnPath, _: bool) -> None:
        path = await self._existing(given.path)
        program = await self._program("gsettings", "feh", "hsetroot")
        arguments = {
            "gsettings": ["set", "org.gnome.desktop.background", "picture-uri", f"file://{path}"],
            "feh": ["--no-fehbg", "--bg-fill", path],
            "hsetroot": ["-cover", path],
        }[program]
        await self._must([program, *arguments])

    async def sleep(self, given: Sleep, _: bool) -> None:
        await sleep(self._workspace.clock, given.seconds)

    async def activate_window(self, given: OnWindow, is_after: bool) -> None:
        await self._on_window("a", given, is_after)

    async def close_window(self, given: OnWindow, is_after: bool) -> None:
        await self._on_window("c", given, is_after)

    async def _on_window(self, verb: str, given: OnWindow, is_after: bool) -> None:
        """A window that a step before has asked for may take a moment to come."""
        flags = ("x" if given.by_class else "") + ("F" if given.strict else "")
        command = [await self._program("wmctrl"), f"-{flags}{verb}", given.window_name]
        clock = self._workspace.clock
        deadline = clock.monotonic() + (0 if is_after else WINDOW_SECONDS)
        while True:
            done = await self._workspace.run(command, shell=False)
            if done.returncode == 0 or is_after:
                return
            if clock.monotonic() >= deadline:
                raise EnvError(f"no window {given.window_name!r} within {WINDOW_SECONDS:g} s")
            await sleep(clock, _AGAIN_SECONDS)

    async def chrome_open_tabs(self, given: ChromeOpenTabs, _: bool) -> None:
        browser = await self._program(*BROWSERS)
        await self._workspace.computer.launch([browser, *given.urls_to_open])

    async def _existing(self, path: str) -> str:
        if not await self._workspace.exists(path):
            raise EnvError(f"the machine has no file {path!r}")
        return await self._workspace.path(path)

    async def _program(self, *names: str) -> str:
        found = await self._workspace.first_program(*names)
        if found is None:
            raise EnvError(f"the machine has no {' or '.join(names)}")
        return found

    async def _must(self, command: list[str]) -> None:
        done = await self._workspace.run(command, shell=False)
        if done.returncode != 0:
            raise EnvError(_failure(command, done))


def _failure(command: Command, done: Executed) -> str:
    shown = command if isinstance(command, str) else shlex.join(command)
    how = "ran out of time" if done.returncode is None else f"ended with code {done.returncode}"
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    return f"{shown[:200]!r} {how}" + (f": {last[0][:200]}" if last else "")


@dataclass(frozen=True, slots=True)
class _Step:
    parameters: type[Struct]
    run: Callable[[Setup, Any, bool], Awaitable[None]]


STEPS: Mapping[str, _Step] = {
    "activate_window": _Step(OnWindow, Setup.activate_window),
    "change_wallpaper": _Step(OnPath, Setup.change_wallpaper),
    "chrome_open_tabs": _Step(ChromeOpenTabs, Setup.chrome_open_tabs),
    "close_window": _Step(OnWindow, Setup.close_window),
    "command": _Step(Execute, Setup.execute),
    "download": _Step(Download, Setup.download),
    "execute": _Step(Execute, Setup.execute),
    "launch": _Step(Launch, Setup.launch),
    "open": _Step(OnPath, Setup.open),
    "sleep": _Step(Sleep, Setup.sleep),
    "upload_file": _Step(UploadFile, Setup.upload_file),
}
"""The types of step that can be carried out."""
