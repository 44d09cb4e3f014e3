"""An MCP server for tests: `python mcp_server.py` speaks over its pipes, `python mcp_server.py PORT` over HTTP."""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("tests")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def pid() -> str:
    """The server's process."""
    return str(os.getpid())


@server.tool()
def variable(name: str) -> str:
    """An environment variable."""
    return os.environ.get(name, "unset")


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("out of order")


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
async def hang(note: str) -> str:
    """Write the process into the file `note`, and never answer."""
    await asyncio.to_thread(Path(note).write_text, str(os.getpid()))
    await asyncio.Event().wait()
    return "never"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
