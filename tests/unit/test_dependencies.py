"""What the code imports is what the project declares, and what is missing is named with a command that installs it."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from outrider.core import extras

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: lines for name, lines in PROJECT["optional-dependencies"].items() if name not in {"test", "check", "docs"}
}
OF_THE_USER = {"torch"}
"""Used if the user's program has it: no extra brings it, and the message says `pip install torch`."""


@cache
def imports() -> dict[str, set[str]]:
    """The libraries that the code imports, each with the files that do; not Python's own."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for name in imported(ast.parse(path.read_bytes())):
            found.setdefault(name.partition(".")[0], set()).add(str(path.relative_to(ROOT)))
    return {name: files for name, files in found.items() if name not in sys.stdlib_module_names | {"outrider"}}


def imported(tree: ast.AST) -> Iterator[str]:
    """By statement, or by `importlib.import_module("name")`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(module))]):
                yield module


@cache
def distributions_of(module: str) -> set[str]:
    return {plain(name) for name in brought_by().get(module, ())}


brought_by = cache(packages_distributions)


def plain(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


DECLARED = {plain(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines} - {"outrider"}


def test_every_library_that_the_code_imports_is_declared():
    undeclared = {
        library: files
        for library, files in imports().items()
        if library not in OF_THE_USER and not distributions_of(library) & DECLARED
    }
    assert undeclared == {}


def test_every_library_that_is_declared_is_imported():
    assert DECLARED - {name for library in imports() for name in distributions_of(library)} == set()


def test_every_extra_that_a_message_names_is_there():
    calls = re.compile(r"install_command\(\"(\w+)\"\)|install_command\('(\w+)'\)")
    named = {a or b for path in (ROOT / "src").rglob("*.py") for a, b in calls.findall(path.read_text())}
    assert named <= EXTRAS.keys()
    assert {"web", "ray", "cluster", "math"} <= named


def test_no_message_tells_to_install_from_an_index_that_does_not_have_it():
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    assert [path for path in texts if re.search(r"pip install[^\n`]* '?outrider\b", path.read_text())] == []


def test_in_a_checkout_the_command_installs_the_extra_from_there():
    assert extras.install_command("web").endswith(f"install -e '{ROOT}[web]'")


def test_elsewhere_the_command_names_the_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    assert extras.install_command("web").endswith("install 'playwright>=1.59'")
    assert extras.install_command("ray").endswith("install 'asyncpg>=0.30' 'cloudpickle>=3.0' 'ray>=2.55'")


def test_the_command_names_the_python_that_runs_unless_a_shell_finds_its_pip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert extras.install_command("web").startswith(f"{sys.executable} -m pip install ")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert extras.install_command("web").startswith("pip install ")
