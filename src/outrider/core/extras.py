"""What to install when an optional library is missing."""

import re
import shlex
import shutil
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
"""Where the project lies, if this code runs from a checkout."""


def install_command(extra: str) -> str:
    """The command that installs what `extra` brings: from the checkout if there is one, else library by library."""
    if (CHECKOUT / "pyproject.toml").is_file():
        return f"{_pip()} install -e {shlex.quote(f'{CHECKOUT}[{extra}]')}"
    return f"{_pip()} install {' '.join(shlex.quote(library) for library in libraries_of(extra))}"


def libraries_of(extra: str) -> list[str]:
    """The requirements that the installed project declares for `extra`, such as `bm25s>=0.2`."""
    from importlib import metadata  # noqa: PLC0415 slow to import

    marker = re.compile(rf"^(?P<library>[^;]+?)\s*;\s*extra\s*==\s*['\"]{re.escape(extra)}['\"]$")
    found = [marker.match(requirement) for requirement in metadata.requires("outrider") or ()]
    return [match["library"] for match in found if match]


def _pip() -> str:
    """`pip` if a shell finds the one of this interpreter, else a path to it."""
    on_path = shutil.which("pip")
    if on_path is not None and Path(on_path).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"
