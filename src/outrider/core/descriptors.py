"""Descriptors on the event loop: until there is something to read, or room to write."""

import asyncio
from collections.abc import Callable


async def readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    await _ready(descriptor, loop.add_reader, loop.remove_reader)


async def writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    await _ready(descriptor, loop.add_writer, loop.remove_writer)


async def _ready(
    descriptor: int, watch: Callable[[int, Callable[[], None]], object], ignore: Callable[[int], object]
) -> None:
    ready = asyncio.get_running_loop().create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    watch(descriptor, settle)
    try:
        await ready
    finally:
        ignore(descriptor)
