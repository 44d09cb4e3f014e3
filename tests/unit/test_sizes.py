"""Files and functions stay small enough to be read at once."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src"
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FILE = 400
MAX_FUNCTION = 50
UNFINISHED = ("TODO", "FIXME", "XXX", "raise NotImplementedError")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_is_small_and_finished(path: Path):
    text = path.read_text()
    assert text.count("\n") <= MAX_FILE
    assert [word for word in UNFINISHED if word in text] == []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION, node.name
