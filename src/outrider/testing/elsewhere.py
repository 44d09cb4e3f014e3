"""Asks another process, with another hash seed, for the opening of an episode."""

import asyncio
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.decoding import from_json
from outrider.env.protocol import Environment, Observation

_PROGRAM = "from outrider.testing.elsewhere import answer; answer()"


class _Request(Struct, frozen=True, kw_only=True):
    module: str
    file: str
    name: str
    seed: int
    path: list[str]


class Found(Struct, frozen=True, kw_only=True):
    """The opening as text; or why there is none: `make` was not to be found there, or it failed."""

    opening: str = ""
    unreachable: str = ""
    failure: str = ""


def encoded(opening: Observation) -> str:
    return msgspec.json.encode(opening).decode()


async def opening_of(make: Callable[[], Environment], seed: int, *, within_seconds: float) -> Found:
    """What `make().reset(seed)` returns in a fresh interpreter."""
    module, name = getattr(make, "__module__", ""), getattr(make, "__qualname__", "")
    known: Any = sys.modules.get(module)
    if not name or "<" in name or module == "__main__" or getattr(known, "__file__", None) is None:
        return Found(unreachable="`make` is not a function of a module, so another process cannot find it")
    request = _Request(module=module, file=known.__file__, name=name, seed=seed, path=sys.path)
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    try:
        async with asyncio.timeout(within_seconds):
            answered, complaints = await process.communicate(msgspec.json.encode(request))
    except TimeoutError:
        return Found(failure=f"no answer within {within_seconds:g} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return from_json(answered, Found)
    except msgspec.DecodeError:
        said = complaints.decode(errors="replace").strip().splitlines() or ["no word"]
        return Found(failure=f"its process ended with code {process.returncode}: {said[-1][:500]}")


def answer() -> None:
    """The other process: read a request, write what was found."""
    request = from_json(sys.stdin.buffer.read(), _Request)
    with redirect_stdout(sys.stderr):  # whatever the environment prints is not the answer
        found = _found(request)
    sys.stdout.buffer.write(msgspec.json.encode(found))


def _found(request: _Request) -> Found:
    sys.path[:] = request.path
    try:
        make = _loaded(request)
    except (ImportError, AttributeError, OSError) as exc:
        return Found(unreachable=f"another process cannot import {request.module}: {exc}")
    return Found(opening=encoded(asyncio.run(_open(make, request.seed))))


def _loaded(request: _Request) -> Callable[[], Environment]:
    """The function, from its module or, where that has no name others know, from its file."""
    try:
        found: Any = importlib.import_module(request.module)
    except ModuleNotFoundError:
        spec = importlib.util.spec_from_file_location(request.module, request.file)
        if spec is None or spec.loader is None:
            raise
        found = sys.modules[request.module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    for part in request.name.split("."):
        found = getattr(found, part)
    make: Callable[[], Environment] = found
    return make


async def _open(make: Callable[[], Environment], seed: int) -> Observation:
    env = make()
    try:
        return await env.reset(seed)
    finally:
        await env.close()
