"""Where an evaluator's values come from: the machine, the files of the task, or the task itself."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from outrider.core.errors import ScoreError
from outrider.env.osworld.settling import patiently
from outrider.env.osworld.workspace import Workspace


class GotFile(Struct, frozen=True, kw_only=True):
    """A file that a getter brought."""

    name: str
    data: bytes

    @property
    def text(self) -> str:
        """Its lines end as Python reads them: with a line feed."""
        return self.data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


class Nothing(Struct, frozen=True):
    """No settings."""


class OnCommand(Struct, frozen=True):
    """A command to run in the machine."""

    command: Annotated[str, Meta(min_length=1)] | Annotated[list[str], Meta(min_length=1)]
    shell: bool = False


class SomeFiles(Struct, frozen=True):
    """One file, or several with `multi`; `gives` says which of them the metric is given."""

    path: str | tuple[str, ...]
    dest: str | tuple[str, ...] = ""
    multi: bool = False
    gives: tuple[int, ...] = (0,)
    time_suffix: bool = False

    def __post_init__(self) -> None:
        if self.multi != isinstance(self.path, tuple):
            raise ValueError("path is a list if multi is true, and only then")
        if self.multi and isinstance(self.dest, tuple) and len(self.dest) != len(self.path):
            raise ValueError("path and dest are lists of one length")
        if not all(0 <= index < len(self.paths) for index in self.gives) or not self.gives:
            raise ValueError("gives names files that do not exist")
        if self.time_suffix:
            raise ValueError("time_suffix is not understood here")

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def names(self) -> tuple[str, ...]:
        """What the files are called in the cache."""
        dests = (self.dest,) if isinstance(self.dest, str) else self.dest
        given = dests if len(dests) == len(self.paths) else ("",) * len(self.paths)
        return tuple(dest or path.rpartition("/")[2] for dest, path in zip(given, self.paths, strict=True))


class OnePath(Struct, frozen=True):
    """A path, in the machine or in the cache."""

    path: str


class Rule(Struct, frozen=True):
    """What the task itself says."""

    rules: Any


class WindowSize(Struct, frozen=True):
    """A window of this class, in any case of letters."""

    app_class_name: str


async def vm_command_line(given: OnCommand, workspace: Workspace) -> str | None:
    done = await workspace.run(given.command, shell=given.shell)
    return None if done.returncode is None else done.stdout


async def vm_command_error(given: OnCommand, workspace: Workspace) -> str | None:
    done = await workspace.run(given.command, shell=given.shell)
    return None if done.returncode is None else done.stderr


async def vm_file(given: SomeFiles, workspace: Workspace) -> Any:
    async def fetch(path: str, _: str) -> bytes | None:
        return await workspace.read(path)

    return await _fetched(given, workspace, fetch)


async def cloud_file(given: SomeFiles, workspace: Workspace) -> Any:
    async def fetch(path: str, name: str) -> bytes | None:
        return await asyncio.to_thread(workspace.files.read, path, saved_as=name)

    return await _fetched(given, workspace, fetch)


async def _fetched(
    given: SomeFiles, workspace: Workspace, fetch: Callable[[str, str], Awaitable[bytes | None]]
) -> GotFile | list[GotFile | None] | None:
    found: list[GotFile | None] = []
    for index, (path, name) in enumerate(zip(given.paths, given.names, strict=True)):
        data = await fetch(path, name)
        if data is not None:
            workspace.cache[name] = data
        if index in given.gives:
            found.append(None if data is None else GotFile(name=name, data=data))
    return found[0] if len(found) == 1 else found


async def cache_file(given: OnePath, workspace: Workspace) -> GotFile:
    data = workspace.cache.get(given.path)
    if data is None:
        path = workspace.files.find(given.path)
        if path is None:
            raise ScoreError(f"the cache has no file {given.path!r}: no step before has made it", stage="env.score")
        data = await asyncio.to_thread(path.read_bytes)
    return GotFile(name=given.path, data=data)


async def rule(given: Rule, _: Workspace) -> Any:
    return given.rules


async def vm_screen_size(_: Nothing, workspace: Workspace) -> dict[str, int]:
    width, height = workspace.computer.screen_size
    return {"width": width, "height": height}


async def vm_window_size(given: WindowSize, workspace: Workspace) -> dict[str, int] | None:
    """The size of the first window of this class; None if there is none, or no program that knows."""
    done = await workspace.run(["sh", "-c", "wmctrl -lGx"], shell=False)
    for line in done.stdout.splitlines():
        columns = line.split(maxsplit=7)
        if len(columns) > _CLASS and given.app_class_name.lower() in columns[_CLASS].lower().split("."):
            return {"width": int(columns[4]), "height": int(columns[5])}
    return None


_CLASS = 6
"""The column of a window's class in what wmctrl lists: number, desktop, x, y, width, height, class, host, title."""


async def list_directory(given: OnePath, workspace: Workspace) -> dict[str, Any] | None:
    """The folder as a tree of `{type, name, children}`, sorted by name; None if there is no such folder."""
    folder = await workspace.path(given.path)
    script = 'test -d "$1" && find "$1/" -mindepth 1 -printf "%Y/%P\\0"'
    done = await workspace.run(["sh", "-c", script, "sh", folder], shell=False)
    if done.returncode != 0:
        return None
    root: dict[str, Any] = {"type": "directory", "name": folder.rstrip("/").rpartition("/")[2], "children": []}
    folders = {"": root}
    entries = [entry.partition("/") for entry in done.stdout.split("\0") if entry]
    for kind, _, path in sorted(entries, key=lambda entry: entry[2].split("/")):
        above, _, name = path.rpartition("/")
        node: dict[str, Any] = {"type": "directory" if kind == "d" else "file", "name": name}
        if kind == "d":
            node["children"] = []
            folders[path] = node
        if above in folders:
            folders[above]["children"].append(node)
    return root


async def vm_terminal_output(_: Nothing, workspace: Workspace) -> str | None:
    return await patiently(workspace.computer.terminal_text, workspace.clock)


async def accessibility_tree(_: Nothing, workspace: Workspace) -> str:
    return await patiently(workspace.computer.accessibility_tree, workspace.clock)


@dataclass(frozen=True, slots=True)
class GetterKind:
    """A type of getter: what a task says of it, and what it does."""

    settings: type[Struct]
    get: Callable[[Any, Workspace], Awaitable[Any]]


GETTERS: Mapping[str, GetterKind] = {
    "accessibility_tree": GetterKind(Nothing, accessibility_tree),
    "cache_file": GetterKind(OnePath, cache_file),
    "cloud_file": GetterKind(SomeFiles, cloud_file),
    "list_directory": GetterKind(OnePath, list_directory),
    "rule": GetterKind(Rule, rule),
    "vm_command_error": GetterKind(OnCommand, vm_command_error),
    "vm_command_line": GetterKind(OnCommand, vm_command_line),
    "vm_file": GetterKind(SomeFiles, vm_file),
    "vm_screen_size": GetterKind(Nothing, vm_screen_size),
    "vm_terminal_output": GetterKind(Nothing, vm_terminal_output),
    "vm_window_size": GetterKind(WindowSize, vm_window_size),
}
"""The types of getter that are understood."""
