"""Finding a user's own code by its name, `module:attribute`, and what it raises while it is set up, in one line."""

import importlib
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any

from outrider.core.causes import first_line
from outrider.core.errors import InvalidInput, OutriderError, message_of
from outrider.core.variables import hint_about

_OURS = f"{Path(__file__).parents[1]}/"
_LIBRARY = f"{sysconfig.get_path('stdlib')}/"


def load(name: str, what: str, *, such_as: str) -> Any:
    """What `name` stands for; modules in the current folder are found too. `what` and `such_as` are for messages."""
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise InvalidInput(f"{what} {name!r}: write it as module:name, such as {such_as}")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise InvalidInput(f"{what} {name!r}: name the module, not its file: {dotted}:{attribute}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    with users_code(f"{what} {name!r}"):
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as exc:
            if exc.name is None or not (module_name + ".").startswith(exc.name + "."):
                raise
            raise InvalidInput(
                f"{what} {name!r}: there is no module {exc.name!r} here or among the installed ones"
            ) from exc
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, vars(found), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidInput(f"{what} {name!r}: module {module_name!r} has no {attribute!r}{hint}")
        found = getattr(found, part)
    return found


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Refuse what raises in the block, in one line with the place in the user's code; the error itself is its cause.

    An error of Outrider is raised as it is, and so is one that no code of others has a part in.
    """
    try:
        yield
    except OutriderError:
        raise
    except (Exception, SystemExit) as exc:
        place = _place_of(exc)
        if place is None:
            raise
        text = message_of(exc)
        said = exc.msg if isinstance(exc, SyntaxError) and exc.filename else text
        shown = f"{type(exc).__name__}: {first_line(said)}".removesuffix(": ")
        raise InvalidInput(f"{what}: {shown} ({place}){hint_about(text)}") from exc


def _place_of(error: BaseException) -> str | None:
    """File and line of the innermost frame of the user's own code, or of the library that was called directly."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return _shown(error.filename, error.lineno or 0)
    frames = [frame for frame in _frames(error.__traceback__) if not frame[0].startswith("<")]
    own = [frame for frame in frames if not _is_installed(frame[0])]
    if own:
        return _shown(*own[-1])
    called = frames[1:]  # the first is the one that calls
    return None if not called or called[0][0].startswith(_OURS) else _shown(*called[-1])


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next


def _is_installed(file: str) -> bool:
    """Whether the file is Outrider's, Python's, or of another installed library."""
    return file.startswith((_OURS, _LIBRARY)) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _shown(file: str, line: int) -> str:
    path = Path(file).absolute()
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"
