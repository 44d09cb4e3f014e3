"""Code blocks of Markdown files, for the tests that run them."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

_BLOCK = re.compile(r"^```(?P<language>\w*)(?: file=(?P<file>\S+))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """`file` names the file whose content the block shows, if it does."""

    language: str
    file: str | None
    code: str
    line: int


def blocks(path: Path) -> list[Block]:
    text = path.read_text()
    found = _BLOCK.finditer(text)
    return [Block(m["language"], m["file"], m["code"], text.count("\n", 0, m.start()) + 1) for m in found]


async def execute(code: str, names: dict[str, Any], filename: str) -> None:
    """Run a block as if it stood in an `async` function, in `names`."""
    compiled = compile(code, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if inspect.isawaitable(result):
        await result
